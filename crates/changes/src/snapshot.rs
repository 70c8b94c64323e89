//! Records files of the worktree in the private objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use model::NotRecorded;

use crate::entry::{Entry, join_nul};
use crate::error::ChangesError;
use crate::files::remove_directory;
use crate::git::Git;
use crate::head::read_nested_commit;
use crate::index_file::PrivateIndex;
use crate::raw_files::{add_files, are_raw};
use crate::staging::stage_worktree;
use crate::state::{FileState, Stamp};
use crate::worktree_files::{Found, WorktreeFiles};

/// Files over this size are not recorded.
pub(crate) const FILE_LIMIT: u64 = 10 * 1024 * 1024;
/// The limit for all files of a snapshot.
const TOTAL_LIMIT: u64 = 256 * 1024 * 1024;
/// A file can disappear or change its type between the inspection and the hashing; git then fails.
const ATTEMPTS: u32 = 3;

/// A path to record.
#[derive(Debug, Default, Clone)]
pub(crate) struct Candidate {
    /// The entry in the index of the user. The conversion of line endings depends on its content.
    pub(crate) tracked: Option<Entry>,
    /// Is true if an earlier snapshot recorded the path. It does not count against the limit for all files: an unchanged
    /// file would appear as changed.
    pub(crate) known: bool,
}

/// Records the current states of paths in a private index.
pub(crate) fn record_files(
    git: &Git,
    index: &Path,
    candidates: &BTreeMap<PathBuf, Candidate>,
) -> Result<BTreeMap<PathBuf, FileState>, ChangesError> {
    let mut attempt = 1;
    loop {
        match try_record(git, index, candidates) {
            Err(ChangesError::GitFailed { .. }) if attempt < ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

fn try_record(
    git: &Git,
    index: &Path,
    candidates: &BTreeMap<PathBuf, Candidate>,
) -> Result<BTreeMap<PathBuf, FileState>, ChangesError> {
    let mut files = WorktreeFiles::new(&git.worktree);
    let mut total = 0;
    let (mut states, mut hashed) = (BTreeMap::new(), BTreeSet::new());
    for (path, candidate) in candidates {
        git.check_time()?;
        match classify(git, path, candidate, files.inspect(path), &mut total) {
            Some(state) => drop(states.insert(path.clone(), state)),
            None => drop(hashed.insert(path.as_path())),
        }
    }
    let removed = states.keys().filter(|path| candidates[*path].known).map(|path| (path.as_path(), None));
    let recorded = if hashed.is_empty() || are_raw(git, hashed.iter().copied()) {
        let recorded = add_files(git, &hashed, FILE_LIMIT)?;
        update_index(git, index, removed.chain(hashed.iter().map(|path| (*path, recorded.get(*path)))))?;
        recorded
    } else {
        let seeds = hashed.iter().filter_map(|path| {
            let Candidate { tracked, known } = &candidates[*path];
            tracked.as_ref().filter(|_| !known).map(|entry| (*path, Some(entry)))
        });
        update_index(git, index, removed.chain(seeds))?;
        convert_files(git, index, &hashed)?
    };
    for path in hashed {
        let state = match recorded.get(path) {
            Some(entry) => FileState::Recorded(entry.clone()),
            None => match WorktreeFiles::new(&git.worktree).inspect(path) {
                // Git rejects some names, such as `git~1`.
                Found::File(file) | Found::Link(file) => {
                    let stamp = Some(Stamp::new(&file));
                    FileState::NotRecorded { reason: NotRecorded::Unreadable, stamp }
                }
                _ => FileState::Absent,
            },
        };
        states.insert(path.to_owned(), state);
    }
    Ok(states)
}

/// Returns the state of a path, or `None` if the content has to be hashed.
fn classify(
    git: &Git,
    path: &Path,
    candidate: &Candidate,
    found: Found,
    total: &mut u64,
) -> Option<FileState> {
    let submodule = candidate.tracked.as_ref().filter(|entry| entry.is_submodule());
    let not_recorded = |reason, stamp| Some(FileState::NotRecorded { reason, stamp });
    match found {
        Found::File(file) => {
            let counted = if candidate.known { 0 } else { file.len() };
            if file.len() > FILE_LIMIT || *total + counted > TOTAL_LIMIT {
                return not_recorded(NotRecorded::TooLarge, Some(Stamp::new(&file)));
            }
            if regular_file::open_regular(&git.worktree.join(path)).is_err() {
                return not_recorded(NotRecorded::Unreadable, Some(Stamp::new(&file)));
            }
            *total += counted;
            None
        }
        Found::Link(_) => None,
        Found::Directory => Some(submodule.map_or(FileState::Absent, |entry| {
            // A submodule that is not checked out is unchanged.
            let commit = read_nested_commit(&git.worktree.join(path));
            let oid = commit.unwrap_or_else(|| entry.oid.clone());
            FileState::Recorded(Entry { mode: Entry::SUBMODULE, oid })
        })),
        Found::Unreadable => not_recorded(NotRecorded::Unreadable, None),
        Found::Absent | Found::Hidden { .. } | Found::Other => Some(FileState::Absent),
    }
}

/// Sets entries in the private index, or removes them.
fn update_index<'a>(
    git: &Git,
    path: &Path,
    entries: impl Iterator<Item = (&'a Path, Option<&'a Entry>)>,
) -> Result<(), ChangesError> {
    let mut entries = entries.peekable();
    if entries.peek().is_none() {
        return Ok(());
    }
    let mut index = PrivateIndex::read(path, git.id_length)?;
    for (path, entry) in entries {
        match entry {
            Some(entry) => index.insert(path, entry),
            None => index.remove(path),
        }
    }
    index.write(path, git.id_length)
}

/// Lets git convert and hash files, and returns all entries of the private index.
fn convert_files(
    git: &Git,
    index: &Path,
    files: &BTreeSet<&Path>,
) -> Result<BTreeMap<PathBuf, Entry>, ChangesError> {
    let stage = index.with_file_name(format!("scratch-{}-stage", std::process::id()));
    stage_worktree(git, &stage, files, FILE_LIMIT)?;
    let staged = Git { worktree: stage.clone(), ..git.clone() };
    let command = staged.command("update-index").args(["-z", "--add", "--replace", "--remove", "--stdin"]);
    command.index(index).input(join_nul(files.iter().copied())).run()?;
    remove_directory(&stage)?;
    Ok(PrivateIndex::read(index, git.id_length)?.entries().collect())
}
