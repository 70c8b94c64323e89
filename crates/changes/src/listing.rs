//! Lists the files of a worktree that differ from the copied index, and the untracked files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::entry::{Entry, parse_raw_change, split_nul, to_path};
use crate::error::ChangesError;
use crate::git::Git;
use crate::index_flags::IndexFlags;
use crate::modified_files::list_modified;
use crate::parallel::run_both;
use crate::private_git::is_shared_index;
use crate::worktree_files::is_inside_git_dir;

/// From this number of files on, a comparison of contents is faster than a copy of them.
const MANY: usize = 64;

/// The files that may differ from the index.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Tracked files, with the entry of the index. `None` for an unmerged path and for an intent to add.
    pub(crate) tracked: BTreeMap<PathBuf, Option<Entry>>,
    pub(crate) untracked: Vec<PathBuf>,
    /// Untracked directories that are repositories.
    pub(crate) repositories: BTreeSet<PathBuf>,
    /// Entries that git does not compare.
    pub(crate) flags: IndexFlags,
}

/// Lists the changes against an index. Files below `excluded` are left out.
pub(crate) fn list_changes(
    git: &Git,
    index: &Path,
    size_limit: u64,
    excluded: Option<&Path>,
) -> Result<Listing, ChangesError> {
    let list_others = || {
        let args = ["-z", "--others", "--exclude-standard"];
        git.command("ls-files").args(args).index(index).with_user_objects().run()
    };
    let (others, (tracked, flags)) =
        run_both(list_others, || match list_modified(git, index, size_limit, MANY)? {
            // Only git lists the files of an index with flags.
            Some(modified) => {
                let tracked = modified.into_iter().map(|(path, entry)| (path, Some(entry)));
                Ok((tracked.collect(), IndexFlags::default()))
            }
            None => run_both(|| list_tracked(git, index), || read_flags(git, index)),
        })?;
    let mut listing = Listing { tracked, flags, ..Listing::default() };
    if is_worth_refresh(git, &listing.tracked, size_limit) {
        refresh_index(git, index)?;
        listing.tracked = list_tracked(git, index)?;
    }
    for path in split_nul(&others) {
        let (name, is_repository) = path.strip_suffix(b"/").map_or((path, false), |name| (name, true));
        let path = to_path(name);
        if is_inside_git_dir(&path) || excluded.is_some_and(|excluded| path.starts_with(excluded)) {
            continue;
        }
        if is_repository {
            listing.repositories.insert(path);
        } else {
            listing.untracked.push(path);
        }
    }
    Ok(listing)
}

/// Lists the tracked files that differ from an index, or may differ, with their entries. An unmerged one has none.
pub(crate) fn list_tracked(
    git: &Git,
    index: &Path,
) -> Result<BTreeMap<PathBuf, Option<Entry>>, ChangesError> {
    let args = ["-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=dirty"];
    let output = git.command("diff-files").args(args).index(index).with_user_objects().run()?;
    let mut fields = split_nul(&output);
    let mut tracked = BTreeMap::new();
    while let Some(header) = fields.next() {
        let change = parse_raw_change(header, &mut fields);
        let change = change.ok_or(ChangesError::UnexpectedOutput { command: "diff-files" })?;
        // An unmerged path has a second record that compares the worktree with one of its sides.
        let is_unmerged = change.status == b'U' || matches!(tracked.get(&change.path), Some(None));
        tracked.insert(change.path, change.before.filter(|_| !is_unmerged));
    }
    Ok(tracked)
}

/// Returns whether many or large files have only a new time stamp, maybe. In a copied worktree, all of them do.
fn is_worth_refresh(git: &Git, tracked: &BTreeMap<PathBuf, Option<Entry>>, size_limit: u64) -> bool {
    let is_large = |path: &PathBuf| {
        fs::symlink_metadata(git.worktree.join(path))
            .is_ok_and(|file| file.is_file() && file.len() > size_limit)
    };
    let modified = || tracked.iter().filter(|(_, entry)| entry.is_some()).map(|(path, _)| path);
    modified().count() > MANY || modified().any(is_large)
}

/// Compares the contents of files whose time stamps differ and stores the new time stamps. Writes no objects.
pub(crate) fn refresh_index(git: &Git, index: &Path) -> Result<(), ChangesError> {
    let args = ["-q", "--unmerged", "--ignore-submodules", "--refresh"];
    let command = git.command("update-index").args(args).index(index).with_user_objects();
    // 1 means that some files differ.
    command.run_accepting(|code| code <= 1).map(|_| ())
}

/// Reads the flags of an index, with those of its shared index.
pub(crate) fn read_flags(git: &Git, index: &Path) -> Result<IndexFlags, ChangesError> {
    let mut flags = IndexFlags::default();
    let entries = fs::read_dir(&git.git_dir).map_err(ChangesError::file("read", &git.git_dir))?;
    let shared = entries.flatten().filter(|entry| is_shared_index(&entry.file_name().to_string_lossy()));
    for path in shared.map(|entry| entry.path()).chain([index.to_owned()]) {
        // A repository without an index has no files.
        flags.scan(&fs::read(&path).unwrap_or_default(), git.id_length);
    }
    Ok(flags)
}
