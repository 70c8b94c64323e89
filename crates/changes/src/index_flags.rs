//! Finds index entries that git does not compare with the worktree: `assume-unchanged`, `skip-worktree`, and the directories
//! of a sparse index. A job can change such files, but no git command reports it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::entry::to_path;

const ASSUME_UNCHANGED: u16 = 0x8000;
const EXTENDED: u16 = 0x4000;
const SKIP_WORKTREE: u16 = 0x4000;
const DIRECTORY: u32 = 0o040_000;

/// The entries without a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexFlags {
    pub(crate) files: BTreeSet<PathBuf>,
    /// Directories of a sparse index. They stand for all files below.
    pub(crate) directories: BTreeSet<PathBuf>,
}

impl IndexFlags {
    /// Scans the bytes of an index. An unknown version has no flags: git itself reports the error.
    pub(crate) fn scan(&mut self, index: &[u8], id_length: usize) {
        let _ = self.try_scan(index, id_length);
    }

    /// Returns whether git does not compare a path.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        let is_below = || path.ancestors().skip(1).any(|above| self.directories.contains(above));
        self.files.contains(path) || (!self.directories.is_empty() && is_below())
    }

    fn try_scan(&mut self, index: &[u8], id_length: usize) -> Option<()> {
        let mut header = Bytes(index);
        let is_index = header.take(4)? == b"DIRC";
        let (version, count) = (header.take_u32()?, header.take_u32()?);
        if !is_index || !(2..=4).contains(&version) {
            return None;
        }
        let (mut rest, mut name) = (header.0, Vec::new());
        for _ in 0..count {
            let mut entry = Bytes(rest);
            let mode = u32::from_be_bytes(entry.take(40)?[24..28].try_into().ok()?);
            entry.take(id_length / 2)?;
            let flags = entry.take_u16()?;
            let extended = if flags & EXTENDED == 0 { 0 } else { entry.take_u16()? };
            let suffix = if version == 4 {
                let kept = name.len().checked_sub(entry.take_varint()?)?;
                name.truncate(kept);
                entry.take_name()?
            } else {
                name.clear();
                let suffix = entry.take_name()?;
                // The entry is padded to a multiple of 8 bytes. The terminating NUL is part of the padding.
                let length = rest.len() - entry.0.len();
                entry.take(length.next_multiple_of(8) - length)?;
                suffix
            };
            rest = entry.0;
            let is_flagged = flags & ASSUME_UNCHANGED != 0 || extended & SKIP_WORKTREE != 0;
            if version == 4 || is_flagged {
                name.extend(suffix);
            }
            // A split index has entries without a name: they replace one of the shared index.
            if is_flagged && !name.is_empty() {
                let path = to_path(name.strip_suffix(b"/").unwrap_or(&name));
                if mode == DIRECTORY {
                    self.directories.insert(path)
                } else {
                    self.files.insert(path)
                };
            }
        }
        Some(())
    }
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn take_u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn take_u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// Takes an integer in the encoding of pack offsets.
    fn take_varint(&mut self) -> Option<usize> {
        let mut value = 0_usize;
        loop {
            let byte = self.take(1)?[0];
            value = value.checked_mul(128)?.checked_add(usize::from(byte & 127))?;
            if byte & 128 == 0 {
                return Some(value);
            }
            value = value.checked_add(1)?;
        }
    }

    fn take_name(&mut self) -> Option<&'a [u8]> {
        let name = self.take(self.0.iter().position(|byte| *byte == 0)?)?;
        self.take(1)?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_index_does_not_panic() {
        let mut index = b"DIRC\0\0\0\x04\0\0\0\x02".to_vec();
        index.extend([0xff; 80]);
        for length in 0..index.len() {
            IndexFlags::default().scan(&index[..length], 40);
        }
    }

    #[test]
    fn directory_flag_covers_files_below() {
        let flags = IndexFlags { directories: [PathBuf::from("a/b")].into(), ..IndexFlags::default() };
        assert!(flags.contains(Path::new("a/b/c/d")));
        assert!(!flags.contains(Path::new("a/bc")));
    }
}
