//! Opens directories below a worktree without following links.
//!
//! Each part of a path is opened by itself with `O_NOFOLLOW`, relative to the one above. A link that replaces a directory at
//! any time leads to an error, not out of the worktree.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The root of a worktree.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
}

impl Root {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { directory: openat(CWD, path, DIRECTORY, Mode::empty())? })
    }

    /// Opens the directory of a path, and returns the last part of the path with it.
    pub(crate) fn open_parent<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        Ok((self.open_directory(path.parent().unwrap_or(Path::new("")))?, name))
    }

    /// Opens a directory.
    pub(crate) fn open_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut directory = rustix::io::dup(&self.directory)?;
        for part in path.components() {
            directory = openat(&directory, check_part(part)?, DIRECTORY, Mode::empty())?;
        }
        Ok(directory)
    }

    /// Creates the missing directories above a path and calls a function for each of them.
    pub(crate) fn create_parents(&self, path: &Path, mut created: impl FnMut(PathBuf)) -> io::Result<()> {
        let mut directory = rustix::io::dup(&self.directory)?;
        let mut above = PathBuf::new();
        for part in path.parent().into_iter().flat_map(Path::components) {
            let name = check_part(part)?;
            above.push(name);
            match mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => created(above.clone()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            directory = openat(&directory, name, DIRECTORY, Mode::empty())?;
        }
        Ok(())
    }
}

/// The directory of the file that was opened last: sorted paths are often in the same one.
#[derive(Debug)]
pub(crate) struct LastDirectory<'a> {
    root: &'a Root,
    last: Option<(PathBuf, OwnedFd)>,
}

impl<'a> LastDirectory<'a> {
    pub(crate) fn new(root: &'a Root) -> Self {
        Self { root, last: None }
    }

    /// Opens the directory of a path, and creates it on request.
    pub(crate) fn open(&mut self, path: &Path, create: bool) -> io::Result<&OwnedFd> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.last.as_ref().is_none_or(|(last, _)| last != parent) {
            if create {
                self.root.create_parents(path, |_| {})?;
            }
            self.last = Some((parent.to_owned(), self.root.open_directory(parent)?));
        }
        self.last.as_ref().map(|(_, directory)| directory).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// Rejects parts that lead upwards or into a git directory.
fn check_part(part: Component<'_>) -> io::Result<&OsStr> {
    match part {
        Component::Normal(name) if !name.eq_ignore_ascii_case(".git") => Ok(name),
        _ => Err(Errno::INVAL.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_out_of_root_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("inside")).unwrap();
        fs::create_dir_all(root.join(".git/hooks")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        symlink("../outside", root.join("link")).unwrap();
        let opened = Root::open(&root).unwrap();
        assert!(opened.open_directory(Path::new("inside")).is_ok());
        for path in ["../outside", "link", "inside/../inside", ".git/hooks", ".GIT", "/"] {
            assert!(opened.open_directory(Path::new(path)).is_err(), "{path}");
        }
        assert!(opened.create_parents(Path::new("link/new/file"), |_| {}).is_err());
        assert!(!directory.path().join("outside/new").exists());
    }
}
