//! The changes in private checkouts: list, apply, discard.

use std::path::PathBuf;
use std::sync::Arc;

use changes::{Destination, Direction, Restoration, Restored};
use model::exact_path::show_path;
use model::{ApplyTarget, JobId};

use super::JobService;
use super::changes::{FileSelection, RecordedJob};
use crate::checkouts::{self, JobCheckout};
use crate::error::CallError;
use crate::job_changes::{ChangesState, Worktrees, record};
use crate::locks::{LockGuard, LockKey};

/// A request to apply the changes of a job.
#[derive(Debug, Clone, Default)]
pub struct ApplyRequest {
    /// The files; all of them without any path.
    pub files: FileSelection,
    /// The places that get the changes.
    pub target: ApplyTarget,
    /// Writes conflicts in the same lines into the files, between markers. Without it, or with another target than the worktree, any
    /// conflict means that nothing is written.
    pub markers: bool,
    /// Writes nothing.
    pub dry_run: bool,
}

/// Changes that were applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The root of the changed worktree.
    pub worktree: PathBuf,
    /// The files, and the new commit.
    pub restored: Restored,
    /// The state of the changes. They stay open if only some files were applied.
    pub state: ChangesState,
}

/// Changes that are neither applied nor discarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenChanges {
    /// The job.
    pub job: JobId,
    /// Is false while it is running.
    pub has_ended: bool,
    /// The worktree of the user.
    pub source: PathBuf,
    /// The private checkout.
    pub directory: PathBuf,
    /// The branch with the changes.
    pub branch: Option<String>,
    /// The numbers of changed files, added lines and removed lines, once they are recorded.
    pub extent: Option<(u64, u64, u64)>,
}

impl JobService {
    /// Merges the changes of an ended job three-way into the worktree of the user. After all of them, the checkout and its branch are
    /// removed; they can be undone like those of a job without a checkout.
    pub async fn apply(&self, job: JobId, request: ApplyRequest) -> Result<Applied, CallError> {
        let guard = self.lock_checkout(job).await?;
        let turn = self.wait_for_turn(job).await;
        let worktrees = self.0.scheduler.worktrees();
        let job = self.job(job).await?;
        let message = checkouts::commit_message(&job);
        self.use_record(&job, move |job| {
            let _guards = (guard, turn);
            apply(&job, request, &message, &worktrees)
        })
        .await
    }

    /// Removes the checkout and the branch of an ended job. The patch stays.
    pub async fn discard(&self, job: JobId) -> Result<(), CallError> {
        let guard = self.lock_checkout(job).await?;
        self.use_record(&self.job(job).await?, move |job| {
            let _guard = guard;
            let checkout = open_checkout(&job)?;
            close_checkout(&job, checkout, ChangesState::Discarded)
        })
        .await
    }

    /// Returns whether the changes of a job in a private checkout were applied.
    pub async fn are_changes_applied(&self, job: JobId) -> Result<bool, CallError> {
        let checkout = self.answer(job).await?.changes.and_then(|changes| changes.checkout);
        Ok(checkout.is_some_and(|checkout| checkout.state == ChangesState::Applied))
    }

    /// Lists the changes that are neither applied nor discarded, the oldest first.
    pub async fn open_changes(&self) -> Result<Vec<OpenChanges>, CallError> {
        let (settings, service) = (Arc::clone(&self.0.settings), self.clone());
        let listed = tokio::task::spawn_blocking(move || {
            let found = checkouts::list(&settings)?.into_iter().flatten();
            let open = found.filter(|checkout| checkout.state == ChangesState::Open);
            Ok(open.map(|checkout| service.describe_open(checkout)).collect::<Vec<_>>())
        });
        let listed = listed.await.map_err(std::io::Error::other).and_then(|listed| listed);
        let directory = &self.0.settings.state;
        let mut listed =
            listed.map_err(|source| CallError::State { directory: directory.clone(), source })?;
        for changes in &mut listed {
            changes.has_ended = self.job(changes.job).await.is_ok_and(|job| job.completed_at.is_some());
        }
        Ok(listed)
    }

    fn describe_open(&self, checkout: JobCheckout) -> OpenChanges {
        let changes = record(&self.files(checkout.job)).read().ok().flatten();
        OpenChanges {
            job: checkout.job,
            has_ended: false,
            source: checkout.source.worktree().to_owned(),
            branch: checkout.branch.filter(|branch| branch.commit.is_some()).map(|branch| branch.name),
            directory: checkout.directory,
            extent: changes.map(|changes| {
                let (added, removed) = changes.lines();
                (changes.files.len() as u64, added, removed)
            }),
        }
    }

    /// Returns the disk space of the private checkout of a job in bytes, without borrowed objects. `None` if there is no checkout.
    pub async fn checkout_bytes(&self, job: JobId) -> Option<u64> {
        let files = self.files(job);
        let measured = tokio::task::spawn_blocking(move || {
            let checkout = JobCheckout::read(&files)?;
            checkout.directory.exists().then(|| checkout.disk_use())
        });
        measured.await.ok().flatten()
    }

    /// Waits until no other changes are applied to the worktree of the user: git locks its index.
    async fn wait_for_turn(&self, job: JobId) -> Option<LockGuard> {
        let checkout = JobCheckout::read(&self.files(job))?;
        // Not the worktree itself, which a running job can hold for long.
        let index = checkout.source.git_dir().join("index");
        Some(self.0.scheduler.locks().acquire(LockKey::Directory(index), job).await)
    }

    /// Excludes other uses of the checkout of an ended job.
    async fn lock_checkout(&self, job: JobId) -> Result<Option<LockGuard>, CallError> {
        let record = self.job(job).await?;
        if record.completed_at.is_none() {
            return Err(CallError::StillRunning { job });
        }
        let Some(checkout) = JobCheckout::read(&self.files(job)) else {
            return Err(CallError::NoCheckout { job });
        };
        let (key, locks) = (LockKey::Directory(checkout.directory.clone()), self.0.scheduler.locks());
        match locks.try_acquire(key.clone(), job) {
            Some(guard) => Ok(Some(guard)),
            None => Err(CallError::WorktreeInUse {
                worktree: checkout.directory,
                user: locks.holder(&key).unwrap_or(job),
            }),
        }
    }
}

/// Returns the checkout of a job whose changes are neither applied nor discarded.
fn open_checkout(job: &RecordedJob) -> Result<&JobCheckout, CallError> {
    let id = job.job;
    let checkout = job.checkout.as_ref().ok_or(CallError::NoCheckout { job: id })?;
    match (checkout.state, checkout.successor()) {
        (_, Some(by)) => Err(CallError::Continued { job: id, by }),
        (ChangesState::Open, None) => Ok(checkout),
        (state, None) => Err(CallError::ChangesState { job: id, state }),
    }
}

fn apply(
    job: &RecordedJob,
    request: ApplyRequest,
    message: &str,
    worktrees: &Worktrees,
) -> Result<Applied, CallError> {
    let checkout = open_checkout(job)?;
    let ApplyRequest { files, target, markers, dry_run } = request;
    let paths = files.resolve(job);
    let restoration = Restoration {
        target: Some(&checkout.source),
        destination: match target {
            ApplyTarget::Worktree => Destination::Worktree,
            ApplyTarget::Index => Destination::Index,
            ApplyTarget::Commit => Destination::Commit { message },
        },
        markers,
        dry_run,
        ..Restoration::new(Direction::Redo, &paths)
    };
    let restored = job.restore(&restoration, worktrees)?;
    let worktree = checkout.source.worktree().to_owned();
    if dry_run || !paths.is_empty() {
        return Ok(Applied { worktree, restored, state: ChangesState::Open });
    }
    // Files without a recorded content exist only in the checkout.
    if restored.files.iter().any(|file| file.reason.is_some()) {
        return Ok(Applied { worktree, restored, state: ChangesState::Open });
    }
    close_checkout(job, checkout, ChangesState::Applied)?;
    Ok(Applied { worktree, restored, state: ChangesState::Applied })
}

/// Removes the checkout and its branch. A crash in between leaves a checkout that is no longer open, which the janitor removes.
fn close_checkout(job: &RecordedJob, checkout: &JobCheckout, state: ChangesState) -> Result<(), CallError> {
    job.store_checkout(&JobCheckout { state, ..checkout.clone() })?;
    job.record.seal()?;
    checkouts::delete_branch(checkout, &job.files, &job.settings);
    checkout.remove().map_err(|source| {
        let path = show_path(&checkout.directory);
        let source = std::io::Error::new(source.kind(), format!("cannot remove `{path}`: {source}"));
        CallError::Files { job: job.job, source }
    })
}
