//! The record of the changes of one job.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use model::{ChangeKind, ChangeSet};

use crate::error::ChangesError;
use crate::files::{lock, read_json, remove_directory, remove_file, replace_file};
use crate::git::{GitProgram, GitSession, KEPT_OBJECTS};
use crate::kept_objects::link_objects;
use crate::layout::RecordLayout;
use crate::publish::{BranchRequest, delete_branch, is_checked_out, publish_branch};
use crate::repository::GitRepository;
use crate::restore::{Restoration, RestoreError, Restored, Selection, restore_files};
use crate::selection::select_files;
use crate::state::{BeforeSnapshot, RecordedChanges};
use crate::{after, before, private_git};

/// The record of the changes of one job, in a directory of its own. Survives the process: every step works from the files
/// alone, and a lock serializes the steps of several processes.
#[derive(Debug, Clone)]
pub struct ChangeRecord {
    layout: RecordLayout,
    git: Option<GitProgram>,
}

impl ChangeRecord {
    /// Names the directory of the record. Creates nothing.
    pub fn new(directory: PathBuf) -> Self {
        Self { layout: RecordLayout { directory }, git: None }
    }

    /// Sets the git with which snapshots are taken and files are restored. Without one, both fail.
    #[must_use]
    pub fn with_git(self, git: GitProgram) -> Self {
        Self { git: Some(git), ..self }
    }

    /// Takes the snapshot before the first run of the job. Does nothing if a complete one exists: the job was then started
    /// by another daemon. After an error there is none, also if the time is up.
    pub fn begin(&self, repository: &GitRepository, limit: Duration) -> Result<(), ChangesError> {
        let (directory, session) = (&self.layout.directory, self.start_session(limit)?);
        regular_file::create_private_directory(directory).map_err(ChangesError::file("create", directory))?;
        let _lock = lock(&self.layout.lock())?;
        match self.read_before()? {
            Some(_) => Ok(()),
            None => before::take_snapshot(&self.layout, repository, session)
                .inspect_err(|_| before::remove_files(&self.layout)),
        }
    }

    /// Continues the record of an earlier job in the same worktree, so that the change set contains the changes of both. Does nothing if
    /// a complete snapshot exists, or if the earlier job has none. The earlier record stays as it is.
    pub fn continue_from(&self, earlier: &Self) -> Result<(), ChangesError> {
        let directory = &self.layout.directory;
        regular_file::create_private_directory(directory).map_err(ChangesError::file("create", directory))?;
        let _lock = lock(&self.layout.lock())?;
        let _earlier_lock = lock(&earlier.layout.lock())?;
        match (self.read_before()?, earlier.read_before()?) {
            (None, Some(_)) => before::copy_snapshot(&earlier.layout, &self.layout)
                .inspect_err(|_| before::remove_files(&self.layout)),
            _ => Ok(()),
        }
    }

    /// Keeps the objects of a repository from which the worktree of the job borrows, so that the user can rewrite and prune the history
    /// before [`finish`](Self::finish) and [`publish`](Self::publish). Needs a snapshot from before the job, and lasts until
    /// [`seal`](Self::seal). Does nothing on a file system without hard links.
    pub fn keep_objects(&self, repository: &GitRepository) -> Result<(), ChangesError> {
        let _lock = lock(&self.layout.lock())?;
        link_objects(repository, &self.layout.git_dir().join(KEPT_OBJECTS));
        Ok(())
    }

    /// Returns the worktree, or `None` before [`begin`](Self::begin).
    pub fn worktree(&self) -> Result<Option<PathBuf>, ChangesError> {
        Ok(self.read_before()?.map(|before| before.worktree))
    }

    /// Returns the file with the patch, which exists after [`finish`](Self::finish).
    pub fn patch_file(&self) -> PathBuf {
        self.layout.patch()
    }

    /// Takes the snapshot after a run, and writes the change set and the patch. Replaces the result of an earlier run. Files that
    /// are in the change set of one of the other records, too, are marked as shared.
    pub fn finish(&self, limit: Duration, others: &[Self]) -> Result<ChangeSet, ChangesError> {
        let directory = || self.layout.directory.clone();
        if !self.layout.before().exists() {
            return Err(ChangesError::NotStarted { directory: directory() });
        }
        let session = self.start_session(limit)?;
        let _lock = lock(&self.layout.lock())?;
        let before =
            self.read_before()?.ok_or_else(|| ChangesError::NotStarted { directory: directory() })?;
        if self.layout.sealed().exists() {
            return Ok(self.read_finished()?.change_set);
        }
        let others = others.iter().filter_map(|other| other.read().ok()?);
        let shared = others.flat_map(|other| other.files).flat_map(|file| match file.kind {
            ChangeKind::Renamed { from } => vec![from, file.path],
            _ => vec![file.path],
        });
        after::take_snapshot(&self.layout, before, &shared.collect(), session)
    }

    /// Removes the copy of the user's index, which has the size of the repository, and the kept objects. They serve only for
    /// [`finish`](Self::finish), later calls of which return the recorded changes, and [`publish`](Self::publish).
    pub fn seal(&self) -> Result<(), ChangesError> {
        if !self.layout.changes().exists() {
            return Ok(());
        }
        let _lock = lock(&self.layout.lock())?;
        replace_file(&self.layout.sealed(), b"")?;
        remove_file(&self.layout.user_index())?;
        remove_directory(&self.layout.git_dir().join(KEPT_OBJECTS))?;
        private_git::remove_shared_indexes(&self.layout.git_dir())
    }

    /// Returns the change set, or `None` before the first [`finish`](Self::finish).
    pub fn read(&self) -> Result<Option<ChangeSet>, ChangesError> {
        Ok(self.read_changes()?.map(|changes| changes.change_set))
    }

    /// Returns the change set with some of its files. Selects files like [`patch`](Self::patch).
    pub fn read_selected(&self, paths: &[PathBuf]) -> Result<ChangeSet, ChangesError> {
        let mut change_set = self.read_finished()?.change_set;
        let selected = select_files(&change_set, paths)?;
        change_set.files = selected.into_iter().map(|position| change_set.files[position].clone()).collect();
        Ok(change_set)
    }

    /// Returns the patch of some files, or of all files without any path: in the format of git, with renames and binary
    /// data. A path matches a file or everything below a directory. Files that were not recorded have no patch.
    pub fn patch(&self, paths: &[PathBuf]) -> Result<Vec<u8>, ChangesError> {
        let changes = self.read_finished()?;
        let selected = select_files(&changes.change_set, paths)?;
        Ok(self.read_sections(&changes, &selected)?.concat())
    }

    /// Returns the change set with the patch of each file, in the order of the files.
    pub fn file_patches(&self) -> Result<(ChangeSet, Vec<Vec<u8>>), ChangesError> {
        let changes = self.read_finished()?;
        let all: Vec<usize> = (0..changes.change_set.files.len()).collect();
        let sections = self.read_sections(&changes, &all)?;
        Ok((changes.change_set, sections))
    }

    fn read_sections(
        &self,
        changes: &RecordedChanges,
        selected: &[usize],
    ) -> Result<Vec<Vec<u8>>, ChangesError> {
        let file = self.layout.patch();
        let patch = fs::read(&file).map_err(ChangesError::file("read", &file))?;
        let section = |position: &usize| {
            let (start, end) = changes.patch_ranges.get(*position)?;
            Some(patch.get(*start..*end)?.to_vec())
        };
        let sections = selected.iter().map(section).collect::<Option<_>>();
        sections.ok_or(ChangesError::UnexpectedOutput { command: "diff-tree" })
    }

    /// Restores the files as they were before or after the job, and merges later edits. Writes nothing if there is a
    /// conflict. Selects files like [`patch`](Self::patch).
    pub fn restore(&self, restoration: &Restoration<'_>) -> Result<Restored, RestoreError> {
        let paths = restoration.paths;
        let (changes, git) = (self.read_finished()?, self.git()?);
        let _lock = lock(&self.layout.lock())?;
        let started = || ChangesError::NotStarted { directory: self.layout.directory.clone() };
        let before = self.read_before()?.ok_or_else(started)?;
        let selected = select_files(&changes.change_set, paths)?;
        let selection = Selection { files: &selected, is_named: !paths.is_empty() };
        restore_files(&self.layout, git, &before, &changes, selection, restoration)
    }

    /// Publishes the state after the job as a branch. Needs the copy of the index, which [`seal`](Self::seal) removes. Returns its commit,
    /// or `None` if the job changed nothing.
    pub fn publish(
        &self,
        request: BranchRequest<'_>,
        limit: Duration,
    ) -> Result<Option<String>, ChangesError> {
        let (changes, session) = (self.read_finished()?, self.start_session(limit)?);
        let _lock = lock(&self.layout.lock())?;
        let started = || ChangesError::NotStarted { directory: self.layout.directory.clone() };
        let before = self.read_before()?.ok_or_else(started)?;
        publish_branch(&self.layout, &before, &changes, request, session)
    }

    /// Deletes a branch of [`publish`](Self::publish), unless it was moved since or is checked out.
    pub fn delete_branch(
        &self,
        repository: &GitRepository,
        name: &str,
        commit: &str,
        limit: Duration,
    ) -> Result<(), ChangesError> {
        if is_checked_out(repository, name) {
            return Err(ChangesError::BranchInUse { name: name.to_owned() });
        }
        let session = self.start_session(limit)?;
        delete_branch(
            &private_git::open(repository.common_dir(), repository, commit.len(), session),
            name,
            commit,
        )
    }

    fn git(&self) -> Result<GitProgram, ChangesError> {
        self.git.clone().ok_or_else(|| ChangesError::GitMissing { source: ErrorKind::NotFound.into() })
    }

    fn start_session(&self, limit: Duration) -> Result<GitSession, ChangesError> {
        Ok(GitSession::start(self.git()?, limit))
    }

    fn read_before(&self) -> Result<Option<BeforeSnapshot>, ChangesError> {
        read_json(&self.layout.before())
    }

    fn read_changes(&self) -> Result<Option<RecordedChanges>, ChangesError> {
        read_json(&self.layout.changes())
    }

    fn read_finished(&self) -> Result<RecordedChanges, ChangesError> {
        let directory = || self.layout.directory.clone();
        self.read_changes()?.ok_or_else(|| ChangesError::NotFinished { directory: directory() })
    }
}
