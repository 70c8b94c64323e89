//! The directory of a run that holds its quarantined paths.
//!
//! Nothing is deleted and nothing is overwritten. No symbolic link is followed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use model::Quarantined;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with, statat};
use rustix::io::Errno;

use crate::unlock::{DIRECTORY_FLAGS, UnlockedDirectory, open_directory, relative_path};

/// The name of the quarantine directory in the directory of a run.
pub const QUARANTINE_DIRECTORY: &str = "quarantine";
/// The maximum number of copies of one path; a run is stopped long before.
const MAX_COPIES: u32 = 100;
/// The limits of a copy to another file system.
pub(super) const MAX_COPY_BYTES: u64 = 64 << 20;
const MAX_COPY_ENTRIES: u32 = 10_000;

/// The directory of a run that quarantined paths are moved to.
#[derive(Debug, Clone, Copy)]
pub struct QuarantineStore<'a> {
    /// The open directory.
    pub directory: BorrowedFd<'a>,
    /// Its absolute path, by which moved paths are reported.
    pub path: &'a Path,
    /// A suffix that is unique to this run, for paths that can only be renamed in place.
    pub mark: &'a str,
}

impl QuarantineStore<'_> {
    /// Moves a path into the store. If that is impossible (another file system, a removed store), renames it in place, so that no
    /// program obeys it any more. Returns whether the path existed.
    pub(super) fn displace(self, path: &Path) -> io::Result<bool> {
        // A single syscall for a missing path, the usual case.
        if matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return Ok(false);
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
        let parent = open_directory(parent)?;
        let into_store = || {
            let target = self.target_directory(path)?;
            rename_to_free_name(parent.as_fd(), name, target.as_fd(), |copy| numbered(name, copy))
        };
        let in_place =
            || rename_to_free_name(parent.as_fd(), name, parent.as_fd(), |copy| aside(name, self.mark, copy));
        let moved = into_store().or_else(|_| in_place());
        let moved = match moved {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // The agent may have removed the permissions that a move needs.
                let _restored = UnlockedDirectory::grant_move(parent.as_fd(), name);
                into_store().or_else(|_| in_place())
            }
            moved => moved,
        };
        match moved {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            moved => moved.map(|()| true),
        }
    }

    /// Copies paths that were renamed in place into the store and removes them. A path that is too large, or not a regular file, stays.
    pub(super) fn collect_renamed(self, path: &Path) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        for copy in 1..=MAX_COPIES {
            let aside = aside(name, self.mark, copy);
            let is_missing = fs::symlink_metadata(parent.join(&aside)).is_err();
            if is_missing || self.copy_renamed(path, &aside).is_err() {
                return;
            }
        }
    }

    fn copy_renamed(self, path: &Path, aside: &OsStr) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let (parent, target) = (open_directory(parent)?, self.target_directory(path)?);
        let below = |directory: &OwnedFd, name: &OsStr| {
            PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
        };
        let (from, partial) = (below(&parent, aside), below(&target, OsStr::new(".partial")));
        remove_path(&partial)?;
        let mut budget = CopyBudget { bytes: MAX_COPY_BYTES, entries: MAX_COPY_ENTRIES };
        if let Err(error) = copy_tree(&from, &partial, &mut budget) {
            let _ = remove_path(&partial);
            return Err(error);
        }
        rename_to_free_name(target.as_fd(), OsStr::new(".partial"), target.as_fd(), |copy| {
            numbered(name, copy)
        })?;
        remove_path(&from)
    }

    /// Returns all copies of a path: those in the store, and those that were renamed in place.
    pub(super) fn moved_copies(self, path: &Path) -> Vec<Quarantined> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Vec::new() };
        let stored = self.path.join(QUARANTINE_DIRECTORY).join(relative_path(parent));
        let exists = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
        let in_store = (1..=MAX_COPIES).map(|copy| stored.join(numbered(name, copy))).take_while(exists);
        let in_place =
            (1..=MAX_COPIES).map(|copy| parent.join(aside(name, self.mark, copy))).take_while(exists);
        let entry = |moved_to: PathBuf| Quarantined {
            path: path.to_owned(),
            moved_to: Some(moved_to),
            unexamined: false,
        };
        in_store.chain(in_place).map(entry).collect()
    }

    /// Opens the directory in the store for a path, creating it if necessary.
    fn target_directory(self, path: &Path) -> io::Result<OwnedFd> {
        let parent = relative_path(path.parent().unwrap_or(Path::new("/")));
        let mut directory = self.directory.try_clone_to_owned()?;
        for part in Path::new(QUARANTINE_DIRECTORY).join(parent).components() {
            match mkdirat(&directory, part.as_os_str(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            directory = openat(&directory, part.as_os_str(), DIRECTORY_FLAGS, Mode::empty())?;
        }
        Ok(directory)
    }
}

/// The remaining size of a copy.
struct CopyBudget {
    bytes: u64,
    entries: u32,
}

fn copy_tree(from: &Path, to: &Path, budget: &mut CopyBudget) -> io::Result<()> {
    let too_large = || io::Error::other("too large to copy");
    budget.entries = budget.entries.checked_sub(1).ok_or_else(too_large)?;
    let found = fs::symlink_metadata(from)?;
    if found.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy_tree(&from.join(&name), &to.join(&name), budget)?;
        }
        return fs::set_permissions(to, found.permissions());
    }
    if found.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(from)?;
    let copied = io::copy(&mut file.take(budget.bytes + 1), &mut File::create_new(to)?)?;
    budget.bytes = budget.bytes.checked_sub(copied).ok_or_else(too_large)?;
    fs::set_permissions(to, found.permissions())
}

fn remove_path(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the name of a copy in the store: `hooks`, `hooks.2`, …
fn numbered(name: &OsStr, copy: u32) -> OsString {
    let mut name = name.to_owned();
    if copy > 1 {
        name.push(format!(".{copy}"));
    }
    name
}

/// Returns the name of a copy that stays in its directory.
fn aside(name: &OsStr, mark: &str, copy: u32) -> OsString {
    let mut aside = name.to_owned();
    aside.push(format!(".quarantined-{mark}"));
    numbered(&aside, copy)
}

/// Renames an entry to the first name that is free.
fn rename_to_free_name(
    from: BorrowedFd<'_>,
    name: &OsStr,
    to: BorrowedFd<'_>,
    target_name: impl Fn(u32) -> OsString,
) -> io::Result<()> {
    for copy in 1..=MAX_COPIES {
        let target = target_name(copy);
        match renameat_with(from, name, to, &target, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            // The file system has no RENAME_NOREPLACE. No other process creates names in the directory of the run.
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
