//! Access to directories whose permissions an agent has taken away.
//!
//! Permissions are granted for as long as a guard lives and restored afterwards. No symbolic link is followed: a path is opened component
//! by component, and everything else is relative to the open directory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

/// Opens a directory itself, not for reading, and never through a link.
pub(crate) const DIRECTORY_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Grants the owner all permissions of a directory until it is dropped.
#[derive(Debug)]
pub(crate) struct UnlockedDirectory(Option<(OwnedFd, Stat)>);

impl UnlockedDirectory {
    /// Grants the permissions to move an entry out of its directory.
    pub fn grant_move(parent: BorrowedFd<'_>, name: &OsStr) -> Self {
        // Moving a directory to another parent writes to it: its `..` changes.
        if let Ok(entry) = openat(parent, name, DIRECTORY_FLAGS, Mode::empty())
            && let Ok(found) = fstat(&entry)
        {
            set_mode(&entry, found.st_mode | Mode::RWXU.bits());
        }
        Self::grant(parent)
    }

    /// Grants the permissions of a directory that was opened with `O_PATH`.
    pub fn grant(directory: BorrowedFd<'_>) -> Self {
        let Ok((directory, found)) = directory.try_clone_to_owned().and_then(|directory| {
            let found = fstat(&directory)?;
            Ok((directory, found))
        }) else {
            return Self(None);
        };
        set_mode(&directory, found.st_mode | Mode::RWXU.bits());
        Self(Some((directory, found)))
    }
}

impl Drop for UnlockedDirectory {
    fn drop(&mut self) {
        if let Some((directory, found)) = &self.0 {
            set_mode(directory, found.st_mode);
        }
    }
}

/// Changes the mode of a directory that was opened with `O_PATH`. A failure shows in the operation that follows.
fn set_mode(directory: &OwnedFd, mode: u32) {
    if FileType::from_raw_mode(mode).is_dir() {
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let _ = rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777));
    }
}

/// Grants the permissions to examine a path until the guards are dropped. Fails with the directory that cannot be examined.
pub(crate) fn unlock_path(path: &Path) -> Result<Vec<UnlockedDirectory>, PathBuf> {
    let mut unlocked = Vec::new();
    let is_locked = |found: io::Result<_>| {
        found.is_err_and(|error: io::Error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    if !is_locked(fs::symlink_metadata(path)) {
        return Ok(unlocked);
    }
    let mut examined = PathBuf::from("/");
    let Ok(mut directory) = openat(rustix::fs::CWD, "/", DIRECTORY_FLAGS, Mode::empty()) else {
        return Err(examined);
    };
    for part in relative_path(path).components() {
        let open = || openat(&directory, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty());
        let opened = match open() {
            Err(Errno::ACCESS) => {
                unlocked.push(UnlockedDirectory::grant(directory.as_fd()));
                open()
            }
            opened => opened,
        };
        directory = match opened {
            Ok(opened) => opened,
            Err(Errno::ACCESS) => return Err(examined),
            // Missing, a file or a link: nothing below it is examined.
            Err(_) => break,
        };
        examined.push(part);
    }
    Ok(unlocked)
}

/// Opens a directory without following a link in any component.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let mut directory = openat(rustix::fs::CWD, "/", DIRECTORY_FLAGS, Mode::empty())?;
    for part in relative_path(path).components() {
        directory = openat(&directory, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty())?;
    }
    Ok(directory)
}

/// Returns a path relative to the root directory.
pub(crate) fn relative_path(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}
