//! Replaces the stat data in a copied index by that of the copied files.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Stat;

use crate::checkout::copy::CopiedFiles;
use crate::entry::to_path;
use crate::index_file::{MODE_AT, STAT_LENGTH, visit_entries};

/// The positions of the times, the inode and the size in the stat data.
const TIMES: std::ops::Range<usize> = 0..16;
const MODIFIED: std::ops::Range<usize> = 8..16;
const INODE: std::ops::Range<usize> = 20..24;
const SIZE: std::ops::Range<usize> = 36..40;

/// Updates the bytes of an index that was written at `written`. Returns `None` if they cannot be parsed. An entry keeps the mode; one
/// whose file differs from the index, or may differ, loses its times.
pub(super) fn update_index(
    index: &mut [u8],
    id_length: usize,
    written: SystemTime,
    copied: &CopiedFiles,
) -> Option<()> {
    let written = written.duration_since(UNIX_EPOCH).ok()?;
    let written = join_time(u32::try_from(written.as_secs()).ok()?, written.subsec_nanos());
    let mut updates = Vec::new();
    visit_entries(index, id_length, |entry| {
        let file = copied.get(&to_path(entry.name));
        let clean = file.filter(|file| {
            let source = encode(&file.source);
            // A file that was modified in the same tick of the clock as the index can have other content.
            let is_racy = read_time(&entry.stat[MODIFIED]) >= written;
            !is_racy
                && [TIMES, INODE, SIZE].into_iter().all(|field| source[field.clone()] == entry.stat[field])
        });
        updates.push((entry.stat_at, clean.map_or([0; STAT_LENGTH], |file| encode(&file.copy))));
    })?;
    for (position, stat) in updates {
        index[position..position + MODE_AT].copy_from_slice(&stat[..MODE_AT]);
        index[position + MODE_AT + 4..position + STAT_LENGTH].copy_from_slice(&stat[MODE_AT + 4..]);
    }
    // Zeros in place of the checksum mean that there is none.
    let checksum = index.len().checked_sub(id_length / 2)?;
    index[checksum..].fill(0);
    Some(())
}

fn join_time(seconds: u32, nanoseconds: u32) -> u64 {
    u64::from(seconds) << 32 | u64::from(nanoseconds)
}

fn read_time(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |time, byte| time << 8 | u64::from(*byte))
}

/// Encodes the stat data like git, which keeps the lower 32 bits of each field.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::unnecessary_cast,
    reason = "the format has 32 bits; the types depend on the platform"
)]
fn encode(stat: &Stat) -> [u8; STAT_LENGTH] {
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
