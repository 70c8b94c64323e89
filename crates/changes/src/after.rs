//! Takes the snapshot after a job and derives the change set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use model::{ChangeKind, ChangeSet, FileChange, NotRecorded};

use crate::difference::{Difference, compare};
use crate::directories::{find_created, find_removed, is_younger};
use crate::entry::{Entry, join_nul, split_nul, to_path};
use crate::error::ChangesError;
use crate::files::{copy_index, remove_file, replace_file, write_json};
use crate::git::{Git, GitSession};
use crate::head::{read_commit, read_nested_commit};
use crate::ignored::find_ignored_before;
use crate::layout::RecordLayout;
use crate::listing::{Listing, list_changes};
use crate::objects::keep_blobs;
use crate::parallel::run_both;
use crate::private_git;
use crate::raw_files::are_raw;
use crate::repository::GitRepository;
use crate::snapshot::{Candidate, FILE_LIMIT, record_files};
use crate::staging::ATTRIBUTES;
use crate::state::{BeforeSnapshot, FileState, RecordedChanges, Sides};

/// Takes the snapshot and replaces the result of an earlier run.
pub(crate) fn take_snapshot(
    layout: &RecordLayout,
    before: BeforeSnapshot,
    shared: &BTreeSet<PathBuf>,
    session: GitSession,
) -> Result<ChangeSet, ChangesError> {
    let repository = GitRepository::from_parts(before.worktree, before.git_dir, before.common_dir);
    let git = private_git::open(&layout.git_dir(), &repository, before.id_length, session);
    let excluded = layout.path_in(&git.worktree);
    let listing = list_changes(&git, &layout.user_index(), FILE_LIMIT, excluded.as_deref())?;
    let head = read_commit(&repository, &git).filter(|head| before.base.as_ref() != Some(head));
    let known: BTreeMap<PathBuf, FileState> = before.files.into_iter().collect();
    let sides = find_changes(&git, layout, &listing, known, before.started)?;

    let Difference { files, patch } = compare(&git, &sides)?;
    layout.remove_scratch();
    let (mut files, patch_ranges): (Vec<FileChange>, Vec<(usize, usize)>) = files.into_iter().unzip();
    for file in &mut files {
        let is_old_path_shared = matches!(&file.kind, ChangeKind::Renamed { from } if shared.contains(from));
        file.shared = is_old_path_shared || shared.contains(&file.path);
    }
    let change_set = ChangeSet { worktree: git.worktree.clone(), base: before.base, head, files };
    let changes = RecordedChanges {
        created_directories: find_created(&change_set, &sides, before.started),
        removed_directories: find_removed(&git.worktree, &sides),
        sides: sides.into_iter().collect(),
        patch_ranges,
        change_set,
    };
    // The ranges belong to one patch: without a result, there is no mismatch after a crash.
    remove_file(&layout.changes())?;
    replace_file(&layout.patch(), &patch)?;
    write_json(&layout.changes(), &changes)?;
    Ok(changes.change_set)
}

/// Returns the states of all changed paths.
fn find_changes(
    git: &Git,
    layout: &RecordLayout,
    listing: &Listing,
    known: BTreeMap<PathBuf, FileState>,
    started: u64,
) -> Result<BTreeMap<PathBuf, Sides>, ChangesError> {
    let index = layout.after_index();
    copy_index(&layout.before_index(), &index)?;
    let mut candidates: BTreeMap<PathBuf, Candidate> = BTreeMap::new();
    for (path, state) in &known {
        if !matches!(state, FileState::Repository { .. }) {
            candidates.insert(path.clone(), Candidate { tracked: state.entry().cloned(), known: true });
        }
    }
    let untracked = listing.untracked.iter().filter(|path| !known.contains_key(*path));
    let untracked: BTreeSet<PathBuf> = untracked.cloned().collect();
    let mut before = known;
    for path in untracked.iter().chain(listing.flags.files.iter()) {
        candidates.entry(path.clone()).or_default();
        before.entry(path.clone()).or_insert(FileState::Absent);
    }
    let new = listing.tracked.iter().filter(|(path, _)| !candidates.contains_key(*path));
    let new: BTreeMap<&PathBuf, &Entry> =
        new.filter_map(|(path, entry)| Some((path, entry.as_ref()?))).collect();
    for (path, entry) in &new {
        // Git compares a path of a sparse directory once it exists. It did not exist before.
        let is_flagged = listing.flags.contains(path);
        let state = if is_flagged { FileState::Absent } else { FileState::Recorded((*entry).clone()) };
        before.insert((*path).clone(), state);
        candidates.insert((*path).clone(), Candidate { tracked: Some((*entry).clone()), known: false });
    }
    // Git also reads a file of attributes that only the index has. It is a candidate then, or in a sparse directory.
    let is_raw = !candidates.keys().any(|path| is_attributes(path))
        && listing.flags.directories.is_empty()
        && are_raw(git, new.keys().map(|path| path.as_path()));
    let user_index = layout.user_index();
    // Git looks at the originals when it converts line endings.
    let unavailable = keep_originals(git, (!is_raw).then_some(user_index.as_path()), &new)?;
    let mut after = record_files(git, &index, &candidates)?;
    add_repositories(git, listing, &mut before, &mut after);

    let mut changed = BTreeMap::new();
    for (path, before) in before {
        let after = after.remove(&path).unwrap_or(FileState::Absent);
        if before == after {
            continue;
        }
        // The comparison with the index is valid for such a file, but its content before is unknown.
        let before = match unavailable.get(&path) {
            Some(reason) => FileState::NotRecorded { reason: *reason, stamp: None },
            None => before,
        };
        changed.insert(path, Sides { before, after });
    }
    let ignored = find_ignored_before(git, &layout.scratch("ignored"), &untracked, &changed)?;
    changed.retain(|path, _| {
        !ignored.contains(path) || is_younger(&git.worktree.join(path), started) == Some(true)
    });
    Ok(changed)
}

/// Keeps the content of tracked files from before the job, and returns the files whose content is not available. With an index, also finds
/// those whose content a filter produces.
fn keep_originals(
    git: &Git,
    index: Option<&Path>,
    tracked: &BTreeMap<&PathBuf, &Entry>,
) -> Result<BTreeMap<PathBuf, NotRecorded>, ChangesError> {
    let files = tracked.iter().filter(|(_, entry)| !entry.is_submodule());
    let files: BTreeMap<&Path, &str> =
        files.map(|(path, entry)| (path.as_path(), entry.oid.as_str())).collect();
    let (ids, paths): (BTreeSet<&str>, Vec<&Path>) = files.iter().map(|(path, id)| (*id, *path)).unzip();
    let find_filtered = || index.map_or(Ok(BTreeSet::new()), |index| find_filtered(git, index, &paths));
    let (filtered, lost) = run_both(find_filtered, || keep_blobs(git, &ids, FILE_LIMIT))?;
    let reasons = files.iter().filter_map(|(path, id)| {
        let reason = if filtered.contains(*path) { &NotRecorded::Filtered } else { lost.get(*id)? };
        Some(((*path).to_owned(), *reason))
    });
    Ok(reasons.collect())
}

fn is_attributes(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == ATTRIBUTES)
}

/// Returns the paths whose content a filter produces, by the attributes before or after the job.
pub(crate) fn find_filtered(
    git: &Git,
    index: &Path,
    paths: &[&Path],
) -> Result<BTreeSet<PathBuf>, ChangesError> {
    let sources: &[&[&str]] =
        if paths.iter().any(|path| is_attributes(path)) { &[&[], &["--cached"]] } else { &[&[]] };
    let mut filtered = BTreeSet::new();
    if paths.is_empty() {
        return Ok(filtered);
    }
    for source in sources {
        let command = git.command("check-attr").args(["-z", "--stdin"]).args(*source).args(["filter"]);
        let output = command.index(index).with_user_objects().input(join_nul(paths.iter().copied())).run()?;
        let fields: Vec<&[u8]> = split_nul(&output).collect();
        let is_filtered = |field: &&[&[u8]]| !matches!(field[2], b"unspecified" | b"unset" | b"set");
        filtered.extend(fields.chunks_exact(3).filter(is_filtered).map(|field| to_path(field[0])));
    }
    Ok(filtered)
}

/// Adds the nested repositories from before and after the job.
fn add_repositories(
    git: &Git,
    listing: &Listing,
    before: &mut BTreeMap<PathBuf, FileState>,
    after: &mut BTreeMap<PathBuf, FileState>,
) {
    for path in &listing.repositories {
        before.entry(path.clone()).or_insert(FileState::Absent);
    }
    for (path, state) in before.iter() {
        let is_listed = listing.repositories.contains(path);
        if is_listed || matches!(state, FileState::Repository { .. }) {
            let directory = git.worktree.join(path);
            if directory.join(".git").symlink_metadata().is_ok() {
                after.insert(path.clone(), FileState::Repository { commit: read_nested_commit(&directory) });
            }
        }
    }
}
