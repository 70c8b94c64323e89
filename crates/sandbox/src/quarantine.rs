//! Moves paths that a run created and must not leave behind into the directory of the run.
//!
//! A mount needs something to be mounted on, so a path that does not exist cannot be protected by one. Instead, each missing protected
//! path is remembered before the agent starts, and whatever is found there later is moved away: nothing of ours is ever in the
//! workspace, and a killed supervisor leaves nothing but a list in its own directory, from which the recovery does the same.
//!
//! Nothing is deleted and nothing is overwritten. No symbolic link is followed: the parent directory is opened component by component,
//! and everything else is relative to it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use model::Quarantined;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fstat, mkdirat, openat, renameat_with, statat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::new_repository;
use crate::repository_watch::RepositoryWatch;

mod writable_roots;

pub use writable_roots::HeldRoots;
pub(crate) use writable_roots::WritableRoot;

/// Names the directory of quarantined paths in the directory of a run.
pub const QUARANTINE_DIRECTORY: &str = "quarantine";
/// How many copies of one path are kept at most; a run is stopped long before.
const COPIES: u32 = 100;
/// How many directories of the kept state are unlocked at most at the same time: each takes an open file.
const UNLOCKED_DIRECTORIES: usize = 64;
/// How much is copied at most to another file system.
const COPY_BYTES: u64 = 64 << 20;
const COPY_ENTRIES: u32 = 10_000;
const DIRECTORY_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// When a path is moved to quarantine, the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuarantineTime {
    /// As soon as it appears.
    AtOnce,
    /// When the run is over.
    AtEnd,
    /// When the run is over, unless it is a git repository that runs no commands.
    AtEndUnlessInert,
}

/// The paths that a run must not leave behind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quarantine {
    /// The protected paths that did not exist when the run started.
    #[serde(with = "model::exact_path")]
    missing: Vec<(PathBuf, QuarantineTime)>,
    /// The directories of the agent's state that are kept, and when the run started.
    #[serde(default, with = "model::exact_path")]
    kept_state: Option<(Vec<PathBuf>, ChangeTime)>,
    /// The repositories in the workspaces.
    #[serde(default)]
    pub(crate) repositories: RepositoryWatch,
    /// The directories that the run may write.
    #[serde(default)]
    roots: Vec<WritableRoot>,
}

/// When a file was last changed, created or moved, by a clock that no agent sets: seconds and nanoseconds.
pub(crate) type ChangeTime = (i64, i64);

/// The directory of a run, to which paths are moved.
#[derive(Debug, Clone, Copy)]
pub struct QuarantineStore<'a> {
    /// The open directory.
    pub directory: BorrowedFd<'a>,
    /// Its absolute path, by which moved paths are reported.
    pub path: &'a Path,
    /// What tells names of this run from all others.
    pub mark: &'a str,
}

impl Quarantine {
    /// Adds a path that does not exist now.
    pub(crate) fn add(&mut self, path: PathBuf, time: QuarantineTime) {
        if !self.missing.iter().any(|(known, _)| *known == path) {
            self.missing.push((path, time));
        }
    }

    /// Returns the protected paths that did not exist when the run started.
    pub(crate) fn missing(&self) -> &[(PathBuf, QuarantineTime)] {
        &self.missing
    }

    /// Returns the part of it that lies in a directory.
    pub(crate) fn below(&self, directory: &Path) -> Self {
        let missing = self.missing.iter().filter(|(path, _)| path.starts_with(directory));
        Self { missing: missing.cloned().collect(), ..Self::default() }
    }

    /// Lets the run leave nothing but ordinary files in kept directories of its agent's state. Through a link there, the agent's next
    /// session would write somewhere else, and that agent may not be confined.
    ///
    /// `new` is a directory that was just made for the run: it tells the time by the clock of the file system. A link that another
    /// active run may have left counts, too: the agents of both could keep it from the other's sweep by renaming directories.
    pub(crate) fn keep_plain(
        &mut self,
        directories: &[PathBuf],
        new: &Path,
        others: &[Self],
    ) -> io::Result<()> {
        if !directories.is_empty() {
            let shares =
                |kept: &Path| directories.iter().any(|own| own.starts_with(kept) || kept.starts_with(own));
            let others = others.iter().filter_map(|other| other.kept_state.as_ref());
            let others = others.filter(|(kept, _)| kept.iter().any(|kept| shares(kept)));
            let started = others.map(|(_, started)| *started).chain([change_time(&fs::metadata(new)?)]);
            self.kept_state = started.min().map(|started| (directories.to_vec(), started));
        }
        Ok(())
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.kept_state.is_none() && self.repositories.is_empty()
    }

    /// Returns the directories in which a path may appear that is moved at once.
    pub fn watched_directories(&self) -> Vec<&Path> {
        let at_once = self.missing.iter().filter(|(_, time)| *time == QuarantineTime::AtOnce);
        let mut directories: Vec<&Path> = at_once.filter_map(|(path, _)| path.parent()).collect();
        directories.dedup();
        directories
    }

    /// Moves the paths that must not even exist during the run, and returns those that were found.
    pub fn move_at_once(&self, roots: &HeldRoots, store: QuarantineStore<'_>) -> Vec<PathBuf> {
        let (present, _) = self.relocate(roots);
        let at_once = present.missing.into_iter().filter(|(_, time)| *time == QuarantineTime::AtOnce);
        let mut found = Vec::new();
        for (path, _) in at_once {
            let Ok(_unlocked) = unlock(&path) else { continue };
            // A path that cannot be moved now is tried again at the end, and reported then.
            if matches!(displace(&path, store), Ok(true) | Err(_)) {
                found.push(path);
            }
        }
        found
    }

    /// Moves all paths that exist now, when no process of the run is left, and returns all that were moved since the start of the
    /// run.
    ///
    /// Paths that are only found now are recorded before they are moved: after a kill at any moment, a sweep by the recorded list
    /// returns them, too.
    pub fn sweep(
        &self,
        roots: &HeldRoots,
        store: QuarantineStore<'_>,
        record: impl FnOnce(&Self),
    ) -> Vec<Quarantined> {
        let (present, lost) = self.relocate(roots);
        let mut quarantined = present.sweep_present(store, lost, record);
        // Those that were moved before their root was renamed have another name in the store.
        let is_elsewhere = |path: &&PathBuf| !present.missing.iter().any(|(present, _)| present == *path);
        let elsewhere = self.missing.iter().map(|(path, _)| path).filter(is_elsewhere);
        quarantined.extend(elsewhere.flat_map(|path| moved(path, store)));
        self.remove_empty_sessions();
        quarantined
    }

    /// Removes the directory that was made for the tasks of a session, if the agent left none. No other run has the same session.
    fn remove_empty_sessions(&self) {
        let directories = self.kept_state.iter().flat_map(|(directories, _)| directories);
        for directory in
            directories.filter(|path| path.parent().is_some_and(|above| above.ends_with("tasks")))
        {
            // Fails for one that is not empty.
            let _ = fs::remove_dir(directory);
        }
    }

    /// Sweeps where the paths are those of this moment.
    fn sweep_present(
        &self,
        store: QuarantineStore<'_>,
        mut unexamined: BTreeSet<PathBuf>,
        record: impl FnOnce(&Self),
    ) -> Vec<Quarantined> {
        let mut quarantined = Vec::new();
        for (path, time) in &self.missing {
            let _unlocked = match unlock(path) {
                Ok(unlocked) => unlocked,
                Err(directory) => {
                    unexamined.insert(directory);
                    continue;
                }
            };
            let is_inert = *time == QuarantineTime::AtEndUnlessInert && new_repository::is_inert(path, &[]);
            let stays = !is_inert && displace(path, store).is_err();
            bring_home(path, store);
            quarantined.extend(moved(path, store));
            if stays {
                quarantined.push(Quarantined { path: path.clone(), moved_to: None, unexamined: false });
            }
        }
        let mut planted = self.repositories.find_planted();
        unexamined.append(&mut planted.unexamined);
        // Not what was only renamed in its place.
        let is_moved = |path: &Path| {
            quarantined
                .iter()
                .filter_map(|entry| entry.moved_to.as_ref())
                .any(|moved| path.starts_with(moved))
        };
        planted.paths.retain(|path| !is_moved(path));
        let KeptLinks { links, locked, unlocked: _unlocked } = self.links_in_kept_state();
        unexamined.extend(locked);
        let found: Vec<PathBuf> = links.into_iter().chain(mem::take(&mut planted.paths)).collect();
        if !found.is_empty() {
            let mut recorded = self.clone();
            for path in &found {
                recorded.add(path.clone(), QuarantineTime::AtEnd);
            }
            record(&recorded);
        }
        for path in found {
            let stays = displace(&path, store).is_err();
            bring_home(&path, store);
            quarantined.extend(moved(&path, store));
            if stays {
                quarantined.push(Quarantined { path, moved_to: None, unexamined: false });
            }
        }
        let unexamined = unexamined.into_iter();
        quarantined.extend(unexamined.map(|path| Quarantined { path, moved_to: None, unexamined: true }));
        quarantined
    }
}

/// Links, pipes and the like in the kept state.
#[derive(Default)]
struct KeptLinks {
    links: Vec<PathBuf>,
    /// The directories that cannot be read.
    locked: Vec<PathBuf>,
    /// The rights that the agent had taken away, until this is dropped.
    unlocked: Vec<Permission>,
}

impl Quarantine {
    /// Returns the links, pipes and the like that appeared in the kept state since the run started.
    fn links_in_kept_state(&self) -> KeptLinks {
        let mut found = KeptLinks::default();
        let Some((directories, started)) = &self.kept_state else { return found };
        let mut open = directories.clone();
        while let Some(directory) = open.pop() {
            let is_locked = |found: fs::Metadata| found.mode() & Mode::RWXU.bits() != Mode::RWXU.bits();
            if fs::symlink_metadata(&directory).is_ok_and(is_locked)
                && found.unlocked.len() < UNLOCKED_DIRECTORIES
                && let Ok(opened) = open_directory(&directory)
            {
                found.unlocked.push(Permission::grant(opened.as_fd()));
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
                    Ok(kind) if kind.is_dir() => open.push(entry.path()),
                    Ok(kind) if kind.is_file() => {}
                    // One that cannot be examined counts as new: its directory can be read and not searched.
                    _ if entry.metadata().map_or(true, |found| change_time(&found) >= *started) => {
                        found.links.push(entry.path());
                    }
                    _ => {}
                }
            }
        }
        found
    }
}

pub(crate) fn change_time(found: &fs::Metadata) -> ChangeTime {
    (found.ctime(), found.ctime_nsec())
}

/// Moves a path into the store. Where that is impossible (another file system, a removed store), renames it in its place, so that no
/// program obeys it any more. Returns whether there was something.
fn displace(path: &Path, store: QuarantineStore<'_>) -> io::Result<bool> {
    // One question for a path that is missing, as most are.
    if matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound) {
        return Ok(false);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    let parent = open_directory(parent)?;
    let into_store = || {
        let target = target_directory(path, store)?;
        rename_to_free_name(parent.as_fd(), name, target.as_fd(), |copy| numbered(name, copy))
    };
    let in_place =
        || rename_to_free_name(parent.as_fd(), name, parent.as_fd(), |copy| aside(name, store.mark, copy));
    let moved = into_store().or_else(|_| in_place());
    let moved = match moved {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // The agent may have taken the rights away that it takes to move a path.
            let _restored = Permission::grant_move(parent.as_fd(), name);
            into_store().or_else(|_| in_place())
        }
        moved => moved,
    };
    match moved {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        moved => moved.map(|()| true),
    }
}

/// Grants the rights that it takes to look at a path, until the result is dropped: the agent may have taken them away. Fails with the
/// directory that cannot be examined.
fn unlock(path: &Path) -> Result<Vec<Permission>, PathBuf> {
    let mut unlocked = Vec::new();
    let is_locked = |found: io::Result<_>| {
        found.is_err_and(|error: io::Error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    if !is_locked(fs::symlink_metadata(path)) {
        return Ok(unlocked);
    }
    let mut examined = PathBuf::from("/");
    let Ok(mut directory) = openat(rustix::fs::CWD, "/", DIRECTORY_FLAGS, Mode::empty()) else {
        return Err(examined);
    };
    for part in relative(path).components() {
        let open = || openat(&directory, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty());
        let opened = match open() {
            Err(Errno::ACCESS) => {
                unlocked.push(Permission::grant(directory.as_fd()));
                open()
            }
            opened => opened,
        };
        directory = match opened {
            Ok(opened) => opened,
            Err(Errno::ACCESS) => return Err(examined),
            // It is missing, a file or a link: nothing below it is looked at.
            Err(_) => break,
        };
        examined.push(part);
    }
    Ok(unlocked)
}

/// Copies renamed paths into the store and removes them. A path that is too large, or no ordinary file, stays in its place.
fn bring_home(path: &Path, store: QuarantineStore<'_>) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
    for copy in 1..=COPIES {
        let aside = aside(name, store.mark, copy);
        let is_missing = fs::symlink_metadata(parent.join(&aside)).is_err();
        if is_missing || copy_home(path, &aside, store).is_err() {
            return;
        }
    }
}

fn copy_home(path: &Path, aside: &OsStr, store: QuarantineStore<'_>) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let (parent, target) = (open_directory(parent)?, target_directory(path, store)?);
    let below = |directory: &OwnedFd, name: &OsStr| {
        PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
    };
    let (from, partial) = (below(&parent, aside), below(&target, OsStr::new(".partial")));
    remove(&partial)?;
    let mut room = Room { bytes: COPY_BYTES, entries: COPY_ENTRIES };
    if let Err(error) = copy_tree(&from, &partial, &mut room) {
        let _ = remove(&partial);
        return Err(error);
    }
    rename_to_free_name(target.as_fd(), OsStr::new(".partial"), target.as_fd(), |copy| numbered(name, copy))?;
    remove(&from)
}

/// What may still be copied.
struct Room {
    bytes: u64,
    entries: u32,
}

fn copy_tree(from: &Path, to: &Path, room: &mut Room) -> io::Result<()> {
    let too_much = || io::Error::other("too much to be copied");
    room.entries = room.entries.checked_sub(1).ok_or_else(too_much)?;
    let found = fs::symlink_metadata(from)?;
    if found.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy_tree(&from.join(&name), &to.join(&name), room)?;
        }
        return fs::set_permissions(to, found.permissions());
    }
    if found.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if !found.is_file() {
        return Err(io::Error::other("no ordinary file"));
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(from)?;
    let copied = io::copy(&mut file.take(room.bytes + 1), &mut File::create_new(to)?)?;
    room.bytes = room.bytes.checked_sub(copied).ok_or_else(too_much)?;
    fs::set_permissions(to, found.permissions())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns where the copies of a path are: in the store, and those that could only be renamed.
fn moved(path: &Path, store: QuarantineStore<'_>) -> Vec<Quarantined> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
    let stored = store.path.join(QUARANTINE_DIRECTORY).join(relative(parent));
    let exists = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
    let in_store = (1..=COPIES).map(|copy| stored.join(numbered(name, copy))).take_while(exists);
    let in_place = (1..=COPIES).map(|copy| parent.join(aside(name, store.mark, copy))).take_while(exists);
    let entry = |moved_to: PathBuf| Quarantined {
        path: path.to_owned(),
        moved_to: Some(moved_to),
        unexamined: false,
    };
    in_store.chain(in_place).map(entry).collect()
}

/// The name of a copy in the store: `hooks`, `hooks.2`, …
fn numbered(name: &OsStr, copy: u32) -> OsString {
    let mut name = name.to_owned();
    if copy > 1 {
        name.push(format!(".{copy}"));
    }
    name
}

/// The name of a copy that stays in its directory.
fn aside(name: &OsStr, mark: &str, copy: u32) -> OsString {
    let mut aside = name.to_owned();
    aside.push(format!(".quarantined-{mark}"));
    numbered(&aside, copy)
}

fn relative(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// Opens a directory without following a link anywhere on the way.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let mut directory = openat(rustix::fs::CWD, "/", DIRECTORY_FLAGS, Mode::empty())?;
    for part in relative(path).components() {
        directory = openat(&directory, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty())?;
    }
    Ok(directory)
}

/// Opens the directory in the store for a path, and makes it.
fn target_directory(path: &Path, store: QuarantineStore<'_>) -> io::Result<OwnedFd> {
    let parent = relative(path.parent().unwrap_or(Path::new("/")));
    let mut directory = store.directory.try_clone_to_owned()?;
    for part in Path::new(QUARANTINE_DIRECTORY).join(parent).components() {
        match mkdirat(&directory, part.as_os_str(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        directory = openat(&directory, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty())?;
    }
    Ok(directory)
}

/// Renames to the first name that is free.
fn rename_to_free_name(
    from: BorrowedFd<'_>,
    name: &OsStr,
    to: BorrowedFd<'_>,
    name_of: impl Fn(u32) -> OsString,
) -> io::Result<()> {
    for copy in 1..=COPIES {
        let target = name_of(copy);
        match renameat_with(from, name, to, &target, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            // A file system that cannot promise it. In the directory of the run nobody else makes names.
            Err(Errno::INVAL) => match statat(to, &target, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(rustix::fs::renameat(from, name, to, &target)?),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// All rights of the owner of a directory, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permission(Option<(OwnedFd, Stat)>);

impl Permission {
    /// Grants the rights that it takes to move a path out of its directory.
    fn grant_move(parent: BorrowedFd<'_>, name: &OsStr) -> Self {
        // A directory that moves to another one is written: its `..` changes.
        if let Ok(entry) = openat(parent, name, DIRECTORY_FLAGS, Mode::empty())
            && let Ok(found) = fstat(&entry)
        {
            set_mode(&entry, found.st_mode | Mode::RWXU.bits());
        }
        Self::grant(parent)
    }

    /// Grants them to a directory that is open without any rights.
    pub(crate) fn grant(directory: BorrowedFd<'_>) -> Self {
        let Ok((directory, found)) = directory.try_clone_to_owned().and_then(|directory| {
            let found = fstat(&directory)?;
            Ok((directory, found))
        }) else {
            return Self(None);
        };
        set_mode(&directory, found.st_mode | Mode::RWXU.bits());
        Self(Some((directory, found)))
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        if let Some((directory, found)) = &self.0 {
            set_mode(directory, found.st_mode);
        }
    }
}

/// Changes the mode of a directory that is open without any rights. A failure shows in the move that follows.
fn set_mode(directory: &OwnedFd, mode: u32) {
    if FileType::from_raw_mode(mode).is_dir() {
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let _ = rustix::fs::chmod(path, Mode::from_raw_mode(mode & 0o7777));
    }
}

#[cfg(test)]
mod tests;
