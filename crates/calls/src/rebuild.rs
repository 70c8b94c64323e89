//! `switchboard recover`: rebuilds a lost, empty or damaged database from the job directories.
//!
//! A sound database is completed; any other is moved aside first. Starts and stops no job: the next service adopts live runs, as after a
//! crash.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use model::{JobId, Owner, StateName};
use serde::Serialize;
use store::{DatabaseFile, RejectedJob, RestoredJob, StoreError, StoreOptions};

use crate::error::CallError;
use crate::files::job_directories;
use crate::identity::StateIdentity;
use crate::job_directory::{Content, read_directory};
use crate::store_loss;

/// The result of [`recover_store`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RecoveryReport {
    /// The number of jobs written to the database.
    pub restored: u64,
    /// The number of those that have ended.
    pub ended: u64,
    /// The number of those that were running. The next daemon adopts their runs.
    pub running: u64,
    /// The number of those in the queue or in a pause.
    pub waiting: u64,
    /// The number of jobs that the database already had, in the same or a newer state.
    pub unchanged: u64,
    /// The number of directories of calls without a job.
    pub direct_runs: u64,
    /// The directories whose jobs could not be recovered.
    pub skipped: Vec<SkippedDirectory>,
    /// The new path of the old database, if it could not be used.
    pub set_aside: Option<PathBuf>,
    /// The database.
    pub database: PathBuf,
}

impl RecoveryReport {
    fn count(&mut self, state: StateName) -> &mut u64 {
        match state {
            StateName::Running | StateName::Interrupted => &mut self.running,
            StateName::Queued | StateName::Paused => &mut self.waiting,
            _ => &mut self.ended,
        }
    }
}

/// A directory whose job could not be recovered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedDirectory {
    /// The job.
    pub job: JobId,
    /// The reason.
    pub reason: String,
}

/// Rebuilds the embedded store from the job directories of `state`. With `dry_run`, changes nothing. Idempotent.
///
/// The caller holds the lock of the state directory. Blocks.
pub fn recover_store(
    state: &Path,
    opening: &StoreOptions,
    dry_run: bool,
) -> Result<RecoveryReport, CallError> {
    let database = DatabaseFile::from_options(opening).ok_or(CallError::NotEmbedded)?;
    let cannot_use = |source| CallError::State { directory: state.to_owned(), source };
    let identity =
        if dry_run { None } else { Some(StateIdentity::open(state).map_err(cannot_use)?.identity) };
    let owner = identity.map_or_else(|| Owner::new("dry-run"), |identity| identity.new_owner());
    let mut report = RecoveryReport { database: database.path().to_owned(), ..RecoveryReport::default() };
    let known = match database.check().and_then(|()| database.revisions()) {
        Ok(known) => known,
        Err(StoreError::Damaged { .. } | StoreError::Foreign { .. } | StoreError::NotAFile { .. }) => {
            if !dry_run {
                report.set_aside = database.set_aside().map_err(cannot_use)?;
            }
            HashMap::new()
        }
        Err(error) => return Err(error.into()),
    };
    let directories = job_directories(state).map_err(cannot_use)?;
    let jobs = directories.into_iter().filter_map(|id| match read_directory(state, id, &owner) {
        Content::Job(restored) => {
            let RestoredJob { job, .. } = &*restored;
            if known.get(&id).is_some_and(|known| *known >= job.revision) {
                report.unchanged += 1;
                return None;
            }
            *report.count(job.progress.state.name()) += 1;
            report.restored += 1;
            Some(*restored)
        }
        Content::DirectRun => {
            report.direct_runs += 1;
            None
        }
        Content::Nothing { reason } => {
            report.skipped.push(SkippedDirectory { job: id, reason });
            None
        }
    });
    if dry_run {
        jobs.for_each(drop);
    } else {
        for RejectedJob { job, state, reason } in database.restore(jobs)? {
            *report.count(state) -= 1;
            report.restored -= 1;
            report.skipped.push(SkippedDirectory { job, reason });
        }
        store_loss::forget_owner(state).map_err(cannot_use)?;
    }
    Ok(report)
}
