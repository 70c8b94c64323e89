//! Writes the files of jobs from their records in the store.

use std::io::ErrorKind;
use std::sync::Arc;

use model::{Job, JobId};
use store::Store;

use crate::answer::Answer;
use crate::caller_environment::CallerEnvironments;
use crate::files::{JobFiles, RECORD};
use crate::nesting::NestedCalls;
use crate::state_place::StatePlace;

/// The job directories of a state directory.
#[derive(Debug)]
pub(crate) struct JobRecords {
    place: StatePlace,
    store: Store,
    environments: Arc<CallerEnvironments>,
    nested: NestedCalls,
}

impl JobRecords {
    pub fn new(
        place: StatePlace,
        store: Store,
        environments: Arc<CallerEnvironments>,
        nested: NestedCalls,
    ) -> Self {
        Self { place, store, environments, nested }
    }

    /// Returns the files of a job, which need not exist.
    pub fn files(&self, job: JobId) -> JobFiles {
        JobFiles::new(self.place.path(), job)
    }

    /// Returns whether the state directory was moved, and the files of its jobs with it.
    pub fn were_moved(&self) -> bool {
        self.place.was_moved()
    }

    /// Writes the files of a job from its current record in the store.
    pub async fn refresh(&self, job: JobId) {
        if let Ok(Some(record)) = self.store.get(job).await {
            self.write(&record, None);
        }
    }

    /// Writes the files of a job. Errors are only logged, since the store is authoritative. Writes nothing while the state directory
    /// is elsewhere: the janitor of the next service writes missing results. The newest run is searched unless the caller knows it.
    pub fn write(&self, record: &Job, newest_run: Option<u32>) {
        if !self.place.is_in_place() {
            tracing::warn!(job = %record.id, "the state directory is gone: not writing the files of the job");
            return;
        }
        let files = self.files(record.id);
        if let Err(error) = files.link_newest_run(newest_run) {
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
