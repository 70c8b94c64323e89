//! The worktrees in which active jobs write, to find the jobs that work in one of them at the same time.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use changes::ChangeRecord;
use model::JobId;

use super::record;
use crate::files::JobFiles;

/// The file with the jobs that worked in the worktree of a job at the same time.
const OVERLAPS: &str = "overlaps.json";

/// The worktrees in use.
#[derive(Debug, Default)]
pub(crate) struct Worktrees(Mutex<Vec<WorktreeUser>>);

#[derive(Debug)]
struct WorktreeUser {
    worktree: PathBuf,
    job: JobId,
    files: JobFiles,
}

/// A worktree in use by a job, until this is dropped.
#[derive(Debug)]
pub(crate) struct WorktreeGuard {
    worktrees: Arc<Worktrees>,
    job: JobId,
}

impl Drop for WorktreeGuard {
    fn drop(&mut self) {
        self.worktrees.lock().retain(|user| user.job != self.job);
    }
}

impl Worktrees {
    /// Marks a worktree as in use by a job, and stores which jobs overlap: each can end under another service.
    pub fn enter(self: &Arc<Self>, worktree: &Path, job: JobId, files: &JobFiles) -> WorktreeGuard {
        let mut users = self.lock();
        for user in users.iter().filter(|user| user.worktree == worktree && user.job != job) {
            add_overlap(&user.files, job);
            add_overlap(files, user.job);
        }
        users.push(WorktreeUser { worktree: worktree.to_owned(), job, files: files.clone() });
        WorktreeGuard { worktrees: Arc::clone(self), job }
    }

    /// Returns a job that uses a worktree.
    pub fn user(&self, worktree: &Path) -> Option<JobId> {
        self.lock().iter().find(|user| user.worktree == worktree).map(|user| user.job)
    }

    /// Returns the records of the jobs that overlap with a job, and whether each is active.
    pub(super) fn overlaps(&self, job: JobId, files: &JobFiles) -> Vec<(ChangeRecord, bool)> {
        let active: BTreeSet<JobId> = self.lock().iter().map(|user| user.job).collect();
        let others = read_overlaps(files).into_iter().filter(|other| *other != job);
        others.map(|other| (record(&files.of_job(other)), active.contains(&other))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<WorktreeUser>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_overlaps(files: &JobFiles) -> BTreeSet<JobId> {
    files.read(OVERLAPS).unwrap_or_default()
}

fn add_overlap(files: &JobFiles, job: JobId) {
    let mut overlaps = read_overlaps(files);
    let is_new = overlaps.insert(job);
    // A job that was claimed as it was inserted has no directory yet.
    let store = || files.create().and_then(|()| files.replace(OVERLAPS, &overlaps));
    if is_new && let Err(error) = store() {
        tracing::warn!(%job, %error, "cannot store that two jobs work in one worktree");
    }
}
