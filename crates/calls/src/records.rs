//! Writes the files of jobs from their records in the store.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use model::{Job, JobId};
use store::Store;

use crate::answer::Answer;
use crate::caller_environment::CallerEnvironments;
use crate::files::{JobFiles, RECORD};
use crate::nesting::NestedCalls;

/// The job directories of a state directory.
#[derive(Debug)]
pub(crate) struct JobRecords {
    state: PathBuf,
    store: Store,
    environments: Arc<CallerEnvironments>,
    nested: NestedCalls,
}

impl JobRecords {
    pub fn new(
        state: PathBuf,
        store: Store,
        environments: Arc<CallerEnvironments>,
        nested: NestedCalls,
    ) -> Self {
        Self { state, store, environments, nested }
    }

    /// Returns the files of a job, which need not exist.
    pub fn files(&self, job: JobId) -> JobFiles {
        JobFiles::new(&self.state, job)
    }

    /// Writes the files of a job from its current record in the store.
    pub async fn refresh(&self, job: JobId) {
        if let Ok(Some(record)) = self.store.get(job).await {
            self.write(&record);
        }
    }

    /// Writes the files of a job. Errors are only logged, since the store is authoritative.
    pub fn write(&self, record: &Job) {
        let files = self.files(record.id);
        if let Err(error) = files.link_newest_run() {
            tracing::warn!(job = %record.id, %error, "cannot link the output of the run");
        }
        let write = || {
            if record.completed_at.is_some() {
                self.nested.return_slot(record.order.parent, record.id);
                self.environments.remove(record.id);
                let answer = Answer::new(record, &files, None, self.store.now());
                files.replace("result.json", &answer.redacted(&self.store))?;
            }
            // On a full disk the status may fit although the record does not.
            let recorded = files.replace(RECORD, record);
            files.write_status(record, record.progress.state.name(), None)?;
            recorded
        };
        let written = match write() {
            Err(error) if error.kind() == ErrorKind::NotFound => files.create().and_then(|()| write()),
            written => written,
        };
        if let Err(error) = written {
            tracing::warn!(job = %record.id, %error, "cannot write the files of the job");
        }
    }
}
