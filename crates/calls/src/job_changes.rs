//! Records the changes of jobs in git worktrees.
//!
//! The record of a job is a directory among its files (see `changes`), so another daemon can complete it. A snapshot that fails never
//! fails the job: the reason is stored, and becomes a note of the answer.

mod summary;
mod worktrees;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agents::doctor::Lookup;
use changes::{ChangeRecord, ChangesError, GitProgram, GitRepository};
use model::exact_path::show_path;
use model::{CallSpec, ChangeSet, JobId, error_chain};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::files::JobFiles;
use crate::settings::Settings;

pub use summary::{ChangedFile, Changes, ChangesState, Collision, PrivateCheckout};
pub(crate) use worktrees::{WorktreeGuard, Worktrees};

/// The time for the snapshot before a job, which delays the start of its agent.
const BEFORE_LIMIT: Duration = Duration::from_secs(10);
/// The time for the snapshot after a job.
const AFTER_LIMIT: Duration = Duration::from_secs(30);
/// The time beyond a limit after which a file system counts as hung.
const MARGIN: Duration = Duration::from_secs(2);
/// The search path of a daemon without `PATH`, like that of libc.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// The directory of the record in the directory of the job.
pub(crate) const RECORD: &str = "changes";
/// The file with the reason for which there is no snapshot from before the job.
const UNRECORDED: &str = "unrecorded.json";

/// The recorded changes of an ended job.
#[derive(Debug)]
pub(crate) enum JobChanges {
    Recorded(Box<ChangeSet>, Option<PrivateCheckout>),
    NotRecorded { reason: String },
}

/// Returns the record of a job.
pub(crate) fn record(files: &JobFiles) -> ChangeRecord {
    ChangeRecord::new(files.directory().join(RECORD))
}

/// Returns the patch of a job, which exists once its changes were recorded.
pub(crate) fn patch_file(files: &JobFiles) -> PathBuf {
    record(files).patch_file()
}

/// Finds git outside of all workspaces: it runs outside of any sandbox, and an agent may have planted another one.
pub(crate) fn find_git(lookup: &Lookup, worktree: &Path) -> Result<GitProgram, ChangesError> {
    let mut lookup = lookup.clone();
    let path = lookup.inherited.entry("PATH".to_owned()).or_default();
    if path.is_empty() {
        DEFAULT_PATH.clone_into(path);
    }
    let lookup = lookup.excluding_workspaces([&worktree.to_owned()]);
    let found = lookup.find_outside("git").map_err(io::Error::other);
    let found = found.and_then(|found| found.ok_or_else(|| io::ErrorKind::NotFound.into()));
    let program = found.map_err(|source| ChangesError::GitMissing { source })?;
    Ok(GitProgram { program, path: lookup.path_outside().into() })
}

/// Takes the snapshots of one job.
#[derive(Debug, Clone)]
pub(crate) struct ChangeRecorder {
    pub job: JobId,
    pub files: JobFiles,
    pub worktrees: Arc<Worktrees>,
    pub settings: Arc<Settings>,
}

/// The snapshot before a job, under way.
#[derive(Debug)]
pub(crate) struct PendingSnapshot {
    recorder: ChangeRecorder,
    task: JoinHandle<Option<WorktreeGuard>>,
}

impl PendingSnapshot {
    /// Waits for the snapshot. The guard marks the worktree as in use; there is none outside of a git repository.
    pub async fn finish(self) -> Option<WorktreeGuard> {
        let guard = timeout(BEFORE_LIMIT + MARGIN, self.task).await;
        if guard.is_err() {
            self.recorder.store_reason(&hung(BEFORE_LIMIT));
        }
        guard.ok()?.ok().flatten()
    }
}

impl ChangeRecorder {
    /// Starts the snapshot before the first run of a job, if the job may write. `was_started` tells whether there was an earlier run.
    pub fn start_before(self, call: &CallSpec, was_started: bool) -> Option<PendingSnapshot> {
        if !self.settings.record_changes || !call.requested_preset().writes() {
            return None;
        }
        let (cwd, recorder) = (call.cwd.clone(), self.clone());
        let task = spawn_blocking(move || self.take_before(&cwd, was_started));
        Some(PendingSnapshot { recorder, task })
    }

    fn take_before(&self, cwd: &Path, was_started: bool) -> Option<WorktreeGuard> {
        if !was_started {
            // An earlier attempt may have ended before its first run, long ago.
            let _ = std::fs::remove_dir_all(self.files.directory().join(RECORD));
        }
        let repository = match find_repository(cwd, &protected_paths(&self.settings)) {
            Ok(found) => found?,
            Err(reason) => {
                self.store_reason(&reason);
                return None;
            }
        };
        let guard = self.worktrees.enter(repository.worktree(), self.job, &self.files);
        // After the first run, the state before it is unknown, unless it is recorded.
        if !was_started
            && let Err(error) = find_git(&self.settings.lookup, repository.worktree())
                .and_then(|git| record(&self.files).with_git(git).begin(&repository, BEFORE_LIMIT))
        {
            self.store_reason(&error_chain(&error));
        }
        Some(guard)
    }

    /// Marks the worktree of a job as in use whose snapshot another service has taken.
    pub async fn resume(self) -> Option<WorktreeGuard> {
        let resumed = spawn_blocking(move || {
            let worktree = record(&self.files).worktree().ok()??;
            Some(self.worktrees.enter(&worktree, self.job, &self.files))
        });
        resumed.await.ok().flatten()
    }

    /// Takes the snapshot after the last run. Returns `None` if nothing was to be recorded.
    pub async fn take_after(self) -> Option<JobChanges> {
        if !self.has_record() {
            return None;
        }
        let task = spawn_blocking(move || self.take_after_blocking());
        match timeout(AFTER_LIMIT + MARGIN, task).await {
            Ok(changes) => changes.ok().flatten(),
            Err(_) => Some(JobChanges::NotRecorded { reason: hung(AFTER_LIMIT) }),
        }
    }

    fn take_after_blocking(&self) -> Option<JobChanges> {
        self.files.newest_run()?;
        if let Some(reason) = self.files.read::<String>(&format!("{RECORD}/{UNRECORDED}")) {
            return Some(JobChanges::NotRecorded { reason });
        }
        Some(match self.compare() {
            Ok(change_set) => JobChanges::Recorded(Box::new(change_set), None),
            Err(error) => JobChanges::NotRecorded { reason: error_chain(&error) },
        })
    }

    fn compare(&self) -> Result<ChangeSet, ChangesError> {
        let own = record(&self.files);
        let git = find_git(&self.settings.lookup, &own.worktree()?.unwrap_or_default())?;
        let overlaps = self.worktrees.overlaps(self.job, &self.files);
        for (other, _) in overlaps.iter().filter(|(_, is_active)| *is_active) {
            // Its changes so far: a file in both cannot be attributed.
            if let Err(error) = other.clone().with_git(git.clone()).finish(AFTER_LIMIT, &[]) {
                tracing::debug!(job = %self.job, %error, "cannot compare the changes with those of another job");
            }
        }
        let others: Vec<ChangeRecord> = overlaps.into_iter().map(|(other, _)| other).collect();
        own.with_git(git).finish(AFTER_LIMIT, &others)
    }

    /// Removes the files that only another snapshot would need, after the end of the job.
    pub async fn seal(self) {
        if !self.has_record() {
            return;
        }
        // A comparison with another job can hold the lock of the record for a long time.
        let record = record(&self.files);
        let sealed = spawn_blocking(move || record.seal()).await;
        if let Ok(Err(error)) = sealed {
            tracing::warn!(job = %self.job, %error, "cannot remove temporary files of the recorded changes");
        }
    }

    /// Returns whether the job has a record, or the reason for which it has none.
    fn has_record(&self) -> bool {
        self.files.directory().join(RECORD).exists()
    }

    /// Stores the reason for a missing snapshot, for the service that ends the job.
    fn store_reason(&self, reason: &str) {
        tracing::info!(job = %self.job, reason, "the changes of the job are not recorded");
        let directory = self.files.directory().join(RECORD);
        let stored = regular_file::create_private_directory(&directory)
            .and_then(|()| self.files.write(&format!("{RECORD}/{UNRECORDED}"), &reason));
        if let Err(error) = stored {
            tracing::warn!(job = %self.job, %error, "cannot store why the changes are not recorded");
        }
    }
}

/// Returns the paths that must not be part of a recorded worktree: a snapshot copies untracked files, such as keys.
pub(crate) fn protected_paths(settings: &Settings) -> Vec<PathBuf> {
    let Lookup { inherited, .. } = &settings.lookup;
    let home = inherited.get("HOME").map(PathBuf::from);
    home.into_iter().chain(settings.guarded.iter().cloned()).collect()
}

pub(crate) fn find_repository(cwd: &Path, protected: &[PathBuf]) -> Result<Option<GitRepository>, String> {
    let found = match GitRepository::find(cwd) {
        // A missing directory is reported by the launch.
        Err(ChangesError::File { .. }) | Ok(None) => return Ok(None),
        found => found.map_err(|error| error_chain(&error))?,
    };
    let Some(repository) = found else { return Ok(None) };
    let is_inside =
        |path: &&PathBuf| path.canonicalize().is_ok_and(|path| path.starts_with(repository.worktree()));
    match protected.iter().find(is_inside) {
        None => Ok(Some(repository)),
        Some(path) => Err(format!(
            "the repository `{}` contains `{}`",
            show_path(repository.worktree()),
            show_path(path)
        )),
    }
}

/// Returns the directory at which the globs of protected files start: the top of the git worktree, or the directory itself.
pub(crate) fn protected_root(cwd: &Path) -> PathBuf {
    let repository = GitRepository::find(cwd).ok().flatten();
    repository.map_or_else(|| cwd.to_owned(), |repository| repository.worktree().to_owned())
}

fn hung(limit: Duration) -> String {
    format!("the snapshot took more than {} s", limit.as_secs())
}
