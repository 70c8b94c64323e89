//! Reads and writes index files, which saves a git process for each step: some steps need only a few entries.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::entry::{Entry, decode_id, encode_id, to_path};
use crate::error::ChangesError;
use crate::files::{read_index, write_index};

const SIGNATURE: &[u8] = b"DIRC";
const EXTENDED: u16 = 0x4000;
const LONGEST_NAME: usize = 0xFFF;
/// The length of the times, the device, the inode, the mode, the owner and the size of a file.
pub(crate) const STAT_LENGTH: usize = 40;
pub(crate) const MODE_AT: usize = 24;

/// An entry of an index, as it is stored.
#[derive(Debug)]
pub(crate) struct StoredEntry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) flags: u16,
    pub(crate) extended_flags: u16,
    /// The position of the stat data in the index.
    pub(crate) stat_at: usize,
    pub(crate) stat: &'a [u8],
    id: &'a [u8],
}

impl StoredEntry<'_> {
    pub(crate) fn to_entry(&self) -> Entry {
        Entry { mode: self.mode, oid: encode_id(self.id) }
    }
}

/// Visits the entries of an index of version 2, 3 or 4, and returns the extensions after them. Returns `None` for anything else, or for a
/// damaged one. Entries of a split index that replace one of the shared index have no name.
pub(crate) fn visit_entries(
    index: &[u8],
    id_length: usize,
    mut visit: impl FnMut(StoredEntry<'_>),
) -> Option<&[u8]> {
    let mut header = Bytes(index);
    let is_index = header.take(4)? == SIGNATURE;
    let (version, count) = (header.take_u32()?, header.take_u32()?);
    if !is_index || !(2..=4).contains(&version) {
        return None;
    }
    let (mut rest, mut compressed_name) = (header.0, Vec::new());
    for _ in 0..count {
        let mut entry = Bytes(rest);
        let stat_at = index.len() - rest.len();
        let stat = entry.take(STAT_LENGTH)?;
        let mode = u32::from_be_bytes(stat[MODE_AT..MODE_AT + 4].try_into().ok()?);
        let id = entry.take(id_length / 2)?;
        let flags = entry.take_u16()?;
        let extended_flags = if flags & EXTENDED == 0 { 0 } else { entry.take_u16()? };
        let name = if version == 4 {
            let kept = compressed_name.len().checked_sub(entry.take_varint()?)?;
            compressed_name.truncate(kept);
            compressed_name.extend(entry.take_name()?);
            &compressed_name
        } else {
            let name = entry.take_name()?;
            // The entry is padded to a multiple of 8 bytes. The terminating NUL is part of the padding.
            let length = rest.len() - entry.0.len();
            entry.take(length.next_multiple_of(8) - length)?;
            name
        };
        rest = entry.0;
        visit(StoredEntry { name, mode, flags, extended_flags, stat_at, stat, id });
    }
    Some(rest)
}

/// Returns whether an index has an extension. The extensions end with a checksum.
pub(crate) fn has_extension(extensions: &[u8], name: [u8; 4]) -> bool {
    let mut rest = Bytes(extensions);
    while let (Some(found), Some(length)) = (rest.take(4), rest.take_u32()) {
        if found == name {
            return true;
        }
        if rest.take(usize::try_from(length).unwrap_or(usize::MAX)).is_none() {
            break;
        }
    }
    false
}

/// The entries of a private index, which is neither split nor sparse.
#[derive(Debug, Default)]
pub(crate) struct PrivateIndex {
    /// The stat data and the object id, by name.
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl PrivateIndex {
    /// Reads an index. A missing file is an empty one.
    pub(crate) fn read(path: &Path, id_length: usize) -> Result<Self, ChangesError> {
        let bytes = read_index(path)?;
        let mut index = Self::default();
        if bytes.is_empty() {
            return Ok(index);
        }
        let visited = visit_entries(&bytes, id_length, |entry| {
            index.entries.insert(entry.name.to_owned(), [entry.stat, entry.id].concat());
        });
        let damaged = || ChangesError::UnexpectedOutput { command: "update-index" };
        visited.map(|_| index).ok_or_else(damaged)
    }

    /// Sets an entry, without the times of the file, so that git compares the content. Removes files in place of a directory above the
    /// path, and those below it.
    pub(crate) fn insert(&mut self, path: &Path, entry: &Entry) {
        for above in path.ancestors().skip(1) {
            self.remove(above);
        }
        let prefix = [path.as_os_str().as_bytes(), b"/"].concat();
        let below = self.entries.range(prefix.clone()..).map(|(name, _)| name);
        for name in below.take_while(|name| name.starts_with(&prefix)).cloned().collect::<Vec<_>>() {
            self.entries.remove(&name);
        }
        let mut stored = vec![0; STAT_LENGTH];
        stored[MODE_AT..MODE_AT + 4].copy_from_slice(&entry.mode.to_be_bytes());
        stored.extend(decode_id(&entry.oid));
        self.entries.insert(path.as_os_str().as_bytes().to_owned(), stored);
    }

    pub(crate) fn remove(&mut self, path: &Path) {
        self.entries.remove(path.as_os_str().as_bytes());
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (PathBuf, Entry)> {
        self.entries.iter().filter_map(|(name, stored)| {
            let mode = u32::from_be_bytes(stored[MODE_AT..MODE_AT + 4].try_into().ok()?);
            Some((to_path(name), Entry { mode, oid: encode_id(&stored[STAT_LENGTH..]) }))
        })
    }

    /// Writes an index of version 2. A replaced one keeps its time: git compares it with the times of the entries to find files
    /// that changed within the same tick of the clock.
    pub(crate) fn write(&self, path: &Path, id_length: usize) -> Result<(), ChangesError> {
        let mut index = SIGNATURE.to_vec();
        index.extend(2_u32.to_be_bytes());
        index.extend(u32::try_from(self.entries.len()).unwrap_or(u32::MAX).to_be_bytes());
        for (name, stored) in &self.entries {
            let start = index.len();
            index.extend(stored);
            let length = u16::try_from(name.len().min(LONGEST_NAME)).unwrap_or(0);
            index.extend(length.to_be_bytes());
            index.extend(name);
            let length = index.len() - start;
            index.resize(start + (length + 1).next_multiple_of(8), 0);
        }
        // Zeros in place of the checksum mean that there is none.
        index.resize(index.len() + id_length / 2, 0);
        write_index(path, &index)
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

    const OID: &str = "0123456789abcdef0123456789abcdef01234567";

    fn entry(mode: u32) -> Entry {
        Entry { mode, oid: OID.into() }
    }

    #[test]
    fn written_index_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index");
        let mut index = PrivateIndex::default();
        for length in 1..20 {
            index.insert(Path::new(&"n".repeat(length)), &entry(0o100_644));
        }
        index.write(&path, 40).unwrap();
        let read = PrivateIndex::read(&path, 40).unwrap();
        assert!(read.entries().eq(index.entries()));
        assert_eq!(read.entries().next().unwrap(), (PathBuf::from("n"), entry(0o100_644)));
    }

    #[test]
    fn file_and_directory_replace_each_other() {
        let names =
            |index: &PrivateIndex| -> Vec<PathBuf> { index.entries().map(|(path, _)| path).collect() };
        let mut index = PrivateIndex::default();
        for path in ["a/b", "a/c", "a.b"] {
            index.insert(Path::new(path), &entry(0o100_644));
        }
        index.insert(Path::new("a"), &entry(0o120_000));
        assert_eq!(names(&index), [PathBuf::from("a"), "a.b".into()]);
        index.insert(Path::new("a/d/e"), &entry(0o100_644));
        assert_eq!(names(&index), [PathBuf::from("a.b"), "a/d/e".into()]);
    }

    #[test]
    fn truncated_index_does_not_panic() {
        let mut index = b"DIRC\0\0\0\x04\0\0\0\x02".to_vec();
        index.extend([0xff; 80]);
        for length in 0..index.len() {
            visit_entries(&index[..length], 40, |_| {});
        }
    }
}
