//! Reads a job back from its directory, for a database that has lost it.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use model::{Job, JobId, JobState, Outcome, Owner, RunStatus, Timestamp};
use regular_file::open_regular;
use serde_json::Value;
use store::RestoredJob;

use crate::files::{JobFiles, RECORD, StatusFile};
use crate::metadata::MODEL_SPOKE;
use crate::run_record::RunRecord;

/// A longer record is damaged: prompts and answers are much shorter.
const LONGEST_RECORD: u64 = 256 << 20;

/// The content of a directory.
pub(crate) enum Content {
    Job(Box<RestoredJob>),
    /// A run of `call --direct`.
    DirectRun,
    /// No job that can be restored.
    Nothing {
        reason: String,
    },
}

/// Reads a job back from its directory. A job that was claimed after its record was written is assigned to `owner`.
pub(crate) fn read_directory(state: &Path, id: JobId, owner: &Owner) -> Content {
    let files = JobFiles::new(state, id);
    let nothing = |reason: String| Content::Nothing { reason };
    if !fs::symlink_metadata(files.directory()).is_ok_and(|found| found.is_dir()) {
        return nothing("it is not a directory".to_owned());
    }
    let record = match read_record(&files.directory().join(RECORD)) {
        Ok(record) => record,
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_direct_run(&files) => {
            return Content::DirectRun;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return nothing(format!("it has no {RECORD}"));
        }
        Err(error) => return nothing(format!("cannot read {RECORD}: {error}")),
    };
    let job: Job = match serde_json::from_slice(&record) {
        Ok(job) => job,
        Err(error) => return nothing(format!("{RECORD} is damaged: {error}")),
    };
    if job.id != id {
        return nothing(format!("{RECORD} is that of job {}", job.id));
    }
    let has_answer = job.outcome.as_ref().is_some_and(Outcome::has_answer) || model_spoke(&job);
    Content::Job(Box::new(RestoredJob { job: as_it_stands(job, &files, owner), has_answer }))
}

fn read_record(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    if file.metadata()?.len() > LONGEST_RECORD {
        return Err(io::Error::other("it is too long"));
    }
    let mut record = Vec::new();
    file.take(LONGEST_RECORD).read_to_end(&mut record)?;
    Ok(record)
}

/// Returns the job in its current state: one that was claimed after its record was written is running.
fn as_it_stands(mut job: Job, files: &JobFiles, owner: &Owner) -> Job {
    let newest = files.runs().last().and_then(|run| files.read::<RunRecord>(&RunRecord::file_name(*run)));
    let claimed = newest.map(|note| note.attempt()).filter(|attempt| *attempt > job.progress.attempt);
    if let Some(attempt) = claimed
        && job.completed_at.is_none()
    {
        job.progress.attempt = attempt;
        job.progress.state = JobState::Running { attempt, owner: owner.clone() };
        let started_at = files.read::<StatusFile>("status.json").and_then(|status| status.started_at_ms);
        job.started_at = job.started_at.or(started_at.map(Timestamp::from_millis)).or(Some(job.created_at));
        job.revision += 1;
    }
    job
}

fn model_spoke(job: &Job) -> bool {
    let metadata = job.metadata.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    metadata.is_some_and(|metadata| metadata.get(MODEL_SPOKE) == Some(&Value::Bool(true)))
}

/// Returns whether the directory is the spool of a run of `call --direct`.
fn is_direct_run(files: &JobFiles) -> bool {
    files.read::<RunStatus>("status.json").is_some() && !files.directory().join("runs").exists()
}
