//! The states of files before and after a job, as they are stored in a record.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use model::{ChangeSet, NotRecorded, exact_path};
use serde::{Deserialize, Serialize};

use crate::entry::Entry;

/// Identifies a version of a file without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    size: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn new(file: &Metadata) -> Self {
        Self {
            size: file.size(),
            inode: file.ino(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

/// The state of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileState {
    Absent,
    /// The content is in the private objects. A submodule has only its commit.
    Recorded(Entry),
    NotRecorded {
        reason: NotRecorded,
        stamp: Option<Stamp>,
    },
    /// A repository of its own, with the commit of its HEAD.
    Repository {
        commit: Option<String>,
    },
}

impl FileState {
    pub(crate) fn entry(&self) -> Option<&Entry> {
        if let Self::Recorded(entry) = self { Some(entry) } else { None }
    }

    /// Returns the reason why the content is unknown.
    pub(crate) fn not_recorded(&self) -> Option<NotRecorded> {
        match self {
            Self::Absent | Self::Recorded(_) => None,
            Self::NotRecorded { reason, .. } => Some(*reason),
            Self::Repository { .. } => Some(NotRecorded::Repository),
        }
    }
}

/// The states of a changed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sides {
    pub(crate) before: FileState,
    pub(crate) after: FileState,
}

/// The snapshot before a job. Files that are not listed here are in the state of the copied index.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BeforeSnapshot {
    #[serde(with = "exact_path")]
    pub(crate) worktree: PathBuf,
    #[serde(with = "exact_path")]
    pub(crate) git_dir: PathBuf,
    #[serde(with = "exact_path")]
    pub(crate) common_dir: PathBuf,
    /// The length of an object id.
    pub(crate) id_length: usize,
    /// The commit of HEAD.
    pub(crate) base: Option<String>,
    /// The start of the snapshot, in nanoseconds since 1970.
    pub(crate) started: u64,
    #[serde(with = "exact_path")]
    pub(crate) files: Vec<(PathBuf, FileState)>,
}

/// The result of a job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordedChanges {
    #[serde(flatten)]
    pub(crate) change_set: ChangeSet,
    /// The start and the end of each file in the patch, in the order of the files.
    pub(crate) patch_ranges: Vec<(usize, usize)>,
    /// All changed paths, with both paths of a renamed file.
    #[serde(with = "exact_path")]
    pub(crate) sides: Vec<(PathBuf, Sides)>,
    /// Directories that the job created.
    #[serde(with = "exact_path")]
    pub(crate) created_directories: Vec<PathBuf>,
    /// Directories that the job removed.
    #[serde(with = "exact_path")]
    pub(crate) removed_directories: Vec<PathBuf>,
}
