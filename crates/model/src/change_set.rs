//! The changes that a job made in a git repository.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::exact_path;

/// The changes between the start and the end of a job, in the worktree of one repository. Ignored files are not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeSet {
    /// The root of the worktree. The paths of the files are relative to it.
    #[serde(with = "exact_path")]
    pub worktree: PathBuf,
    /// The commit that was checked out when the job started. `None` in a repository without commits.
    pub base: Option<String>,
    /// The commit that was checked out when the job ended, if it is another one.
    pub head: Option<String>,
    /// The changed files, sorted by path.
    pub files: Vec<FileChange>,
}

/// The change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// The path in the worktree, after the change.
    #[serde(with = "exact_path")]
    pub path: PathBuf,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The size of the change.
    pub extent: ChangeExtent,
    /// Is true if another job wrote in this worktree at the same time and changed this file, too.
    #[serde(default)]
    pub shared: bool,
}

/// The kind of the change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ChangeKind {
    /// The file is new.
    Added,
    /// The content has changed, and maybe the mode.
    Modified,
    /// The file is gone.
    Deleted,
    /// The file was moved, and maybe modified.
    Renamed {
        /// The path before.
        #[serde(with = "exact_path")]
        from: PathBuf,
    },
    /// Only the mode has changed.
    ModeChanged,
    /// A file has become a link or a submodule, or the reverse.
    TypeChanged,
}

/// The size of the change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "content")]
pub enum ChangeExtent {
    /// The lines of a text.
    Text {
        /// The number of added lines.
        added: u64,
        /// The number of removed lines.
        removed: u64,
    },
    /// The sizes of a binary file.
    Binary {
        /// The size before, in bytes. `None` for a new file.
        before: Option<u64>,
        /// The size after, in bytes. `None` for a deleted file.
        after: Option<u64>,
    },
    /// The commits of a submodule.
    Submodule {
        /// The commit before.
        before: Option<String>,
        /// The commit after.
        after: Option<String>,
    },
    /// The content before or after was not recorded, so the change can be neither shown nor undone.
    NotRecorded {
        /// The reason.
        reason: NotRecorded,
    },
}

/// The reason why the content of a file was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotRecorded {
    /// The file, or all changed files together, are over the limit.
    TooLarge,
    /// A filter of the repository, such as Git LFS, produces the content.
    Filtered,
    /// The directory is a git repository of its own.
    Repository,
    /// The file could not be read.
    Unreadable,
}

impl ChangeSet {
    /// Returns the numbers of added and removed lines.
    pub fn lines(&self) -> (u64, u64) {
        self.files.iter().fold((0, 0), |(all_added, all_removed), file| match file.extent {
            ChangeExtent::Text { added, removed } => (all_added + added, all_removed + removed),
            _ => (all_added, all_removed),
        })
    }
}

/// The places that get the changes of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyTarget {
    /// The worktree.
    #[default]
    Worktree,
    /// The worktree and the index. Files whose content differs from the index before are refused.
    Index,
    /// The worktree, the index and a new commit on the current branch. Files with edits that are not committed are refused.
    Commit,
}
