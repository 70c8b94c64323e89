//! The loss of a database, under a program that has it open or while none has.
//!
//! `SQLite` keeps writing to a file that was removed or replaced: every call would be accepted, and none would be there after a
//! restart. So the open files are compared with those at their paths.

use std::fmt;

/// A store that is no longer the one that was opened. What is written to it now may be lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store `{place}` was lost: {loss}")]
pub struct StoreLoss {
    /// Which one.
    pub place: String,
    /// How.
    pub loss: Loss,
}

/// How a store was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// There is no file at its path.
    Removed,
    /// Another file is at its path.
    Replaced,
    /// The file was truncated.
    Truncated,
    /// The write-ahead log is gone, or another file is in its place: the newest records are lost.
    LogLost,
    /// The heartbeat that this program wrote is gone, so other records may be, too.
    HeartbeatLost,
    /// The heartbeat of the last owner is not in the file: it was emptied, replaced by an older one, or its log was removed.
    OutOfDate,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "its file was removed",
            Self::Replaced => "its file was replaced by another",
            Self::Truncated => "its file was truncated",
            Self::LogLost => "its write-ahead log (-wal) was removed or replaced",
            Self::HeartbeatLost => "its records were deleted",
            Self::OutOfDate => {
                "it was emptied or replaced by an older one, or its write-ahead log (-wal) was removed"
            }
        })
    }
}
