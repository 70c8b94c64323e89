//! Lists the protected paths that other active runs may have created.
//!
//! Each confined run publishes its list of missing paths in a directory that is invisible to agents, and its supervisor
//! keeps the file locked. A starting run reads all other lists, decides which paths it protects itself, and publishes
//! its own list, all under one lock: of two runs, one always knows the list of the other. A list is valid until its
//! paths have been moved: while its supervisor lives, and after a kill until the run is recovered. If no program
//! recovers a killed run, the next start does; if that is impossible, the list is deleted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{Quarantined, RunId, RunReport, SandboxReport};
use regular_file::{WrongFileType, create_private_directory, create_regular, name_culprit, open_regular};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sandbox::Quarantine;
use serde::{Deserialize, Serialize};

use crate::recovery::recover;
use crate::spool_files::QUARANTINE;

/// The directory of the lists, in the directory of proofs.
const DIRECTORY: &str = "active";
/// The time another run may take to prepare its sandbox.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that the owner of a killed run has to recover it.
const RECOVERY_GRACE: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The lists of all other active runs. Holds the lock: no other run starts until this is dropped.
#[derive(Debug)]
pub struct ActiveRuns {
    /// The file for the list of this run; closed before others may read it.
    own: File,
    path: PathBuf,
    _lock: File,
    /// The paths that the other runs must not leave behind.
    pub others: Vec<Quarantine>,
    /// The paths that were quarantined while recovering killed runs.
    pub recovered: Vec<Quarantined>,
}

/// The published list of one run.
#[derive(Debug, Serialize, Deserialize)]
struct PublishedList {
    /// The directory of the run.
    #[serde(with = "model::exact_path")]
    spool: PathBuf,
    quarantine: Quarantine,
}

/// The list of this run. Its lock is released when the process exits.
#[derive(Debug)]
pub struct Publication {
    path: PathBuf,
    _lock: File,
}

impl Publication {
    /// Deletes the list after its paths have been moved. If that fails, the list becomes invalid when this process
    /// exits.
    pub fn withdraw(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl ActiveRuns {
    /// Waits until no other run is starting, and reads the lists of all other runs.
    ///
    /// Fails with [`io::ErrorKind::PermissionDenied`] or [`io::ErrorKind::ReadOnlyFilesystem`] if no list can be
    /// written.
    pub fn lock(proofs: &Path, run_id: RunId) -> io::Result<Self> {
        let directory = proofs.join(DIRECTORY);
        let path = directory.join(format!("{run_id}.json"));
        create_private_directory(&directory)?;
        let (mut tried, mut recovered) = (BTreeSet::new(), Vec::new());
        let started = Instant::now();
        loop {
            let lock = lock_directory(&directory)?;
            let own = create_regular(&path)?;
            flock(&own, FlockOperation::NonBlockingLockExclusive)?;
            let lists = read_lists(&directory, &path)?;
            let is_lost = |list: &&FoundList| !list.is_locked && !tried.contains(&list.published.spool);
            let lost: Vec<&FoundList> = lists.iter().filter(is_lost).collect();
            if lost.is_empty() {
                let others = lists.into_iter().map(|list| list.published.quarantine).collect();
                return Ok(Self { own, path, _lock: lock, others, recovered });
            }
            // In this order, or another run could find a list that is locked and empty.
            drop(own);
            drop(lock);
            if started.elapsed() < RECOVERY_GRACE {
                std::thread::sleep(RETRY_INTERVAL);
                continue;
            }
            for FoundList { path, published: PublishedList { spool, .. }, .. } in lost {
                match recover(spool) {
                    Ok(RunReport { sandbox: Some(SandboxReport::Confined(confined)), .. }) => {
                        recovered.extend(confined.quarantined);
                    }
                    // If the list is still valid, it is treated like that of a running supervisor.
                    Ok(_) => {}
                    Err(error) if error.is_transient() => {}
                    // It would delay every start, and could later attribute a file of the user to the agent.
                    Err(_) => drop(fs::remove_file(path)),
                }
                tried.insert(spool.clone());
            }
        }
    }

    /// Publishes the list of this run and releases the lock.
    pub fn publish(mut self, spool: &Path, quarantine: &Quarantine) -> io::Result<Publication> {
        let list = PublishedList { spool: std::path::absolute(spool)?, quarantine: quarantine.clone() };
        self.own.write_all(&serde_json::to_vec(&list)?)?;
        Ok(Publication { path: self.path, _lock: self.own })
    }
}

fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = File::open(path).map_err(|error| name_culprit(path, error))?;
    let give_up_at = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::WOULDBLOCK) if Instant::now() < give_up_at => std::thread::sleep(RETRY_INTERVAL),
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other("another run has been starting for ten seconds"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A valid list.
struct FoundList {
    path: PathBuf,
    published: PublishedList,
    /// Set if its supervisor is alive.
    is_locked: bool,
}

/// Reads all valid lists and deletes the others.
fn read_lists(directory: &Path, own: &Path) -> io::Result<Vec<FoundList>> {
    let mut lists = Vec::new();
    let entries = fs::read_dir(directory).map_err(|error| name_culprit(directory, error))?;
    for entry in entries {
        let path = entry?.path();
        if path == own {
            continue;
        }
        let mut file = match open_regular(&path) {
            // Withdrawn meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            // No supervisor created it, and it must not prevent every later run.
            Err(error) if WrongFileType::find(&error).is_some() => continue,
            file => file?,
        };
        let is_locked = match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => false,
            Err(Errno::WOULDBLOCK) => true,
            Err(error) => return Err(error.into()),
        };
        let mut json = Vec::new();
        file.read_to_end(&mut json)?;
        match serde_json::from_slice::<PublishedList>(&json) {
            Ok(published) if is_locked || published.spool.join(QUARANTINE).exists() => {
                lists.push(FoundList { path, published, is_locked });
            }
            Err(error) if is_locked => {
                let why = format!("cannot read the list of an active run `{}`: {error}", path.display());
                return Err(io::Error::other(why));
            }
            // Recovered, or killed before its agent started.
            _ => drop(fs::remove_file(&path)),
        }
    }
    Ok(lists)
}
