//! Computes all steps of a restoration.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use model::{ChangeKind, FileChange};

use crate::entry::Entry;
use crate::error::ChangesError;
use crate::files::copy_index;
use crate::git::Git;
use crate::restore::decision::{Current, Decision, decide};
use crate::restore::index::AppliedEntry;
use crate::restore::merge::{Merged, merge_contents, stage_files};
use crate::restore::write::{Identity, Step, StepKind};
use crate::restore::{
    Conflict, ConflictReason, Destination, Direction, Obstacle, Restoration, RestoreAction, RestoreError,
    RestoredFile, Selection,
};
use crate::snapshot::{Candidate, FILE_LIMIT, record_files};
use crate::state::{FileState, RecordedChanges, Sides};
use crate::worktree_files::{Found, WorktreeFiles, is_inside_git_dir};

/// The computed restoration.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) files: Vec<RestoredFile>,
    pub(super) steps: Vec<Step>,
    /// The restored paths with their entries.
    pub(super) entries: Vec<AppliedEntry>,
    /// Directories to remove if they are empty afterwards.
    pub(super) directories: BTreeSet<PathBuf>,
}

/// A path in its current state.
struct Target<'a> {
    path: &'a Path,
    from: &'a FileState,
    to: &'a FileState,
    current: Current,
    identity: Option<Identity>,
    /// A file or link in place of a directory above the path.
    obstacle: Option<PathBuf>,
}

/// Computes the steps. Returns all conflicts, if there are any.
pub(super) fn prepare(
    git: &Git,
    after_index: &Path,
    scratch: &Path,
    changes: &RecordedChanges,
    selection: Selection<'_>,
    restoration: &Restoration<'_>,
) -> Result<Plan, RestoreError> {
    let direction = restoration.direction;
    let sides = select_sides(changes, selection.files, |_| true);
    // Without the consent of the caller, no work of another call is taken back.
    let shared = if selection.is_named {
        Vec::new()
    } else {
        select_sides(changes, selection.files, |file| file.shared)
    };
    let shared: BTreeSet<&Path> = shared.into_iter().map(|(path, _)| path).collect();
    let targets = inspect_targets(git, after_index, scratch, sides, direction)?;
    let decisions: Vec<Decision> =
        targets.iter().map(|target| decide(target.from, target.to, &target.current)).collect();
    let is_deleted = |(_, decision): &(&Target<'_>, &Decision)| **decision == Decision::Delete;
    let deleted: BTreeSet<&Path> =
        targets.iter().zip(&decisions).filter(is_deleted).map(|(target, _)| target.path).collect();

    let mut directories: BTreeSet<PathBuf> = match direction {
        Direction::Undo => changes.created_directories.iter().cloned().collect(),
        Direction::Redo => changes.removed_directories.iter().cloned().collect(),
    };
    let (mut files, mut conflicts) = (Vec::new(), Vec::new());
    // The merged files with their positions and modes, and their contents.
    let (mut merges, mut contents) = (Vec::new(), Vec::new());
    let (mut steps, mut staged) = (Vec::new(), BTreeMap::new());
    for (target, decision) in targets.iter().zip(decisions) {
        let Target { path, .. } = *target;
        let mut conflict = |reason| conflicts.push(Conflict { path: path.to_owned(), reason });
        if decision != Decision::Keep
            && let Some(reason) = find_obstacle(git, target, &decision, &deleted, &mut directories)
        {
            conflict(reason);
            continue;
        }
        if decision != Decision::Keep && shared.contains(path) {
            conflict(ConflictReason::Shared);
            continue;
        }
        let what = match decision {
            Decision::Keep => RestoreAction::AlreadySo,
            Decision::Delete => RestoreAction::Deleted,
            Decision::Write(entry) => {
                staged.insert(path, entry);
                RestoreAction::Written
            }
            Decision::Merge { base, ours, theirs, mode } => {
                merges.push((files.len(), path, mode));
                contents.push([ours, base, theirs]);
                RestoreAction::Merged
            }
            Decision::Blocked => {
                conflict(in_the_way(path, target.current == Current::Directory));
                continue;
            }
            Decision::Conflict(reason) if !selection.is_named && reason.is_unrecorded() => {
                let what = RestoreAction::NotRestored;
                files.push(RestoredFile { path: path.to_owned(), what, reason: Some(reason) });
                continue;
            }
            Decision::Conflict(reason) => {
                conflict(reason);
                continue;
            }
        };
        files.push(RestoredFile { path: path.to_owned(), what, reason: None });
        let kind = match what {
            RestoreAction::AlreadySo | RestoreAction::NotRestored => continue,
            RestoreAction::Deleted => StepKind::Delete,
            RestoreAction::Written | RestoreAction::Merged | RestoreAction::Conflicted => {
                StepKind::Put(scratch.join("staged").join(path))
            }
        };
        steps.push(Step { path: path.to_owned(), kind, expected: target.identity.clone() });
    }
    for ((position, path, mode), merged) in merges.into_iter().zip(merge_contents(git, scratch, &contents)?) {
        let mut conflict = |reason| conflicts.push(Conflict { path: path.to_owned(), reason });
        match merged {
            Merged::Clean(oid) => drop(staged.insert(path, Entry { mode, oid })),
            Merged::WithMarkers(oid)
                if restoration.markers && restoration.destination == Destination::Worktree =>
            {
                staged.insert(path, Entry { mode, oid });
                files[position].what = RestoreAction::Conflicted;
            }
            Merged::WithMarkers(_) => conflict(ConflictReason::SameLines),
            Merged::Binary => conflict(ConflictReason::BinaryEdited),
        }
    }
    if steps.is_empty() && files.iter().all(|file| file.reason.is_some()) {
        let unrestored = files.iter().filter_map(|file| Some((file.path.clone(), file.reason.clone()?)));
        conflicts.extend(unrestored.map(|(path, reason)| Conflict { path, reason }));
    }
    if !conflicts.is_empty() {
        conflicts.sort_by(|a, b| a.path.cmp(&b.path));
        return Err(RestoreError::Conflicts(conflicts));
    }
    stage_files(git, scratch, &staged)?;
    let entries = list_entries(&targets, &files, &staged);
    Ok(Plan { files, steps, entries, directories })
}

/// Returns the entries after the restoration.
fn list_entries(
    targets: &[Target<'_>],
    files: &[RestoredFile],
    staged: &BTreeMap<&Path, Entry>,
) -> Vec<AppliedEntry> {
    let targets: BTreeMap<&Path, &Target<'_>> = targets.iter().map(|target| (target.path, target)).collect();
    let entries = files.iter().filter_map(|file| {
        let target = targets.get(&*file.path)?;
        let entry = match file.what {
            RestoreAction::NotRestored => return None,
            RestoreAction::AlreadySo => target.to.entry(),
            RestoreAction::Deleted => None,
            RestoreAction::Written | RestoreAction::Merged | RestoreAction::Conflicted => {
                staged.get(&*file.path)
            }
        };
        let exists = !matches!(target.current, Current::Absent | Current::Directory);
        Some(AppliedEntry { path: file.path.clone(), entry: entry.cloned(), exists })
    });
    entries.collect()
}

/// Returns the states of some of the selected files, with both paths of a renamed file.
fn select_sides<'a>(
    changes: &'a RecordedChanges,
    selected: &[usize],
    is_wanted: impl Fn(&FileChange) -> bool,
) -> Vec<(&'a Path, &'a Sides)> {
    let files = selected.iter().filter_map(|position| changes.change_set.files.get(*position));
    let files = files.filter(|file| is_wanted(file));
    let paths: BTreeSet<&Path> = files
        .flat_map(|file| match &file.kind {
            ChangeKind::Renamed { from } => vec![from.as_path(), &file.path],
            _ => vec![file.path.as_path()],
        })
        .filter(|path| !is_inside_git_dir(path))
        .collect();
    let sides = changes.sides.iter().filter(|(path, _)| paths.contains(path.as_path()));
    sides.map(|(path, sides)| (path.as_path(), sides)).collect()
}

/// Determines the current states. The identity of a file is read before its content, so that a later check finds any change.
fn inspect_targets<'a>(
    git: &Git,
    after_index: &Path,
    scratch: &Path,
    sides: Vec<(&'a Path, &'a Sides)>,
    direction: Direction,
) -> Result<Vec<Target<'a>>, ChangesError> {
    let mut worktree = WorktreeFiles::new(&git.worktree);
    let (mut targets, mut hashed) = (Vec::new(), BTreeMap::new());
    for (path, sides) in sides {
        let (from, to) = match direction {
            Direction::Undo => (&sides.after, &sides.before),
            Direction::Redo => (&sides.before, &sides.after),
        };
        let found = worktree.inspect(path);
        let mut target = Target { path, from, to, current: Current::Absent, identity: None, obstacle: None };
        let submodule =
            [from, to].into_iter().filter_map(FileState::entry).find(|entry| entry.is_submodule());
        match found {
            Found::Absent => {}
            Found::Hidden { obstacle } => target.obstacle = Some(obstacle),
            Found::File(file) if file.len() > FILE_LIMIT => target.current = Current::Large,
            Found::File(file) | Found::Link(file) => {
                target.identity = Some(Identity::new(&file));
                let known = sides.after.entry().is_some();
                hashed.insert(path.to_owned(), Candidate { tracked: None, known });
            }
            Found::Directory => {
                target.current = Current::Directory;
                if let Some(entry) = submodule {
                    let tracked = Some(entry.clone());
                    hashed.insert(path.to_owned(), Candidate { tracked, known: false });
                }
            }
            Found::Other => target.current = Current::Special,
            Found::Unreadable => target.current = Current::Unreadable,
        }
        targets.push(target);
    }
    let index = scratch.join("index");
    copy_index(after_index, &index)?;
    let mut states = record_files(git, &index, &hashed)?;
    for target in &mut targets {
        match states.remove(target.path) {
            Some(FileState::Recorded(entry)) => target.current = Current::Entry(entry),
            Some(FileState::NotRecorded { .. }) => target.current = Current::Unreadable,
            _ => {}
        }
    }
    Ok(targets)
}

/// Finds a thing in the way of a file that is not removed in the same restoration.
fn find_obstacle(
    git: &Git,
    target: &Target<'_>,
    decision: &Decision,
    deleted: &BTreeSet<&Path>,
    directories: &mut BTreeSet<PathBuf>,
) -> Option<ConflictReason> {
    if let Some(obstacle) = target.obstacle.as_ref().filter(|path| !deleted.contains(path.as_path())) {
        return Some(ConflictReason::InTheWay { path: obstacle.clone(), kind: Obstacle::File });
    }
    if target.current != Current::Directory || matches!(decision, Decision::Blocked | Decision::Conflict(_)) {
        return None;
    }
    let mut below = BTreeSet::new();
    if !is_cleared(&git.worktree, target.path, deleted, &mut below) {
        return Some(in_the_way(target.path, true));
    }
    directories.extend(below);
    None
}

fn in_the_way(path: &Path, is_directory: bool) -> ConflictReason {
    let kind = if is_directory { Obstacle::Directory } else { Obstacle::Special };
    ConflictReason::InTheWay { path: path.to_owned(), kind }
}

/// Returns whether all files below a directory will be deleted, and lists the directories.
fn is_cleared(
    root: &Path,
    directory: &Path,
    deleted: &BTreeSet<&Path>,
    found: &mut BTreeSet<PathBuf>,
) -> bool {
    let Ok(entries) = fs::read_dir(root.join(directory)) else { return false };
    found.insert(directory.to_owned());
    entries.into_iter().all(|entry| {
        let Ok(entry) = entry else { return false };
        let path = directory.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => is_cleared(root, &path, deleted, found),
            _ => deleted.contains(path.as_path()),
        }
    })
}
