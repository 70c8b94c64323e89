//! The time of the last change of a file, by a clock that no agent can set.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The ctime of a file, in seconds and nanoseconds: set when the file is created, changed or moved.
pub(crate) type ChangeTime = (i64, i64);

/// Returns the ctime of a file.
pub(crate) fn change_time(found: &Metadata) -> ChangeTime {
    (found.ctime(), found.ctime_nsec())
}
