//! Resolves paths with as few syscalls as possible.
//!
//! `canonicalize` makes a syscall for every component, and a policy names dozens of paths, most of them missing: that was the most
//! expensive part of preparing a sandbox. Here a missing path costs one syscall, an existing one a handful.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, lstat, open, readlink};

/// An existing path with all links followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RealPath {
    /// Absolute, without links.
    pub path: PathBuf,
    pub is_directory: bool,
}

impl RealPath {
    /// Follows all links, including the last component.
    pub fn resolve(path: &Path) -> io::Result<Self> {
        let opened = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&opened)?;
        let is_directory = FileType::from_raw_mode(found.st_mode).is_dir();
        let path = match kernel_name(&opened, &found) {
            Some(path) => path,
            // `/proc` is missing, or its name is not a path: the file was just removed, or is not in this mount namespace.
            None => path.canonicalize()?,
        };
        Ok(Self { path, is_directory })
    }
}

/// Resolves a path.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    RealPath::resolve(path).map(|real| real.path)
}

/// Returns the kernel's name of an open file, if that name leads to it.
fn kernel_name(opened: &OwnedFd, found: &Stat) -> Option<PathBuf> {
    let name = readlink(format!("/proc/self/fd/{}", opened.as_raw_fd()), Vec::new()).ok()?;
    let path = PathBuf::from(OsStr::from_bytes(name.as_bytes()));
    let at_path = lstat(&path).ok().filter(|_| path.is_absolute())?;
    ((at_path.st_dev, at_path.st_ino) == (found.st_dev, found.st_ino)).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn resolved_path_equals_canonicalize() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
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
            let (ours, canonical) = (RealPath::resolve(&path), path.canonicalize());
            match (ours, canonical) {
                (Ok(ours), Ok(canonical)) => {
                    assert_eq!((ours.is_directory, &ours.path), (canonical.is_dir(), &canonical));
                }
                (Err(ours), Err(canonical)) => {
                    assert_eq!(ours.kind(), canonical.kind(), "{}", path.display());
                }
                other => panic!("{}: {other:?}", path.display()),
            }
        }
    }

    #[test]
    fn file_removed_while_open_has_no_kernel_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("gone");
        fs::write(&path, "").unwrap();
        let opened = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let found = fstat(&opened).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(kernel_name(&opened, &found), None);
        // A file with the kernel's name of the removed one is not mistaken for it.
        fs::write(path.with_file_name("gone (deleted)"), "").unwrap();
        assert_eq!(kernel_name(&opened, &found), None);
    }
}
