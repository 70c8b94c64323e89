//! Takes the snapshot before a job.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::error::ChangesError;
use crate::files::{copy_index, remove_directory, remove_file, write_json};
use crate::git::{Git, GitSession};
use crate::head::{read_commit, read_nested_commit};
use crate::layout::RecordLayout;
use crate::listing::{Listing, list_changes};
use crate::objects::keep_blobs;
use crate::private_git;
use crate::repository::GitRepository;
use crate::snapshot::{Candidate, FILE_LIMIT, record_files};
use crate::state::{BeforeSnapshot, FileState};
use crate::worktree_files::{Found, WorktreeFiles};

/// Takes the snapshot and replaces an incomplete one.
pub(crate) fn take_snapshot(
    layout: &RecordLayout,
    repository: &GitRepository,
    session: GitSession,
) -> Result<(), ChangesError> {
    for path in [layout.before_index(), layout.after_index(), layout.changes(), layout.patch()] {
        remove_file(&path)?;
    }
    layout.remove_scratch();
    let git = private_git::create(&layout.git_dir(), repository, session)?;
    let started = read_clock(&layout.git_dir());
    let index = layout.user_index();
    private_git::copy_user_index(&git, repository, &index)?;
    let base = read_commit(repository, &git);
    let excluded = layout.path_in(&git.worktree);
    let listing = list_changes(&git, &index, FILE_LIMIT, excluded.as_deref())?;
    let files = record_listing(&git, &layout.before_index(), &listing)?;
    let snapshot = BeforeSnapshot {
        worktree: repository.worktree().to_owned(),
        git_dir: repository.git_dir().to_owned(),
        common_dir: repository.common_dir().to_owned(),
        id_length: git.id_length,
        base,
        started,
        files: files.into_iter().collect(),
    };
    // A caller that has given up by now must not find a snapshot, which the job could overlap.
    git.check_time()?;
    write_json(&layout.before(), &snapshot)
}

/// Returns the time of the clock that also dates new files, in nanoseconds since 1970. It lags behind the system clock by up to a
/// tick, so the time is that of a file just written.
fn read_clock(git_dir: &Path) -> u64 {
    let modified = fs::metadata(git_dir.join("config")).and_then(|file| file.modified()).ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}

/// Removes the files of a snapshot that failed, as far as possible.
pub(crate) fn remove_files(layout: &RecordLayout) {
    let _ = remove_directory(&layout.git_dir());
    for path in [layout.user_index(), layout.before_index()] {
        let _ = remove_file(&path);
    }
}

/// Copies the snapshot of another record. The copy of the index is needed, so that record must not be sealed.
pub(crate) fn copy_snapshot(from: &RecordLayout, to: &RecordLayout) -> Result<(), ChangesError> {
    remove_directory(&to.git_dir())?;
    copy_directory(&from.git_dir(), &to.git_dir())?;
    for (from, to) in [(from.user_index(), to.user_index()), (from.before_index(), to.before_index())] {
        copy_index(&from, &to)?;
    }
    let copied = fs::copy(from.before(), to.before());
    copied.map(drop).map_err(ChangesError::file("copy", &from.before()))
}

/// Copies a directory that contains only regular files and directories. Objects are hard links: nothing changes their content.
fn copy_directory(from: &Path, to: &Path) -> Result<(), ChangesError> {
    regular_file::create_private_directory(to).map_err(ChangesError::file("create", to))?;
    for entry in fs::read_dir(from).map_err(ChangesError::file("read", from))?.flatten() {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy_directory(&path, &copy)?,
            Ok(_) if path.parent().and_then(Path::parent).is_some_and(|above| above.ends_with("objects")) => {
                fs::hard_link(&path, &copy).map_err(ChangesError::file("link", &path))?;
            }
            Ok(_) => drop(fs::copy(&path, &copy).map_err(ChangesError::file("copy", &path))?),
            Err(error) => return Err(ChangesError::file("read", &path)(error)),
        }
    }
    Ok(())
}

fn record_listing(
    git: &Git,
    index: &Path,
    listing: &Listing,
) -> Result<BTreeMap<PathBuf, FileState>, ChangesError> {
    let regular = listing.tracked.values().flatten().filter(|entry| entry.is_regular());
    keep_blobs(git, &regular.map(|entry| entry.oid.as_str()).collect(), FILE_LIMIT)?;
    let new = |path: PathBuf| (path, Candidate::default());
    let mut candidates: BTreeMap<PathBuf, Candidate> =
        find_flagged(git, listing).into_iter().map(new).collect();
    candidates.extend(listing.untracked.iter().cloned().map(new));
    let tracked = listing.tracked.iter();
    candidates.extend(
        tracked.map(|(path, entry)| (path.clone(), Candidate { tracked: entry.clone(), known: false })),
    );
    let mut files = record_files(git, index, &candidates)?;
    for path in &listing.repositories {
        let commit = read_nested_commit(&git.worktree.join(path));
        files.insert(path.clone(), FileState::Repository { commit });
    }
    Ok(files)
}

/// Returns the existing files that git does not compare with the index.
fn find_flagged(git: &Git, listing: &Listing) -> Vec<PathBuf> {
    let mut files = WorktreeFiles::new(&git.worktree);
    let mut exists = |path: &PathBuf| matches!(files.inspect(path), Found::File(_) | Found::Link(_));
    let mut found: Vec<PathBuf> = listing.flags.files.iter().filter(|path| exists(path)).cloned().collect();
    for directory in &listing.flags.directories {
        walk_directory(&git.worktree, directory, &mut found);
    }
    found
}

/// Lists the files below a directory of a sparse index. Normally, the directory does not exist.
fn walk_directory(root: &Path, directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(metadata) = fs::symlink_metadata(root.join(directory)) else { return };
    if !metadata.is_dir() {
        return;
    }
    for entry in fs::read_dir(root.join(directory)).into_iter().flatten().flatten() {
        let path = directory.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk_directory(root, &path, found),
            Ok(_) => found.push(path),
            Err(_) => {}
        }
    }
}
