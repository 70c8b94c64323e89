//! What a path really leads to, in as few questions to the kernel as that takes.
//!
//! `canonicalize` asks about every folder on the way, and a policy names dozens of paths that are mostly missing: that was the
//! dearest part of making a sandbox ready. Here a missing path is one question, and one that is there a handful.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, lstat, open, readlink};

/// A path that was there a moment ago, as it really is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Real {
    /// Absolute, without links.
    pub path: PathBuf,
    pub is_folder: bool,
}

impl Real {
    /// Follows all links, the last one too.
    pub fn of(path: &Path) -> io::Result<Self> {
        let opened = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&opened)?;
        let is_folder = FileType::from_raw_mode(found.st_mode).is_dir();
        let path = match named_by_the_kernel(&opened, &found) {
            Some(path) => path,
            // Where `/proc` does not tell, or tells what is no path: of what has just been removed, or is mounted nowhere.
            None => path.canonicalize()?,
        };
        Ok(Self { path, is_folder })
    }

    /// The path alone.
    pub fn path(path: &Path) -> io::Result<PathBuf> {
        Self::of(path).map(|real| real.path)
    }
}

/// The kernel's own name of an open file, if that name leads to it.
fn named_by_the_kernel(opened: &OwnedFd, found: &Stat) -> Option<PathBuf> {
    let name = readlink(format!("/proc/self/fd/{}", opened.as_raw_fd()), Vec::new()).ok()?;
    let path = PathBuf::from(OsStr::from_bytes(name.as_bytes()));
    let there = lstat(&path).ok().filter(|_| path.is_absolute())?;
    ((there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn it_is_what_the_long_way_finds() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b c")).unwrap();
        fs::write(root.join("a/file\nof (deleted)"), "").unwrap();
        symlink("b c", root.join("a/link")).unwrap();
        symlink(root.join("a"), root.join("other")).unwrap();
        symlink("nowhere", root.join("broken")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let names = [
            "a",
            "a/b c",
            "a/file\nof (deleted)",
            "other/link",
            "a/../other/link/..",
            "broken",
            "loop",
            "a/none",
            "other/file/x",
        ];
        for path in names
            .map(|name| root.join(name))
            .into_iter()
            .chain([PathBuf::from("/"), PathBuf::from("/proc/self/cwd")])
        {
            let (ours, long) = (Real::of(&path), path.canonicalize());
            match (ours, long) {
                (Ok(ours), Ok(long)) => assert_eq!((ours.is_folder, &ours.path), (long.is_dir(), &long)),
                (Err(ours), Err(long)) => assert_eq!(ours.kind(), long.kind(), "{}", path.display()),
                other => panic!("{}: {other:?}", path.display()),
            }
        }
    }

    #[test]
    fn what_was_removed_while_it_was_looked_at_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("gone");
        fs::write(&path, "").unwrap();
        let opened = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let found = fstat(&opened).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(named_by_the_kernel(&opened, &found), None);
        // Not even when something has the name that the kernel gives it then.
        fs::write(path.with_file_name("gone (deleted)"), "").unwrap();
        assert_eq!(named_by_the_kernel(&opened, &found), None);
    }
}
