//! Watches for protected paths that did not exist when a run started, and moves them to quarantine.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{Quarantined, RunId};
use sandbox::{HeldRoots, Quarantine, QuarantineStore};

use crate::locked_spool::LockedSpool;
use crate::os::InotifyWatch;

/// The number of times a path may be moved before the run is stopped: an agent that keeps creating it would eventually
/// win a race against the user's shell prompt.
const MAX_SIGHTINGS: u32 = 3;

/// Guards the missing protected paths of one run.
#[derive(Debug)]
pub struct PathGuard {
    quarantine: Quarantine,
    /// The directories that the agent can write to; empty after a kill.
    roots: HeldRoots,
    directory: OwnedFd,
    path: PathBuf,
    run_prefix: String,
    /// `None` if no path needs to be moved immediately, or the user has no inotify watch left.
    watch: Option<InotifyWatch>,
    sightings: BTreeMap<PathBuf, u32>,
}

impl PathGuard {
    /// Writes the paths to the spool for a recovery and starts watching. Returns `None` if there is no path to guard.
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

    /// Restores the guard of a killed supervisor from its spool.
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

    /// Returns a descriptor that becomes readable when a path may have appeared.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Moves existing paths to quarantine. Returns one that was created too often.
    pub fn check(&mut self) -> Option<PathBuf> {
        if let Some(watch) = &self.watch {
            // Drained before the check, or a name that appears in between would be missed.
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

    /// Performs the final sweep after the last process has exited. Returns all paths moved since the start.
    pub fn sweep(&self, spool: &LockedSpool) -> Vec<Quarantined> {
        // On a full disk the list cannot be updated; the paths are moved regardless.
        self.quarantine.sweep(&self.roots, self.store(), |found| drop(spool.write_quarantine(found)))
    }
}
