//! Moves paths that a run created and must not leave behind into the directory of the run.
//!
//! A mount needs an existing mount point, so it cannot protect a missing path. Instead, each missing protected path is recorded before the
//! agent starts, and a file found there later is moved to quarantine. Switchboard never creates files in the workspace, and a killed
//! supervisor leaves just the list in the directory of its run, from which the recovery does the same.
//!
//! Nothing is deleted and nothing is overwritten. No symbolic link is followed: the parent directory is opened component by component,
//! and everything else is relative to it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::Quarantined;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use crate::change_time::{ChangeTime, change_time};
use crate::inert_repository::is_inert;
use crate::repository_watch::RepositoryWatch;
use crate::unlock::{UnlockedDirectory, open_directory, unlock_path};
use crate::writable_roots::{HeldRoots, WritableRoot};

mod store;

pub use store::{QUARANTINE_DIRECTORY, QuarantineStore};

/// The maximum number of directories of the kept state that are unlocked at the same time: each takes a file descriptor.
const MAX_UNLOCKED_DIRECTORIES: usize = 64;

/// The time at which a path is moved to quarantine, the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuarantineTime {
    /// As soon as it appears.
    AtOnce,
    /// When the run is over.
    AtEnd,
    /// When the run is over, unless it is an inert git repository.
    AtEndUnlessInert,
}

/// The paths that a run must not leave behind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quarantine {
    /// The protected paths that did not exist when the run started.
    #[serde(with = "model::exact_path")]
    missing: Vec<(PathBuf, QuarantineTime)>,
    /// The kept directories of the agent's state, and the start of the run.
    #[serde(default, with = "model::exact_path")]
    kept_state: Option<(Vec<PathBuf>, ChangeTime)>,
    /// The repositories in the workspaces.
    #[serde(default)]
    pub(crate) repositories: RepositoryWatch,
    /// The directories that the run may write to.
    #[serde(default)]
    roots: Vec<WritableRoot>,
}

impl Quarantine {
    /// Adds a missing path.
    pub(crate) fn add(&mut self, path: PathBuf, time: QuarantineTime) {
        if !self.missing.iter().any(|(known, _)| *known == path) {
            self.missing.push((path, time));
        }
    }

    /// Returns the protected paths that did not exist when the run started.
    pub(crate) fn missing(&self) -> &[(PathBuf, QuarantineTime)] {
        &self.missing
    }

    /// Returns the missing paths below a directory.
    pub(crate) fn below(&self, directory: &Path) -> Self {
        let missing = self.missing.iter().filter(|(path, _)| path.starts_with(directory));
        Self { missing: missing.cloned().collect(), ..Self::default() }
    }

    /// Watches kept directories of the agent's state, in which the run may leave regular files only: through a link, the agent's next session,
    /// which may be unconfined, would write to another directory. Repositories that run commands are moved like those in a workspace.
    ///
    /// `new` is a directory that was just created for the run: its ctime is the present time of the file system. Links that another active run
    /// may have created count, too: both agents could hide one from the other's sweep by renaming directories.
    pub(crate) fn watch_kept_state(
        &mut self,
        directories: &[PathBuf],
        new: &Path,
        others: &[Self],
    ) -> io::Result<()> {
        if !directories.is_empty() {
            let shares =
                |kept: &Path| directories.iter().any(|own| own.starts_with(kept) || kept.starts_with(own));
            let sharing = others.iter().filter_map(|other| other.kept_state.as_ref());
            let sharing = sharing.filter(|(kept, _)| kept.iter().any(|kept| shares(kept)));
            let started = sharing.map(|(_, started)| *started).chain([change_time(&fs::metadata(new)?)]);
            // An agent can have several state directories.
            let earlier = self.kept_state.take();
            let started = started.chain(earlier.iter().map(|(_, started)| *started)).min();
            let kept = earlier.into_iter().flat_map(|(kept, _)| kept).chain(directories.iter().cloned());
            self.kept_state = started.map(|started| (kept.collect(), started));
            // A repository there runs its commands as soon as the user's git looks at the directory.
            if self.repositories.is_empty() {
                self.repositories = RepositoryWatch::new(Vec::new());
            }
            for directory in directories {
                self.repositories.add_workspace(directory);
            }
            for other in others {
                self.repositories.distrust(&other.repositories);
            }
        }
        Ok(())
    }

    /// Returns whether there is nothing to watch.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.kept_state.is_none() && self.repositories.is_empty()
    }

    /// Returns the parent directories of the paths that are moved at once.
    pub fn watched_directories(&self) -> Vec<&Path> {
        let at_once = self.missing.iter().filter(|(_, time)| *time == QuarantineTime::AtOnce);
        let mut directories: Vec<&Path> = at_once.filter_map(|(path, _)| path.parent()).collect();
        directories.dedup();
        directories
    }

    /// Moves the paths that must not exist even during the run, and returns those that were found.
    pub fn move_at_once(&self, roots: &HeldRoots, store: QuarantineStore<'_>) -> Vec<PathBuf> {
        let (present, _) = self.relocate(roots);
        let at_once = present.missing.into_iter().filter(|(_, time)| *time == QuarantineTime::AtOnce);
        let mut found = Vec::new();
        for (path, _) in at_once {
            let Ok(_unlocked) = unlock_path(&path) else { continue };
            // A path that cannot be moved now is retried and reported by the sweep.
            if matches!(store.displace(&path), Ok(true) | Err(_)) {
                found.push(path);
            }
        }
        found
    }

    /// Moves all paths that exist now, and returns all that were moved since the start of the run. Must be called after the last process of the
    /// run has exited.
    ///
    /// Newly found paths are passed to `record` before they are moved: after a kill at any moment, a sweep of the recorded list returns them,
    /// too.
    pub fn sweep(
        &self,
        roots: &HeldRoots,
        store: QuarantineStore<'_>,
        record: impl FnOnce(&Self),
    ) -> Vec<Quarantined> {
        let (present, lost) = self.relocate(roots);
        let mut quarantined = present.sweep_present(store, lost, record);
        // Paths that were moved before their root was renamed are stored under their old name.
        let is_elsewhere = |path: &&PathBuf| !present.missing.iter().any(|(present, _)| present == *path);
        let elsewhere = self.missing.iter().map(|(path, _)| path).filter(is_elsewhere);
        quarantined.extend(elsewhere.flat_map(|path| store.moved_copies(path)));
        self.remove_empty_task_directories();
        quarantined
    }

    /// Removes the directory that was created for the tasks of a session, if it is empty. No other run has the same session.
    fn remove_empty_task_directories(&self) {
        let directories = self.kept_state.iter().flat_map(|(directories, _)| directories);
        for directory in
            directories.filter(|path| path.parent().is_some_and(|above| above.ends_with("tasks")))
        {
            // Fails if it is not empty.
            let _ = fs::remove_dir(directory);
        }
    }

    /// Sweeps a list with present paths.
    fn sweep_present(
        &self,
        store: QuarantineStore<'_>,
        mut unexamined: BTreeSet<PathBuf>,
        record: impl FnOnce(&Self),
    ) -> Vec<Quarantined> {
        let mut quarantined = Vec::new();
        for (path, time) in &self.missing {
            let _unlocked = match unlock_path(path) {
                Ok(unlocked) => unlocked,
                Err(directory) => {
                    unexamined.insert(directory);
                    continue;
                }
            };
            let is_inert = *time == QuarantineTime::AtEndUnlessInert && is_inert(path, &[]);
            let stays = !is_inert && store.displace(path).is_err();
            store.collect_renamed(path);
            quarantined.extend(store.moved_copies(path));
            if stays {
                quarantined.push(Quarantined { path: path.clone(), moved_to: None, unexamined: false });
            }
        }
        let mut planted = self.repositories.find_planted();
        unexamined.append(&mut planted.unexamined);
        // Paths that could only be renamed in place are reported already.
        let is_moved = |path: &Path| {
            quarantined
                .iter()
                .filter_map(|entry| entry.moved_to.as_ref())
                .any(|moved| path.starts_with(moved))
        };
        planted.paths.retain(|path| !is_moved(path));
        let SpecialFiles { paths, locked, unlocked: _unlocked } = self.find_special_files();
        unexamined.extend(locked);
        // A link with the name of a repository is both.
        let found: BTreeSet<PathBuf> = paths.into_iter().chain(mem::take(&mut planted.paths)).collect();
        if !found.is_empty() {
            let mut recorded = self.clone();
            for path in &found {
                recorded.add(path.clone(), QuarantineTime::AtEnd);
            }
            record(&recorded);
        }
        for path in found {
            let stays = store.displace(&path).is_err();
            store.collect_renamed(&path);
            quarantined.extend(store.moved_copies(&path));
            if stays {
                quarantined.push(Quarantined { path, moved_to: None, unexamined: false });
            }
        }
        let unexamined = unexamined.into_iter();
        quarantined.extend(unexamined.map(|path| Quarantined { path, moved_to: None, unexamined: true }));
        quarantined
    }

    /// Records the directories that the run may write to, and opens them.
    pub(crate) fn add_roots(&mut self, paths: &[PathBuf]) -> io::Result<HeldRoots> {
        let mut held = HeldRoots::default();
        for path in paths {
            self.roots.push(held.open(path)?);
        }
        Ok(held)
    }

    /// Returns the directories that the run may write to.
    pub(crate) fn roots(&self) -> &[WritableRoot] {
        &self.roots
    }

    /// Returns the list with the present paths, and the roots that cannot be found. The old path of a lost root is not examined: its
    /// contents may be the user's.
    fn relocate(&self, held: &HeldRoots) -> (Self, BTreeSet<PathBuf>) {
        let located: Vec<_> = self.roots.iter().map(|root| (&root.path, root.locate(held))).collect();
        let locate = |path: &Path| {
            let around = located.iter().filter(|(root, _)| path.starts_with(root));
            let Some((root, present)) = around.max_by_key(|(root, _)| root.components().count()) else {
                return Some(path.to_owned());
            };
            let below = path.strip_prefix(root).ok()?.components();
            Some(present.as_ref()?.components().chain(below).collect())
        };
        let locate_all = |paths: &[PathBuf]| paths.iter().filter_map(|path| locate(path)).collect();
        let missing = self.missing.iter().filter_map(|(path, time)| Some((locate(path)?, *time)));
        let kept_state = self.kept_state.as_ref();
        let roots = self.roots.iter().zip(&located).map(|(root, (_, present))| WritableRoot {
            path: present.as_ref().unwrap_or(&root.path).clone(),
            identity: root.identity,
        });
        let mut present = Self {
            missing: missing.collect(),
            kept_state: kept_state.map(|(directories, started)| (locate_all(directories), *started)),
            repositories: self.repositories.relocate(locate),
            roots: roots.collect(),
        };
        let in_workspaces = located.iter().filter(|(root, _)| self.repositories.covers(root));
        for path in in_workspaces.filter_map(|(_, path)| path.as_ref()) {
            // It may have been moved out of the workspace that covered it.
            present.repositories.add_workspace(path);
        }
        let lost = located.iter().filter(|(_, present)| present.is_none());
        (present, lost.map(|(root, _)| (*root).clone()).collect())
    }
}

/// Special files in the kept state: links, pipes and the like.
#[derive(Default)]
struct SpecialFiles {
    paths: Vec<PathBuf>,
    /// The directories that cannot be read.
    locked: Vec<PathBuf>,
    /// Directories whose permissions the agent had removed.
    unlocked: Vec<UnlockedDirectory>,
}

impl Quarantine {
    /// Returns the special files that appeared in the kept state since the run started.
    fn find_special_files(&self) -> SpecialFiles {
        let mut found = SpecialFiles::default();
        let Some((directories, started)) = &self.kept_state else { return found };
        let mut pending = directories.clone();
        while let Some(directory) = pending.pop() {
            let is_locked = |found: fs::Metadata| found.mode() & Mode::RWXU.bits() != Mode::RWXU.bits();
            if fs::symlink_metadata(&directory).is_ok_and(is_locked)
                && found.unlocked.len() < MAX_UNLOCKED_DIRECTORIES
                && let Ok(opened) = open_directory(&directory)
            {
                found.unlocked.push(UnlockedDirectory::grant(opened.as_fd()));
            }
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    found.locked.push(directory);
                    continue;
                }
                Err(_) => continue,
            };
            for entry in entries.flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                    Ok(kind) if kind.is_file() => {}
                    // An entry that cannot be examined counts as new: its directory is readable but not searchable.
                    _ if entry.metadata().map_or(true, |found| change_time(&found) >= *started) => {
                        found.paths.push(entry.path());
                    }
                    _ => {}
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
