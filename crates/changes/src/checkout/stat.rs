//! Replaces the stat data in a copied index by that of the copied files.

use std::time::SystemTime;

use crate::checkout::copy::CopiedFiles;
use crate::entry::to_path;
use crate::index_file::{MODE_AT, STAT_LENGTH, visit_entries};
use crate::stat_data::{ModificationTime, encode, is_same};

/// Updates the bytes of an index that was written at `written`. Returns `None` if they cannot be parsed. An entry keeps the mode; one
/// whose file differs from the index, or may differ, loses its times.
pub(super) fn update_index(
    index: &mut [u8],
    id_length: usize,
    written: SystemTime,
    copied: &CopiedFiles,
) -> Option<()> {
    let written = ModificationTime::new(written)?;
    let mut updates = Vec::new();
    visit_entries(index, id_length, |entry| {
        let file = copied.get(&to_path(entry.name));
        let clean = file.filter(|file| {
            // A file that was modified in the same tick of the clock as the index can have other content.
            ModificationTime::read(entry.stat) < written && is_same(entry.stat, &file.source)
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
