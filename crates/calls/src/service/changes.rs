//! The changes of a job: list, patch, undo.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use changes::{ChangeRecord, ChangesError, Direction, Restoration, RestoreError, Restored};
use model::{ChangeSet, Job, JobId};

use super::JobService;
use crate::error::CallError;
use crate::job_changes::{find_git, record};
use crate::metadata::missing_changes;
use crate::settings::Settings;

/// The time for the comparison of a running job.
const LIMIT: Duration = Duration::from_secs(30);

/// Selected files of a change set; all of them without any path.
#[derive(Debug, Clone, Default)]
pub struct FileSelection {
    /// Files, and directories with all files below. Relative paths start at the base, or else at the root of the worktree.
    pub paths: Vec<PathBuf>,
    /// The working directory of the caller. Is used only if it is inside of the worktree.
    pub base: Option<PathBuf>,
}

impl FileSelection {
    fn resolve(self, record: &ChangeRecord) -> Result<Vec<PathBuf>, ChangesError> {
        let worktree = record.worktree()?.unwrap_or_default();
        let base = self.base.filter(|base| base.starts_with(&worktree)).unwrap_or(worktree);
        Ok(self.paths.into_iter().map(|path| base.join(path)).collect())
    }
}

fn with_git(record: &ChangeRecord, settings: &Settings) -> Result<ChangeRecord, ChangesError> {
    let worktree = record.worktree()?.unwrap_or_default();
    Ok(record.clone().with_git(find_git(&settings.lookup, &worktree)?))
}

impl JobService {
    /// Returns the changes of a job in some files; those so far if it is running.
    pub async fn change_set(&self, job: JobId, selection: FileSelection) -> Result<ChangeSet, CallError> {
        let (job, settings) = (self.job(job).await?, Arc::clone(&self.0.settings));
        self.use_record(&job, move |record, has_ended| {
            if !has_ended {
                with_git(&record, &settings)?.finish(LIMIT, &[])?;
            }
            Ok(record.read_selected(&selection.resolve(&record)?)?)
        })
        .await
    }

    /// Returns the patch of some files, in the format of git.
    pub async fn patch(&self, job: JobId, selection: FileSelection) -> Result<Vec<u8>, CallError> {
        let (ended, settings) = (self.job(job).await?, Arc::clone(&self.0.settings));
        self.use_record(&ended, move |record, has_ended| {
            if !has_ended {
                with_git(&record, &settings)?.finish(LIMIT, &[])?;
            }
            Ok(record.patch(&selection.resolve(&record)?)?)
        })
        .await
    }

    /// Returns the changes of an ended job with the patch of each file.
    pub async fn file_patches(&self, job: JobId) -> Result<(ChangeSet, Vec<Vec<u8>>), CallError> {
        let job = self.job(job).await?;
        self.use_record(&job, |record, _| Ok(record.file_patches()?)).await
    }

    /// Returns the file with the whole patch, once it exists.
    pub fn patch_file(&self, job: JobId) -> PathBuf {
        record(&self.files(job)).patch_file()
    }

    /// Restores files as they were before or after a job, merged with later edits. Refused while a job works in the worktree.
    pub async fn restore(
        &self,
        job: JobId,
        direction: Direction,
        selection: FileSelection,
    ) -> Result<Restored, CallError> {
        let (ended, settings) = (self.job(job).await?, Arc::clone(&self.0.settings));
        let worktrees = self.0.scheduler.worktrees();
        self.use_record(&ended, move |record, has_ended| {
            if !has_ended {
                return Err(CallError::StillRunning { job });
            }
            let worktree = record.worktree()?.unwrap_or_default();
            if let Some(user) = worktrees.user(&worktree) {
                return Err(CallError::WorktreeInUse { worktree, user });
            }
            let paths = selection.resolve(&record)?;
            Ok(with_git(&record, &settings)?.restore(&Restoration::new(direction, &paths))?)
        })
        .await
    }

    /// Uses the record of a job on a blocking thread.
    async fn use_record<T: Send + 'static>(
        &self,
        job: &Job,
        action: impl FnOnce(ChangeRecord, bool) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        let (id, has_ended) = (job.id, job.completed_at.is_some());
        let record = record(&self.files(id));
        let used = tokio::task::spawn_blocking(move || match record.worktree()? {
            Some(_) => action(record, has_ended),
            None => Err(CallError::ChangesMissing { job: id, reason: None }),
        });
        match used.await {
            // Removed by retention in the meantime, never started or never finished.
            Ok(Err(
                CallError::ChangesMissing { .. }
                | CallError::Changes(ChangesError::NotFinished { .. })
                | CallError::Restore(RestoreError::Changes(ChangesError::NotFinished { .. })),
            )) => Err(CallError::ChangesMissing { job: id, reason: missing_changes(job) }),
            Ok(used) => used,
            Err(error) => Err(CallError::Files { job: id, source: std::io::Error::other(error) }),
        }
    }
}
