//! Finds index entries that git does not compare with the worktree: `assume-unchanged`, `skip-worktree`, and the directories
//! of a sparse index. A job can change such files, but no git command reports it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::entry::to_path;
use crate::index_file::visit_entries;

const ASSUME_UNCHANGED: u16 = 0x8000;
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
    /// Adds the flags of the bytes of an index. An unknown version has none: git itself reports the error.
    pub(crate) fn scan(&mut self, index: &[u8], id_length: usize) {
        visit_entries(index, id_length, |entry| {
            let is_flagged = entry.flags & ASSUME_UNCHANGED != 0 || entry.extended_flags & SKIP_WORKTREE != 0;
            if !is_flagged || entry.name.is_empty() {
                return;
            }
            let path = to_path(entry.name.strip_suffix(b"/").unwrap_or(entry.name));
            if entry.mode == DIRECTORY {
                self.directories.insert(path)
            } else {
                self.files.insert(path)
            };
        });
    }

    /// Returns whether git does not compare a path.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        let is_below = || path.ancestors().skip(1).any(|above| self.directories.contains(above));
        self.files.contains(path) || (!self.directories.is_empty() && is_below())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_flag_covers_files_below() {
        let flags = IndexFlags { directories: [PathBuf::from("a/b")].into(), ..IndexFlags::default() };
        assert!(flags.contains(Path::new("a/b/c/d")));
        assert!(!flags.contains(Path::new("a/bc")));
    }
}
