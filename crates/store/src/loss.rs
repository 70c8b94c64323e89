//! The loss of a database file, while it is open or while no daemon runs.
//!
//! `SQLite` keeps writing to a file that was removed or replaced: every call would be accepted, and none would exist
//! after a restart. The open files are therefore compared with the files at their paths.

use std::fmt;

/// Reports that the store is no longer the opened one. New writes may be lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store `{location}` was lost: {loss}")]
pub struct StoreLoss {
    /// The location of the store.
    pub location: String,
    /// The kind of loss.
    pub loss: Loss,
}

/// The kinds of loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The file was removed.
    Removed,
    /// The file was replaced by another.
    Replaced,
    /// The file was truncated.
    Truncated,
    /// The write-ahead log was removed or replaced: the newest records are lost.
    LogLost,
    /// A record that this process wrote is missing, so others may be missing, too.
    RecordsDeleted,
    /// A table or a column is missing.
    TablesDropped,
    /// The heartbeat of the last owner is missing: the file was emptied or replaced by an older one, or its log was
    /// removed.
    OutOfDate,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "its file was removed",
            Self::Replaced => "its file was replaced by another",
            Self::Truncated => "its file was truncated",
            Self::LogLost => "its write-ahead log (-wal) was removed or replaced",
            Self::RecordsDeleted => "its records were deleted",
            Self::TablesDropped => "its tables were dropped or altered",
            Self::OutOfDate => {
                "it was emptied or replaced by an older one, or its write-ahead log (-wal) was removed"
            }
        })
    }
}
