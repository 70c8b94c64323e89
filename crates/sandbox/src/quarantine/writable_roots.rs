//! Finds the directories that a run may write, wherever they were moved since it started.
//!
//! A mount and a Landlock rule hold a directory, not its path. When the user or another run renames the directory, or one above it, the
//! agent goes on writing to it, and something else may be at its old path: a decoy, or files of the user. So a run remembers which
//! directory was at each path, and its supervisor keeps them open.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::fstat;
use serde::{Deserialize, Serialize};

use super::{Quarantine, open_directory, unlock};
use crate::beneath::open_without_links;

/// A directory that a run may write, as it was when the run started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WritableRoot {
    #[serde(with = "model::exact_path")]
    path: PathBuf,
    /// Its device and inode.
    identity: (u64, u64),
}

/// The open writable roots of a run. Without them, only roots that were not moved are found.
#[derive(Debug, Default)]
pub struct HeldRoots(Vec<OwnedFd>);

impl WritableRoot {
    /// Whether an open directory may stand for a path: not if the path is a root and the directory another one.
    pub fn allows(roots: &[Self], path: &Path, opened: impl AsFd) -> io::Result<bool> {
        let found = identity(opened)?;
        Ok(roots.iter().filter(|root| root.path == path).all(|root| root.identity == found))
    }

    /// Returns the present path; none where the root cannot be found.
    fn locate(&self, held: &HeldRoots) -> Option<PathBuf> {
        let is_it = |opened: &&OwnedFd| identity(opened).is_ok_and(|found| found == self.identity);
        let path = match held.0.iter().find(is_it) {
            Some(opened) => fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()?,
            None => self.path.clone(),
        };
        // The kernel's name of a removed directory may be the path of another one.
        let _unlocked = unlock(&path).ok()?;
        let found = open_directory(&path).and_then(identity).ok()?;
        (found == self.identity).then_some(path)
    }
}

fn identity(opened: impl AsFd) -> io::Result<(u64, u64)> {
    let found = fstat(opened)?;
    Ok((found.st_dev, found.st_ino))
}

impl Quarantine {
    /// Remembers the directories that the run may write, and returns them.
    pub(crate) fn add_roots(&mut self, paths: &[PathBuf]) -> io::Result<HeldRoots> {
        let mut held = HeldRoots::default();
        for path in paths {
            let opened = open_without_links(path)?;
            self.roots.push(WritableRoot { path: path.clone(), identity: identity(&opened)? });
            held.0.push(opened);
        }
        Ok(held)
    }

    /// Returns the directories that the run may write.
    pub(crate) fn roots(&self) -> &[WritableRoot] {
        &self.roots
    }

    /// Returns the list with the present paths, and the roots that cannot be found. Nothing is looked for at the path of those: what is
    /// there may be the user's.
    pub(super) fn relocate(&self, held: &HeldRoots) -> (Self, BTreeSet<PathBuf>) {
        let located: Vec<_> = self.roots.iter().map(|root| (&root.path, root.locate(held))).collect();
        let locate = |path: &Path| {
            let around = located.iter().filter(|(root, _)| path.starts_with(root));
            let Some((root, present)) = around.max_by_key(|(root, _)| root.components().count()) else {
                return Some(path.to_owned());
            };
            let below = path.strip_prefix(root).ok()?.components();
            Some(present.as_ref()?.components().chain(below).collect())
        };
        let locate_all = |paths: &[PathBuf]| paths.iter().filter_map(|path| locate(path)).collect();
        let missing = self.missing.iter().filter_map(|(path, time)| Some((locate(path)?, *time)));
        let kept_state = self.kept_state.as_ref();
        let roots = self.roots.iter().zip(&located).map(|(root, (_, present))| WritableRoot {
            path: present.as_ref().unwrap_or(&root.path).clone(),
            identity: root.identity,
        });
        let mut present = Self {
            missing: missing.collect(),
            kept_state: kept_state.map(|(directories, started)| (locate_all(directories), *started)),
            repositories: self.repositories.relocate(locate),
            roots: roots.collect(),
        };
        let in_workspaces = located.iter().filter(|(root, _)| self.repositories.covers(root));
        for path in in_workspaces.filter_map(|(_, path)| path.as_ref()) {
            // It may have been moved out of the workspace with which it was searched.
            present.repositories.add_workspace(path);
        }
        let lost = located.iter().filter(|(_, present)| present.is_none());
        (present, lost.map(|(root, _)| (*root).clone()).collect())
    }
}
