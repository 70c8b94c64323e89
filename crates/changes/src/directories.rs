//! Finds the directories that a job created and removed. Git does not record directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use model::{ChangeKind, ChangeSet};

use crate::state::{FileState, Sides};

/// Returns whether a file or directory was created after the snapshot before the job. Not within the same tick of the clock of
/// the file system: undo must not remove a file of the user. Returns `None` if the file system has no birth times.
pub(crate) fn is_younger(path: &Path, started: u64) -> Option<bool> {
    let created = fs::symlink_metadata(path).ok()?.created().ok()?;
    Some(created > UNIX_EPOCH + Duration::from_nanos(started))
}

/// Returns the directories that the job created: younger than the job, or moved by the job.
pub(crate) fn find_created(
    change_set: &ChangeSet,
    sides: &BTreeMap<PathBuf, Sides>,
    started: u64,
) -> Vec<PathBuf> {
    let root = &change_set.worktree;
    let occupied = list_parents(sides, |sides| sides.before != FileState::Absent);
    let moved: BTreeSet<&Path> = change_set.files.iter().filter_map(|file| moved_into(root, file)).collect();
    let is_created = |directory: &&Path| {
        is_directory(&root.join(directory))
            && (moved.contains(directory) || is_younger(&root.join(directory), started) == Some(true))
    };
    let new = list_parents(sides, |sides| sides.after != FileState::Absent);
    new.difference(&occupied).copied().filter(is_created).map(Path::to_owned).collect()
}

/// Returns the directories that the job removed.
pub(crate) fn find_removed(root: &Path, sides: &BTreeMap<PathBuf, Sides>) -> Vec<PathBuf> {
    let old = list_parents(sides, |sides| sides.before != FileState::Absent);
    old.into_iter().filter(|directory| !is_directory(&root.join(directory))).map(Path::to_owned).collect()
}

/// Returns the directory of a renamed file whose old directory is gone.
fn moved_into<'a>(root: &Path, file: &'a model::FileChange) -> Option<&'a Path> {
    let ChangeKind::Renamed { from } = &file.kind else { return None };
    (!is_directory(&root.join(from.parent()?))).then(|| file.path.parent())?
}

/// Lists the directories above some paths, without the root.
fn list_parents(sides: &BTreeMap<PathBuf, Sides>, filter: impl Fn(&Sides) -> bool) -> BTreeSet<&Path> {
    let paths = sides.iter().filter(|(_, sides)| filter(sides)).map(|(path, _)| path);
    let parents = paths.flat_map(|path| path.ancestors().skip(1));
    parents.filter(|parent| !parent.as_os_str().is_empty()).collect()
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}
