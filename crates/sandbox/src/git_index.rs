//! Finds out whether git tracks a path, from the index of its repository.
//!
//! Does not run git: git would run the commands in the configuration of the repository.

use std::path::{Path, PathBuf};

use crate::beneath::read_regular_file;
use crate::layout::Layout;
use crate::mechanisms::Tier;
use crate::mount_plan::Mount;

/// The maximum size of an index that is searched; that of a large repository has a few megabytes.
const MAX_INDEX_BYTES: u64 = 256 << 20;

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

/// Returns whether the index of the repository `git` contains a path or one below it. An index of version 4 compresses its paths and is
/// not parsed.
fn is_tracked(git: &Path, relative: &Path) -> bool {
    let name = relative.as_os_str().as_encoded_bytes();
    let index = read_regular_file(&git.join("index"), MAX_INDEX_BYTES);
    !name.is_empty() && index.is_some_and(|index| has_entry(&index, name))
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

    #[test]
    fn only_tracked_paths_are_found() {
        let index = index(&["a/.env", ".environment", ".gemini/settings.json", "x.env"]);
        assert!(has_entry(&index, b".gemini") && has_entry(&index, b"a/.env") && has_entry(&index, b"a"));
        assert!(!has_entry(&index, b".env") && !has_entry(&index, b"settings.json"));
    }
}
