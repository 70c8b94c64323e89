//! The stat data of files, as an index stores them.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

use crate::index_file::STAT_LENGTH;

/// The positions of the times, the inode and the size in the stat data.
const TIMES: Range<usize> = 0..16;
const MODIFIED: Range<usize> = 8..16;
const INODE: Range<usize> = 20..24;
const SIZE: Range<usize> = 36..40;

/// A time of the last modification, in the precision of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModificationTime {
    pub(crate) seconds: u32,
    nanoseconds: u32,
}

impl ModificationTime {
    /// Returns `None` for a time that an index cannot express.
    pub(crate) fn new(time: SystemTime) -> Option<Self> {
        let time = time.duration_since(UNIX_EPOCH).ok()?;
        Some(Self { seconds: u32::try_from(time.as_secs()).ok()?, nanoseconds: time.subsec_nanos() })
    }

    /// Reads the time from the stat data of an entry.
    pub(crate) fn read(stat: &[u8]) -> Self {
        let read = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let (seconds, nanoseconds) = stat[MODIFIED].split_at(4);
        Self { seconds: read(seconds), nanoseconds: read(nanoseconds) }
    }
}

/// Returns whether a file has the times, the inode and the size of an entry.
pub(crate) fn is_same(stat: &[u8], file: &Stat) -> bool {
    let file = encode(file);
    [TIMES, INODE, SIZE].into_iter().all(|field| file[field.clone()] == stat[field])
}

/// Encodes the stat data like git, which keeps the lower 32 bits of each field.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::unnecessary_cast,
    reason = "the format has 32 bits; the types depend on the platform"
)]
pub(crate) fn encode(stat: &Stat) -> [u8; STAT_LENGTH] {
    let fields = [
        stat.st_ctime as u32,
        stat.st_ctime_nsec as u32,
        stat.st_mtime as u32,
        stat.st_mtime_nsec as u32,
        stat.st_dev as u32,
        stat.st_ino as u32,
        0,
        stat.st_uid as u32,
        stat.st_gid as u32,
        stat.st_size as u32,
    ];
    let mut bytes = [0; STAT_LENGTH];
    for (field, value) in bytes.chunks_exact_mut(4).zip(fields) {
        field.copy_from_slice(&value.to_be_bytes());
    }
    bytes
}
