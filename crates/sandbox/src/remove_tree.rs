//! Removes directories that an agent has filled, including locked and very deep ones.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, chmod, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a path with everything below it, even in directories without write permission such as Go's module cache.
///
/// Each directory is moved to the top before it is emptied, so the depth of the tree costs neither stack nor descriptors.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match open_unlocked(CWD, path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::LOOP | Errno::NOTDIR) => return fs::remove_file(path),
        top => top?,
    };
    let mut left = read_names(&top)?;
    let mut moved = 0_u64;
    while let Some(name) = left.pop() {
        if try_unlink(&top, &name)? {
            continue;
        }
        let directory = open_unlocked(&top, &*name)?;
        for name in read_names(&directory)? {
            if try_unlink(&directory, &name)? {
                continue;
            }
            // Moving a directory to another parent writes to it: its `..` changes.
            drop(open_unlocked(&directory, &*name)?);
            left.push(loop {
                moved += 1;
                let free = CString::new(format!("{moved}.removed"))?;
                match renameat(&directory, &*name, &top, &*free) {
                    Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                    renamed => break renamed.map(|()| free)?,
                }
            });
        }
        unlinkat(&top, &*name, AtFlags::REMOVEDIR)?;
    }
    fs::remove_dir(path)
}

/// Opens a directory without following a link and restores its owner's permissions, which an agent may have removed.
pub(crate) fn open_unlocked(parent: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let found = openat(parent, name, OFlags::PATH | DIRECTORY, Mode::empty())?;
    let mode = Mode::from_raw_mode(fstat(&found)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        // A failure shows when the directory is used.
        let _ = chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode | Mode::RWXU);
    }
    openat(&found, ".", OFlags::RDONLY | DIRECTORY, Mode::empty())
}

/// Removes a path unless it is a directory. Returns whether it is gone.
fn try_unlink(parent: &OwnedFd, name: &CString) -> Result<bool, Errno> {
    match unlinkat(parent, &**name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_names(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn read_only_tree_is_removed_without_following_links() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, outside) = (directory.path().join("tree"), directory.path().join("outside"));
        fs::create_dir_all(tree.join("mod/cache")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        fs::write(tree.join("mod/cache/file"), "x").unwrap();
        symlink(&outside, tree.join("mod/link")).unwrap();
        for name in ["mod/cache", "mod"] {
            fs::set_permissions(tree.join(name), Permissions::from_mode(0o555)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && outside.join("file").exists());
        symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(tree.symlink_metadata().is_err() && outside.join("file").exists());
    }

    #[test]
    fn tree_deeper_than_the_descriptor_limit_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir_all(tree.join("1.removed/2.removed/x")).unwrap();
        fs::write(tree.join("3.removed"), "").unwrap();
        let mut deepest = open_unlocked(CWD, &tree).unwrap();
        for _ in 0..5_000 {
            mkdirat(&deepest, "d", Mode::RWXU).unwrap();
            deepest = open_unlocked(&deepest, "d").unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
