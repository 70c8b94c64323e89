//! Restores files as they were before or after a job, with a three-way merge of later edits.
//!
//! Everything is computed before the first write. Conflicts are collected, and any of them means that nothing is written.

mod decision;
mod index;
mod merge;
mod plan;
mod write;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model::NotRecorded;
use model::exact_path::show_path;

use crate::error::ChangesError;
use crate::files::remove_file;
use crate::git::{GitProgram, GitSession};
use crate::layout::RecordLayout;
use crate::private_git;
use crate::repository::GitRepository;
use crate::restore::index::IndexUpdate;
use crate::state::{BeforeSnapshot, RecordedChanges};

const LIMIT: Duration = Duration::from_mins(5);

/// The state to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The state before the job.
    Undo,
    /// The state after the job.
    Redo,
}

/// The places that get restored files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination<'a> {
    /// The worktree.
    Worktree,
    /// The worktree and the index. Files whose content differs from the index before are refused.
    Index,
    /// The worktree, the index and a new commit on the current branch. Files with edits that are not committed are refused. Other staged
    /// changes stay staged. The commit is not signed, and no hook runs.
    Commit {
        /// The message of the commit.
        message: &'a str,
    },
}

/// A restoration of files.
#[derive(Debug, Clone)]
pub struct Restoration<'a> {
    /// The state to restore.
    pub direction: Direction,
    /// The files and directories to restore; all changed files if there are none.
    pub paths: &'a [PathBuf],
    /// The repository whose worktree is changed; by default the one in which the job worked.
    pub target: Option<&'a GitRepository>,
    /// The places that get the files.
    pub destination: Destination<'a>,
    /// Writes conflicts in the same lines into the file, between markers. Without it, or with another destination than the worktree, any
    /// conflict means that nothing is written.
    pub markers: bool,
    /// Writes nothing.
    pub dry_run: bool,
}

impl<'a> Restoration<'a> {
    /// Returns a restoration of some files, or of all files without any path.
    pub fn new(direction: Direction, paths: &'a [PathBuf]) -> Self {
        let (target, destination) = (None, Destination::Worktree);
        Self { direction, paths, target, destination, markers: false, dry_run: false }
    }
}

/// The restored files, sorted by path. A renamed file is listed with both paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// The files.
    pub files: Vec<RestoredFile>,
    /// The new commit.
    pub commit: Option<String>,
}

/// A restored file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredFile {
    /// The path in the worktree.
    pub path: PathBuf,
    /// The action.
    pub what: RestoreAction,
    /// The reason for which it was not restored.
    pub reason: Option<ConflictReason>,
}

/// The action that restored a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreAction {
    /// The file was written.
    Written,
    /// The file was deleted.
    Deleted,
    /// The change was merged with later edits.
    Merged,
    /// The file was written with conflict markers.
    Conflicted,
    /// The file was in this state already.
    AlreadySo,
    /// The file was left as it is, because its earlier content is not recorded.
    NotRestored,
}

impl RestoreAction {
    /// Returns the name of the action.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "restored",
            Self::Deleted => "deleted",
            Self::Merged => "merged",
            Self::Conflicted => "conflicted",
            Self::AlreadySo => "already_restored",
            Self::NotRestored => "not_restored",
        }
    }
}

/// A file that cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The path in the worktree.
    pub path: PathBuf,
    /// The reason.
    pub reason: ConflictReason,
}

/// The reason why a file cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConflictReason {
    /// A later edit is in the same lines.
    #[error("edited since in the same or adjacent lines")]
    SameLines,
    /// A later edit cannot be merged: the file would be deleted, is a link or is too large.
    #[error("edited since")]
    EditedSince,
    /// A binary file was edited later.
    #[error("binary file edited since")]
    BinaryEdited,
    /// The file was deleted later.
    #[error("deleted since")]
    DeletedSince,
    /// Another file was created later.
    #[error("created since")]
    CreatedSince,
    /// Something else is at the path, or in place of a directory above it.
    #[error("{kind} `{}` is in the way", show_path(path))]
    InTheWay {
        /// The path of the obstacle.
        path: PathBuf,
        /// The kind of the obstacle.
        kind: Obstacle,
    },
    /// The content was not recorded.
    #[error("{}", describe_not_recorded(*.0))]
    NotRecorded(NotRecorded),
    /// The commit of a submodule is not restored: the submodule is a repository of its own.
    #[error("is a submodule: run `git submodule update` to restore its commit")]
    Submodule,
    /// Another call changed the file at the same time, and the caller did not name it.
    #[error("another call changed it at the same time; name it to restore it nevertheless")]
    Shared,
    /// A commit would contain an edit of the user.
    #[error("has edits that are not committed")]
    Uncommitted,
    /// The index would contain an edit of the user.
    #[error("has edits that are not staged")]
    Unstaged,
    /// The file is marked as `assume-unchanged` or `skip-worktree`, or is outside of a sparse checkout.
    #[error("git does not compare it with the index")]
    NotCompared,
    /// A filter such as Git LFS produces the content in the index, and filters are not run.
    #[error("a filter has to produce its content in the index")]
    NeedsFilter,
    /// A file of the index or of the current commit is in place of a directory, or in the directory in place of the file.
    #[error("`{}` in the index or the current commit is in the way", show_path(path))]
    InTheIndex {
        /// The path of the file.
        path: PathBuf,
    },
    /// The current file cannot be read.
    #[error("cannot be read")]
    Unreadable,
}

/// A thing in the way of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// A directory with other files.
    Directory,
    /// A file or link in place of a directory.
    File,
    /// A FIFO, socket or device.
    Special,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Directory => "the directory",
            Self::File => "the file or link",
            Self::Special => "the special file",
        })
    }
}

fn describe_not_recorded(reason: NotRecorded) -> &'static str {
    match reason {
        NotRecorded::TooLarge => "not recorded because of its size",
        NotRecorded::Filtered => "not recorded because a filter produces its content",
        NotRecorded::Repository => "is a repository of its own",
        NotRecorded::Unreadable => "not recorded because it could not be read",
    }
}

/// A failure to restore files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Some files cannot be restored. Nothing was written.
    #[error("cannot restore {}", list_conflicts(.0))]
    Conflicts(Vec<Conflict>),
    /// A file could not be written, or changed at the same time.
    #[error("cannot restore `{}`; {}", show_path(path), describe_rollback(damaged))]
    Write {
        /// The path in the worktree.
        path: PathBuf,
        /// Files that could not be put back. Empty if the worktree is as it was before.
        damaged: Vec<PathBuf>,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The files are restored, but the index or the branch could not be written.
    #[error("the files are restored, but not all of them are staged or committed")]
    NotStaged {
        /// The cause.
        #[source]
        source: ChangesError,
    },
    /// The record cannot be read.
    #[error(transparent)]
    Changes(#[from] ChangesError),
}

impl ConflictReason {
    /// Returns whether the file cannot be restored in any state, because its content is not recorded.
    pub(crate) fn is_unrecorded(&self) -> bool {
        matches!(self, Self::NotRecorded(_) | Self::Submodule)
    }

    /// Returns whether the file can be restored in the worktree, but not in the index or in a commit.
    fn is_of_index(&self) -> bool {
        matches!(
            self,
            Self::Uncommitted
                | Self::Unstaged
                | Self::NotCompared
                | Self::NeedsFilter
                | Self::InTheIndex { .. }
        )
    }
}

impl RestoreError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Conflicts(conflicts) if conflicts.iter().any(|conflict| conflict.reason.is_of_index()) => {
                "no file was changed; commit or revert these edits, or change only the worktree".into()
            }
            Self::Conflicts(_) => {
                "no file was changed; revert the later edits of these files, or name the files to restore"
                    .into()
            }
            Self::Write { damaged, .. } if !damaged.is_empty() => {
                "check these files; their earlier content is beside them, in files that end with `.old`"
                    .into()
            }
            Self::Write { source, .. } => return regular_file::path_hint(source),
            Self::NotStaged { .. } => "run `git status`, and stage or commit the files".into(),
            Self::Changes(error) => return error.hint(),
        })
    }
}

fn list_conflicts(conflicts: &[Conflict]) -> String {
    let list: Vec<String> = conflicts
        .iter()
        .map(|conflict| format!("`{}`: {}", show_path(&conflict.path), conflict.reason))
        .collect();
    list.join(", ")
}

fn describe_rollback(damaged: &[PathBuf]) -> String {
    if damaged.is_empty() {
        return "no file was changed".into();
    }
    let list: Vec<String> = damaged.iter().map(|path| format!("`{}`", show_path(path))).collect();
    format!("these files could not be put back: {}", list.join(", "))
}

/// The selected files of a change set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selection<'a> {
    /// Their positions.
    pub(crate) files: &'a [usize],
    /// Is true if the caller named files or directories, and false for all files.
    pub(crate) is_named: bool,
}

/// Restores the selected files of a change set.
pub(crate) fn restore_files(
    layout: &RecordLayout,
    program: GitProgram,
    before: &BeforeSnapshot,
    changes: &RecordedChanges,
    selection: Selection<'_>,
    restoration: &Restoration<'_>,
) -> Result<Restored, RestoreError> {
    let repository = restoration.target.cloned().unwrap_or_else(|| {
        GitRepository::from_parts(before.worktree.clone(), before.git_dir.clone(), before.common_dir.clone())
    });
    let git = private_git::open(
        &layout.git_dir(),
        &repository,
        before.id_length,
        GitSession::start(program, LIMIT),
    );
    if !git.worktree.is_dir() {
        return Err(ChangesError::WorktreeMissing { path: git.worktree }.into());
    }
    let scratch = layout.scratch("restore");
    let journal = layout.restore_journal();
    write::remove_leftovers(&git.worktree, &journal)?;
    layout.remove_scratch();
    regular_file::create_private_directory(&scratch).map_err(ChangesError::file("create", &scratch))?;
    let plan = plan::prepare(&git, &layout.after_index(), &scratch, changes, selection, restoration)?;
    let (destination, dry_run) = (restoration.destination, restoration.dry_run);
    let update = index::prepare(&git, &repository, &scratch, &plan.entries, destination, dry_run)?;
    if dry_run {
        layout.remove_scratch();
        return Ok(Restored { files: plan.files, commit: None });
    }
    let result = write::write_files(&git.worktree, &plan.steps, &plan.directories, &journal);
    let result = result.and_then(|()| {
        update.map_or(Ok(None), IndexUpdate::finish).map_err(|source| RestoreError::NotStaged { source })
    });
    layout.remove_scratch();
    remove_file(&journal)?;
    Ok(Restored { files: plan.files, commit: result? })
}
