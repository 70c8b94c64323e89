//! Finds out whether git tracks a path, from the index of its repository.
//!
//! Does not run git: git would run the commands in the configuration of the repository.

use std::fs;
use std::path::{Path, PathBuf};

use crate::beneath::read_regular_file;
use crate::layout::Layout;
use crate::mechanisms::Tier;
use crate::mount_plan::Mount;

/// The maximum size of an index that is searched; that of a large repository has a few megabytes.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// The size of an entry's file times, identity and size.
const STAT_BYTES: usize = 40;
/// The flag of an entry with two more bytes of flags.
const EXTENDED_FLAG: u16 = 0x4000;
/// A path has at most 4,096 bytes.
const MAX_OFFSET_DIGITS: usize = 4;

/// Makes the repository of a workspace read-only if git tracks a hidden file: git would treat the file as deleted and commit that.
pub(crate) fn protect_index(layout: &mut Layout, tier: Tier) {
    if tier != Tier::Namespaces {
        return;
    }
    let tracked = layout.writable.iter().find_map(|root| {
        let git = root.join(".git");
        let is_tracked =
            |hidden: &&PathBuf| hidden.strip_prefix(root).is_ok_and(|relative| is_tracked(&git, relative));
        let hidden = layout.hidden.iter().find(is_tracked)?;
        Some((
            git.clone(),
            format!("a commit would delete `{}`, which is hidden from the agent", hidden.display()),
        ))
    });
    if let Some((git, why)) = tracked {
        layout.git_read_only = Some(why);
        layout.mounts.push((git, Mount::Read));
    }
}

/// Returns whether the index of the repository `git` contains a path or one below it. An unreadable index of version 4 counts as one that
/// does.
fn is_tracked(git: &Path, relative: &Path) -> bool {
    let name = relative.as_os_str().as_encoded_bytes();
    let has = |index: PathBuf| {
        read_regular_file(&index, MAX_INDEX_BYTES).is_some_and(|index| match IndexVersion::parse(&index) {
            IndexVersion::Plain => has_entry(&index, name),
            IndexVersion::Compressed => find_compressed_entry(&index, name).unwrap_or(true),
        })
    };
    // A split index keeps most entries in a second file.
    let shared = fs::read_dir(git).into_iter().flatten().flatten();
    let shared = shared.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"sharedindex."));
    !name.is_empty() && shared.map(|entry| entry.path()).chain([git.join("index")]).any(has)
}

/// The format of an index.
enum IndexVersion {
    /// Versions 2 and 3: each entry has its whole path.
    Plain,
    /// Version 4: an entry has the part of its path that differs from the entry before.
    Compressed,
}

impl IndexVersion {
    fn parse(index: &[u8]) -> Self {
        if index.get(..8) == Some(b"DIRC\0\0\0\x04") { Self::Compressed } else { Self::Plain }
    }
}

/// Searches an index of version 4. Returns `None` if it cannot be parsed.
fn find_compressed_entry(index: &[u8], name: &[u8]) -> Option<bool> {
    // SHA-1 or SHA-256. With the wrong one, the stored lengths do not match.
    [20, 32].into_iter().find_map(|hash_bytes| search_compressed(index, name, hash_bytes))
}

fn search_compressed(index: &[u8], name: &[u8], hash_bytes: usize) -> Option<bool> {
    let count = u32::from_be_bytes(index.get(8..12)?.try_into().ok()?);
    let (mut at, mut path, mut is_found) = (12, Vec::new(), false);
    for _ in 0..count {
        at += STAT_BYTES + hash_bytes;
        let flags = u16::from_be_bytes(index.get(at..at + 2)?.try_into().ok()?);
        at += if flags & EXTENDED_FLAG == 0 { 2 } else { 4 };
        let (removed, digits) = parse_offset(index.get(at..)?)?;
        at += digits;
        let rest = index.get(at..)?;
        let added = &rest[..rest.iter().position(|byte| *byte == 0)?];
        path.truncate(path.len().checked_sub(removed)?);
        path.extend_from_slice(added);
        at += added.len() + 1;
        if usize::from(flags & 0xfff) != path.len().min(0xfff) {
            return None;
        }
        let is_below = || path.get(name.len()).is_none_or(|byte| *byte == b'/');
        is_found |= path.starts_with(name) && is_below();
    }
    Some(is_found)
}

/// Parses the number of bytes to remove from the path before, and returns the length of the number, too.
fn parse_offset(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (index, byte) in bytes.iter().enumerate().take(MAX_OFFSET_DIGITS) {
        value = value << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
        value += 1;
    }
    None
}

/// Searches for an entry by its layout: the path is preceded by its length (the low twelve bits) and followed by a NUL.
fn has_entry(index: &[u8], name: &[u8]) -> bool {
    let starts_entry = |at: usize| {
        let rest = &index[at..];
        let length = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let stored_length = at
            .checked_sub(2)
            .map(|before| usize::from(index[before] & 0xf) << 8 | usize::from(index[before + 1]));
        let is_below = rest.get(name.len()).is_some_and(|byte| matches!(byte, 0 | b'/'));
        is_below && stored_length == Some(length.min(0xfff))
    };
    index.windows(name.len()).enumerate().any(|(at, window)| window == name && starts_entry(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(paths: &[&str]) -> Vec<u8> {
        let entry = |path: &&str| {
            let length = u16::try_from(path.len()).unwrap().to_be_bytes();
            [&[7; 60][..], &length, path.as_bytes(), &[0; 3]].concat()
        };
        paths.iter().flat_map(entry).collect()
    }

    /// Builds an index as git does with `index.version = 4`.
    fn compressed(paths: &[&str], hash_bytes: usize) -> Vec<u8> {
        let count = u32::try_from(paths.len()).unwrap().to_be_bytes();
        let mut index = [&b"DIRC\0\0\0\x04"[..], &count].concat();
        let mut before = "";
        for path in paths {
            let common = path.bytes().zip(before.bytes()).take_while(|(one, other)| one == other).count();
            index.extend(vec![7; STAT_BYTES + hash_bytes]);
            index.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
            let removed = u8::try_from(before.len() - common).unwrap();
            assert!(removed < 0x80);
            index.push(removed);
            index.extend(&path.as_bytes()[common..]);
            index.push(0);
            before = path;
        }
        index
    }

    #[test]
    fn compressed_index_is_searched() {
        for hash_bytes in [20, 32] {
            let index = compressed(&[".gemini/.env", ".gemini/settings.json", "a/.env", "a/b"], hash_bytes);
            let find = |name: &str| find_compressed_entry(&index, name.as_bytes());
            for name in [".gemini", ".gemini/.env", ".gemini/settings.json", "a/.env", "a"] {
                assert_eq!(find(name), Some(true), "{name}");
            }
            for name in [".env", "settings.json", "a/.envrc", "b"] {
                assert_eq!(find(name), Some(false), "{name}");
            }
            assert_eq!(find_compressed_entry(&index[..index.len() - 3], b"a"), None, "truncated");
        }
        assert_eq!(parse_offset(&[0x80, 0x00]), Some((128, 2)));
        assert_eq!(parse_offset(&[0xff; 9]), None);
    }

    #[test]
    fn damaged_compressed_index_counts_as_tracking() {
        let git = tempfile::tempdir().unwrap();
        let text = compressed(&["a/.env"], 20);
        fs::write(git.path().join("index"), &text).unwrap();
        assert!(is_tracked(git.path(), Path::new("a/.env")) && !is_tracked(git.path(), Path::new(".env")));
        fs::write(git.path().join("index"), &text[..20]).unwrap();
        assert!(is_tracked(git.path(), Path::new(".env")));
        fs::write(git.path().join("index"), compressed(&[], 20)).unwrap();
        fs::write(git.path().join("sharedindex.0123"), index(&["a/.env"])).unwrap();
        assert!(is_tracked(git.path(), Path::new("a/.env")));
    }

    #[test]
    fn only_tracked_paths_are_found() {
        let index = index(&["a/.env", ".environment", ".gemini/settings.json", "x.env"]);
        assert!(has_entry(&index, b".gemini") && has_entry(&index, b"a/.env") && has_entry(&index, b"a"));
        assert!(!has_entry(&index, b".env") && !has_entry(&index, b"settings.json"));
    }
}
