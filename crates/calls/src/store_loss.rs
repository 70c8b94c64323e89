//! Detects the loss of a database while no service had it open.
//!
//! Owns `store.json`, which names the database and its last owner. The database must contain the heartbeat of that owner, and have a
//! write-ahead log unless the owner closed it. Otherwise the records of the job directories decide: a service refuses to open only if one
//! of them is newer than the database. So a copy of the state, a restored backup without later jobs, and a log that another program
//! removed by closing the database raise no alarm.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use model::{JobId, Owner};
use regular_file::{name_culprit, read_regular};
use serde::{Deserialize, Serialize};
use store::{DatabaseFile, StoreError, StoreLoss, StoreOptions, StoreSetting};

use crate::files::{job_directories, replace_durably};
use crate::job_directory::{Content, read_directory};

const FILE: &str = "store.json";

/// The database that a service of this directory used last, and its owner.
#[derive(Debug, Serialize, Deserialize)]
struct LastUse {
    /// The configured file; none for the default, which moves with the directory.
    path: Option<PathBuf>,
    owner: Owner,
}

/// Jobs that the job directories contain and the database lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostJobs {
    /// The kind of loss.
    pub loss: StoreLoss,
    /// The number of jobs that are missing or outdated in it.
    pub jobs: usize,
}

impl LostJobs {
    /// Returns the remedy.
    pub fn hint(&self, state: &Path) -> String {
        format!(
            "rebuild it from the job directories with `switchboard recover`; to start afresh, move `{}` away",
            crate::files::jobs_directory(state).display()
        )
    }
}

impl fmt::Display for LostJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs = if self.jobs == 1 {
            "1 job that it lacks".to_owned()
        } else {
            format!("{} jobs that it lacks", self.jobs)
        };
        write!(f, "{}; the job directories hold {jobs}", self.loss)
    }
}

/// Returns the jobs that the database has lost since its last use. Reads only.
pub fn find_lost_jobs(state: &Path, opening: &StoreOptions) -> Result<Option<LostJobs>, StoreError> {
    let Some(database) = DatabaseFile::from_options(opening) else { return Ok(None) };
    // A directory that was never opened, or whose note was lost in a power cut, proves nothing.
    let last = read_regular(&state.join(FILE)).ok();
    let last: Option<LastUse> = last.and_then(|text| serde_json::from_slice(&text).ok());
    let Some(last) = last.filter(|last| last.path == configured_path(opening)) else { return Ok(None) };
    let Some(loss) = database.find_loss(&last.owner)? else { return Ok(None) };
    let known = database.revisions()?;
    let is_lost = |id: &JobId| match read_directory(state, *id, &last.owner) {
        Content::Job(restored) => known.get(id).is_none_or(|known| *known < restored.job.revision),
        Content::DirectRun | Content::Nothing { .. } => false,
    };
    let jobs = job_directories(state).unwrap_or_default().into_iter().filter(is_lost).count();
    if jobs == 0 {
        tracing::warn!(%loss, "no job is missing in the store");
    }
    Ok((jobs > 0).then_some(LostJobs { loss, jobs }))
}

/// Records the owner whose heartbeat the database contains from now on.
pub(crate) fn note_owner(state: &Path, opening: &StoreOptions, owner: &Owner) {
    if DatabaseFile::from_options(opening).is_none() {
        return;
    }
    let last = LastUse { path: configured_path(opening), owner: owner.clone() };
    if let Err(error) = replace_durably(state, FILE, &last) {
        tracing::warn!(%error, "cannot note who uses the store: a loss of it would not be found");
    }
}

/// Removes the record of the last owner after the database was rebuilt.
pub(crate) fn forget_owner(state: &Path) -> io::Result<()> {
    let path = state.join(FILE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(name_culprit(&path, error)),
        _ => Ok(()),
    }
}

fn configured_path(opening: &StoreOptions) -> Option<PathBuf> {
    match &opening.setting {
        StoreSetting::Sqlite { path } => path.clone(),
        _ => None,
    }
}
