//! Watches for protected paths that did not exist when a run started, and moves them to quarantine.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{Quarantined, RunId};
use sandbox::{HeldRoots, Quarantine, QuarantineStore};

use crate::locked_spool::LockedSpool;
use crate::os::InotifyWatch;

/// How often a path is moved before the run is stopped: an agent that creates it in a loop would win against the user's shell prompt
/// once.
const MAX_SIGHTINGS: u32 = 3;

/// The watch over the missing protected paths of one run.
#[derive(Debug)]
pub struct PathGuard {
    quarantine: Quarantine,
    /// The directories that the agent writes to; none after a kill.
    roots: HeldRoots,
    directory: OwnedFd,
    path: PathBuf,
    run_prefix: String,
    /// None where nothing is to be moved at once, or the user has no inotify watch left.
    watch: Option<InotifyWatch>,
    sightings: BTreeMap<PathBuf, u32>,
}

impl PathGuard {
    /// Writes the paths down for a recovery and begins to watch; none when there is nothing to watch for.
    pub fn start(
        spool: &LockedSpool,
        directory: &Path,
        run_id: RunId,
        quarantine: &Quarantine,
        roots: HeldRoots,
    ) -> io::Result<Option<Self>> {
        if quarantine.is_empty() {
            return Ok(None);
        }
        spool.write_quarantine(quarantine)?;
        let directories = quarantine.watched_directories();
        let watch = if directories.is_empty() { None } else { InotifyWatch::directories(&directories)? };
        Ok(Some(Self { roots, watch, ..Self::new(spool, directory, run_id, quarantine.clone())? }))
    }

    /// The paths that a killed supervisor has written down.
    pub fn from_spool(spool: &LockedSpool, directory: &Path, run_id: RunId) -> io::Result<Option<Self>> {
        spool.quarantine().map(|quarantine| Self::new(spool, directory, run_id, quarantine)).transpose()
    }

    fn new(spool: &LockedSpool, directory: &Path, run_id: RunId, quarantine: Quarantine) -> io::Result<Self> {
        Ok(Self {
            quarantine,
            roots: HeldRoots::default(),
            directory: spool.as_fd().try_clone_to_owned()?,
            path: directory.to_owned(),
            run_prefix: run_id.to_string().chars().take(8).collect(),
            watch: None,
            sightings: BTreeMap::new(),
        })
    }

    fn store(&self) -> QuarantineStore<'_> {
        QuarantineStore { directory: self.directory.as_fd(), path: &self.path, mark: &self.run_prefix }
    }

    /// Becomes readable when a path may have appeared.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Moves the paths that must not exist during the run. Returns one that comes back too often.
    pub fn check(&mut self) -> Option<PathBuf> {
        if let Some(watch) = &self.watch {
            // Before the look, or a name that appears in between is missed.
            let _ = watch.drain();
        }
        let found = self.quarantine.move_at_once(&self.roots, self.store());
        let mut violation = None;
        for path in found {
            let count = self.sightings.entry(path.clone()).or_default();
            *count += 1;
            if *count > MAX_SIGHTINGS {
                violation = Some(path);
            }
        }
        violation
    }

    /// Performs the final sweep, when no process of the run is left. Returns all paths moved since its start.
    pub fn sweep(&self, spool: &LockedSpool) -> Vec<Quarantined> {
        // On a full disk the paths are moved all the same, and named unless this process is killed at once.
        self.quarantine.sweep(&self.roots, self.store(), |found| drop(spool.write_quarantine(found)))
    }
}
