//! The changes of a job: list, patch, undo.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use changes::{
    ChangeRecord, ChangesError, Direction, GitProgram, GitRepository, Restoration, RestoreError, Restored,
};
use model::{ChangeSet, Job, JobId};

use super::JobService;
use crate::checkouts::JobCheckout;
use crate::error::CallError;
use crate::files::JobFiles;
use crate::job_changes::{ChangesState, Worktrees, find_git, record};
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
    /// Returns absolute paths in the recorded worktree. Those of the user's worktree become those of its checkout.
    pub(super) fn resolve(self, recorded: &RecordedJob) -> Vec<PathBuf> {
        let RecordedJob { worktree, checkout, .. } = recorded;
        let relocate = |path: &Path| match checkout {
            Some(checkout) => checkout.relocate(path),
            None => path.to_owned(),
        };
        let base = self.base.map(|base| relocate(&base));
        let base = base.filter(|base| base.starts_with(worktree)).unwrap_or_else(|| worktree.clone());
        self.paths.into_iter().map(|path| base.join(relocate(&path))).collect()
    }
}

/// A job with its record, on a blocking thread.
pub(super) struct RecordedJob {
    pub job: JobId,
    pub has_ended: bool,
    pub record: ChangeRecord,
    /// The worktree in which the job worked.
    pub worktree: PathBuf,
    /// The private checkout of the job, whose root is then the worktree.
    pub checkout: Option<JobCheckout>,
    pub files: JobFiles,
    pub settings: Arc<Settings>,
}

impl RecordedJob {
    /// Finds the git for the repository of the user.
    pub fn find_git(&self) -> Result<GitProgram, ChangesError> {
        let worktree = self.checkout.as_ref().map_or(&*self.worktree, |checkout| checkout.source.worktree());
        find_git(&self.settings.lookup, worktree)
    }

    fn record_with_git(&self) -> Result<ChangeRecord, ChangesError> {
        Ok(self.record.clone().with_git(self.find_git()?))
    }

    /// Records the changes of a running job so far.
    fn compare_if_running(&self) -> Result<(), ChangesError> {
        if !self.has_ended {
            self.record_with_git()?.finish(LIMIT, &[])?;
        }
        Ok(())
    }

    /// Stores the description of the checkout.
    pub fn store_checkout(&self, checkout: &JobCheckout) -> Result<(), CallError> {
        let stored = checkout.store(&self.files);
        stored.map_err(|source| CallError::Files { job: self.job, source })
    }

    /// Restores files in the worktree of the user. Refused while a job runs there.
    pub fn restore(
        &self,
        restoration: &Restoration<'_>,
        worktrees: &Worktrees,
    ) -> Result<Restored, CallError> {
        if !self.has_ended {
            return Err(CallError::StillRunning { job: self.job });
        }
        let worktree = restoration.target.map_or(&*self.worktree, GitRepository::worktree);
        if let Some(user) = worktrees.user(worktree) {
            return Err(CallError::WorktreeInUse { worktree: worktree.to_owned(), user });
        }
        Ok(self.record_with_git()?.restore(restoration)?)
    }
}

impl JobService {
    /// Returns the changes of a job in some files; those so far if it is running.
    pub async fn change_set(&self, job: JobId, selection: FileSelection) -> Result<ChangeSet, CallError> {
        self.use_record(&self.job(job).await?, |job| {
            job.compare_if_running()?;
            Ok(job.record.read_selected(&selection.resolve(&job))?)
        })
        .await
    }

    /// Returns the patch of some files, in the format of git.
    pub async fn patch(&self, job: JobId, selection: FileSelection) -> Result<Vec<u8>, CallError> {
        self.use_record(&self.job(job).await?, |job| {
            job.compare_if_running()?;
            Ok(job.record.patch(&selection.resolve(&job))?)
        })
        .await
    }

    /// Returns the changes of an ended job with the patch of each file.
    pub async fn file_patches(&self, job: JobId) -> Result<(ChangeSet, Vec<Vec<u8>>), CallError> {
        self.use_record(&self.job(job).await?, |job| Ok(job.record.file_patches()?)).await
    }

    /// Returns the directory of the private checkout of a job, if it has one.
    pub fn checkout_directory(&self, job: JobId) -> Option<PathBuf> {
        JobCheckout::read(&self.files(job)).map(|checkout| checkout.directory)
    }

    /// Returns the file with the whole patch, once it exists.
    pub fn patch_file(&self, job: JobId) -> PathBuf {
        record(&self.files(job)).patch_file()
    }

    /// Restores files as they were before or after a job, merged with later edits. Refused while a job works in the worktree, and for
    /// changes in a private checkout that were never applied.
    pub async fn restore(
        &self,
        job: JobId,
        direction: Direction,
        selection: FileSelection,
    ) -> Result<Restored, CallError> {
        let worktrees = self.0.scheduler.worktrees();
        self.use_record(&self.job(job).await?, move |job| {
            let paths = selection.resolve(&job);
            let restoration = Restoration::new(direction, &paths);
            match &job.checkout {
                None => job.restore(&restoration, &worktrees),
                Some(checkout) => restore_applied(&job, checkout, &restoration, &worktrees),
            }
        })
        .await
    }

    /// Uses the record of a job on a blocking thread.
    pub(super) async fn use_record<T: Send + 'static>(
        &self,
        job: &Job,
        action: impl FnOnce(RecordedJob) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        let (id, has_ended, settings) = (job.id, job.completed_at.is_some(), Arc::clone(&self.0.settings));
        let (files, record) = (self.files(id), record(&self.files(id)));
        let used = tokio::task::spawn_blocking(move || match record.worktree()? {
            Some(worktree) => {
                let checkout = JobCheckout::read(&files).filter(|checkout| checkout.belongs_to(id));
                action(RecordedJob { job: id, has_ended, record, worktree, checkout, files, settings })
            }
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

/// Undoes or redoes the changes of a job that were applied from its private checkout.
fn restore_applied(
    job: &RecordedJob,
    checkout: &JobCheckout,
    restoration: &Restoration<'_>,
    worktrees: &Worktrees,
) -> Result<Restored, CallError> {
    let (from, to) = match restoration.direction {
        Direction::Undo => (ChangesState::Applied, ChangesState::Undone),
        Direction::Redo => (ChangesState::Undone, ChangesState::Applied),
    };
    // With paths, some files stay as they are, so the state does, too. They may have been applied by name.
    let is_whole = restoration.paths.is_empty();
    let may_be_applied = matches!(checkout.state, ChangesState::Open | ChangesState::Discarded);
    if checkout.state != from && (is_whole || (checkout.state != to && !may_be_applied)) {
        return Err(CallError::ChangesState { job: job.job, state: checkout.state });
    }
    let restoration = Restoration { target: Some(&checkout.source), ..*restoration };
    let restored = job.restore(&restoration, worktrees)?;
    if is_whole {
        job.store_checkout(&JobCheckout { state: to, ..checkout.clone() })?;
    }
    Ok(restored)
}
