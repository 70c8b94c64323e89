//! The errors of recording and reading changes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::exact_path::show_path;

/// A failure to record or to read the changes of a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangesError {
    /// There is no `git` program.
    #[error("cannot start `git`")]
    GitMissing {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A git command exited with an error.
    #[error("`git {command}` failed in `{}`: {message}", show_path(worktree))]
    GitFailed {
        /// The subcommand.
        command: &'static str,
        /// The worktree.
        worktree: PathBuf,
        /// The messages of git, in one line.
        message: String,
    },
    /// A step took too long, and its git command was killed. A FIFO in place of a `.gitignore` has this effect, too.
    #[error("git needs more than {} in `{}`", show_seconds(*limit), show_path(worktree))]
    TimedOut {
        /// The worktree.
        worktree: PathBuf,
        /// The limit.
        limit: Duration,
    },
    /// A git command printed unexpected data.
    #[error("cannot parse the output of `git {command}`")]
    UnexpectedOutput {
        /// The subcommand.
        command: &'static str,
    },
    /// A file operation failed.
    #[error("cannot {action} `{}`", show_path(path))]
    File {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file of the record is damaged.
    #[error("the record `{}` is damaged", show_path(path))]
    DamagedRecord {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A `.git` file names a directory that is not a git directory.
    #[error("`{}` does not lead to a git directory", show_path(path))]
    BrokenRepository {
        /// The `.git` file.
        path: PathBuf,
    },
    /// The worktree is gone.
    #[error("the worktree `{}` does not exist", show_path(path))]
    WorktreeMissing {
        /// The worktree.
        path: PathBuf,
    },
    /// There is no snapshot from before the job.
    #[error("`{}` has no snapshot from before the job", show_path(directory))]
    NotStarted {
        /// The directory of the record.
        directory: PathBuf,
    },
    /// There is no change set yet.
    #[error("`{}` has no change set", show_path(directory))]
    NotFinished {
        /// The directory of the record.
        directory: PathBuf,
    },
    /// The commits of a job are too large for a branch.
    #[error("the commits of the job have {} MB, more than {} MB", bytes >> 20, limit >> 20)]
    CommitsTooLarge {
        /// Their size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The commit on which a job worked was pruned.
    #[error("the commit {commit} on which the job worked was removed from the repository")]
    BaseMissing {
        /// The commit.
        commit: String,
    },
    /// The name of a new branch is in use.
    #[error("the branch `{name}` exists already")]
    BranchExists {
        /// The name.
        name: String,
    },
    /// Another process has locked the index of the user, or left its lock behind.
    #[error("the index is locked by `{}`", show_path(path))]
    IndexLocked {
        /// The lock.
        path: PathBuf,
    },
    /// A commit would become part of an operation of the user.
    #[error("a {operation} is in progress in `{}`", show_path(worktree))]
    OperationInProgress {
        /// The operation.
        operation: &'static str,
        /// The worktree.
        worktree: PathBuf,
    },
    /// A branch is checked out in a worktree of the user.
    #[error("the branch `{name}` is checked out")]
    BranchInUse {
        /// The name.
        name: String,
    },
    /// A selected path is not part of the change set.
    #[error("no change of `{}` is recorded", show_path(path))]
    UnknownPath {
        /// The path.
        path: PathBuf,
    },
}

impl ChangesError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::GitMissing { .. } => "install git 2.39 or newer, and put it on the PATH".into(),
            Self::GitFailed { worktree, .. } => {
                format!("run `git status` in `{}` and fix the problem that it reports", show_path(worktree))
            }
            Self::TimedOut { worktree, .. } => {
                format!(
                    "run `git status` in `{}`; make it fast, or fix the file that blocks it",
                    show_path(worktree)
                )
            }
            Self::UnexpectedOutput { .. } => "upgrade git to 2.39 or newer".into(),
            Self::File { source, .. } => return regular_file::path_hint(source),
            Self::DamagedRecord { path, .. } => {
                format!("remove `{}`; the changes of this job can no longer be undone", show_path(path))
            }
            Self::BrokenRepository { path } => format!("fix or remove `{}`", show_path(path)),
            Self::WorktreeMissing { path } => format!("restore the directory `{}`", show_path(path)),
            Self::NotStarted { .. } => "run the job in a git repository".into(),
            Self::BaseMissing { .. } => "apply the changes, or discard them".into(),
            Self::BranchInUse { .. } => "switch to another branch first".into(),
            Self::BranchExists { name } => format!("rename it with `git branch -m {name} NEW`"),
            Self::CommitsTooLarge { .. } => "fetch them from the checkout with `git fetch`".into(),
            Self::IndexLocked { path } => {
                format!("wait for the other git command, or remove `{}` if there is none", show_path(path))
            }
            Self::OperationInProgress { operation, .. } => {
                format!("finish or abort the {operation}, or apply the changes without a commit")
            }
            Self::NotFinished { .. } => "wait until the job has finished".into(),
            Self::UnknownPath { .. } => {
                "select a path from the list of changed files; ignored files are not recorded".into()
            }
        })
    }

    /// Returns whether a path of the caller caused the error.
    pub fn is_bad_path(&self) -> bool {
        matches!(self, Self::UnknownPath { .. })
    }

    /// Returns a closure that adds the operation and the path to an I/O error.
    pub(crate) fn file<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source: source.into() }
    }
}

fn show_seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}
