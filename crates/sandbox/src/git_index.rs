//! Finds out whether git tracks a path, from the index of its repository.
//!
//! Runs no git: it would run the commands in the configuration of the repository.

use std::path::{Path, PathBuf};

use crate::beneath::read_ordinary_file;
use crate::layout::{Layout, Mount};
use crate::machine::Tier;

/// The longest index that is searched; that of a large repository has a few megabytes.
const LONGEST_INDEX: u64 = 256 << 20;

impl Layout {
    /// Makes the repository of a workspace read-only where git tracks a file that the agent does not see: git would take it for
    /// deleted, and commit that.
    pub fn hold_index(&mut self, tier: Tier) {
        if tier != Tier::Namespaces {
            return;
        }
        let tracked = self.write.iter().find_map(|root| {
            let git = root.join(".git");
            let is_tracked = |hidden: &&PathBuf| {
                hidden.strip_prefix(root).is_ok_and(|relative| is_tracked(&git, relative))
            };
            let hidden = self.hidden.iter().find(is_tracked)?;
            Some((
                git.clone(),
                format!("a commit would delete `{}`, which the agent does not see", hidden.display()),
            ))
        });
        if let Some((git, why)) = tracked {
            self.git_read_only = Some(why);
            self.mounts.push((git, Mount::Read));
        }
    }
}

/// Returns whether the index of `git`, a repository's directory, has the path or one below it. An index of version 4, which shortens
/// its paths, is not understood.
fn is_tracked(git: &Path, relative: &Path) -> bool {
    let name = relative.as_os_str().as_encoded_bytes();
    let index = read_ordinary_file(&git.join("index"), LONGEST_INDEX);
    !name.is_empty() && index.is_some_and(|index| has_entry(&index, name))
}

/// An entry ends with its path and a NUL; the low twelve bits before the path are its length.
fn has_entry(index: &[u8], name: &[u8]) -> bool {
    let starts_entry = |at: usize| {
        let rest = &index[at..];
        let length = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let told = at
            .checked_sub(2)
            .map(|before| usize::from(index[before] & 0xf) << 8 | usize::from(index[before + 1]));
        let is_below = rest.get(name.len()).is_some_and(|byte| matches!(byte, 0 | b'/'));
        is_below && told == Some(length.min(0xfff))
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
    fn tracked_paths_are_found_and_others_are_not() {
        let index = index(&["a/.env", ".environment", ".gemini/settings.json", "x.env"]);
        assert!(has_entry(&index, b".gemini") && has_entry(&index, b"a/.env") && has_entry(&index, b"a"));
        assert!(!has_entry(&index, b".env") && !has_entry(&index, b"settings.json"));
    }
}
