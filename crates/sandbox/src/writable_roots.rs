//! The directories that a run may write to, by identity.
//!
//! A mount and a Landlock rule hold a directory, not its path. If the user or another run renames the directory, or one above it, the
//! agent keeps writing to it while its old path may lead to a decoy or to files of the user. A run therefore records the device and
//! inode of each root, and its supervisor keeps the roots open.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use serde::{Deserialize, Serialize};

use crate::beneath::open_without_links;
use crate::unlock::{open_directory, unlock_path};

/// A directory that a run may write to, as it was when the run started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WritableRoot {
    #[serde(with = "model::exact_path")]
    pub path: PathBuf,
    /// Its device and inode.
    pub identity: (u64, u64),
}

/// The open writable roots of a run. Without them, only roots that were not moved can be located.
#[derive(Debug, Default)]
pub struct HeldRoots(Vec<OwnedFd>);

impl HeldRoots {
    /// Opens a directory, keeps it open and returns its record.
    pub(crate) fn open(&mut self, path: &Path) -> io::Result<WritableRoot> {
        let opened = open_without_links(path)?;
        let root = WritableRoot { path: path.to_owned(), identity: identity(&opened)? };
        self.0.push(opened);
        Ok(root)
    }
}

impl WritableRoot {
    /// Returns whether an open directory is the recorded one, if the path is a root.
    pub fn allows(roots: &[Self], path: &Path, opened: impl AsFd) -> io::Result<bool> {
        let found = identity(opened)?;
        Ok(roots.iter().filter(|root| root.path == path).all(|root| root.identity == found))
    }

    /// Returns the present path, or `None` if the root cannot be found.
    pub fn locate(&self, held: &HeldRoots) -> Option<PathBuf> {
        let is_same = |opened: &&OwnedFd| identity(opened).is_ok_and(|found| found == self.identity);
        let path = match held.0.iter().find(is_same) {
            Some(opened) => fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()?,
            None => self.path.clone(),
        };
        // The kernel's name of a removed directory may be the path of another one.
        let _unlocked = unlock_path(&path).ok()?;
        let found = open_directory(&path).and_then(identity).ok()?;
        (found == self.identity).then_some(path)
    }
}

fn identity(opened: impl AsFd) -> io::Result<(u64, u64)> {
    let found = fstat(opened)?;
    Ok((found.st_dev, found.st_ino))
}
