//! The daemon's lock on its state directory, and `daemon.lock`, which contains the address of the holder.
//!
//! The `flock` is held on the directory itself, so that removing a file does not admit a second daemon, and on `daemon.lock`, where
//! earlier versions hold theirs. The kernel releases both when the holder exits. The content of the file is an address and never
//! proof of a live daemon: it stays after a crash, and a copy of the directory contains that of the original.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use regular_file::{open_lock_file, read_regular};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::directory::open_directory;
use crate::socket;

/// The number of attempts to take a lock, which [`is_locked`] may hold briefly.
const MAX_ATTEMPTS: u32 = 3;

/// The content of `daemon.lock`, written by the holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Its socket; `None` while it starts.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// The device and inode of its state directory.
    #[serde(default)]
    pub directory: Option<(u64, u64)>,
}

impl LockHolder {
    /// Returns the last holder of a state directory's lock. Only a connection shows whether it still runs.
    pub fn read_last(state: &Path) -> Option<Self> {
        Self::read(state).filter(|holder| holder.owns(state))
    }

    /// Returns the holder of the directory that this one is a copy of, if that daemon still listens.
    pub fn find_original(state: &Path) -> Option<Self> {
        let holder = Self::read(state).filter(|holder| !holder.owns(state))?;
        let listens = holder.socket.as_deref().is_some_and(|path| socket::connect(path).is_ok());
        listens.then_some(holder)
    }

    fn read(state: &Path) -> Option<Self> {
        serde_json::from_slice(&read_regular(&lock_path(state)).ok()?).ok()
    }

    fn owns(&self, state: &Path) -> bool {
        self.directory.is_none_or(|directory| {
            fs::metadata(state).is_ok_and(|found| device_and_inode(&found) == directory)
        })
    }
}

/// The daemon's lock, released on drop.
#[derive(Debug)]
pub struct DaemonLock {
    directory: File,
    path: PathBuf,
    file: Mutex<File>,
}

impl DaemonLock {
    /// Takes the lock; `None` if another process holds it.
    pub fn try_acquire(state: &Path) -> io::Result<Option<Self>> {
        let directory = open_directory(state)?;
        if !try_flock(&directory)? {
            return Ok(None);
        }
        let path = lock_path(state);
        let file = try_lock_file(&path)?;
        Ok(file.map(|file| Self { directory, path, file: Mutex::new(file) }))
    }

    /// Returns whether a path still refers to the locked directory. After it was removed or replaced, another daemon may start.
    pub fn covers(&self, state: &Path) -> bool {
        is_same_file(&self.directory, state)
    }

    /// Returns whether the locked directory was removed, not moved.
    pub fn is_removed(&self) -> bool {
        self.directory.metadata().is_ok_and(|found| found.nlink() == 0)
    }

    /// Returns whether `daemon.lock` still exists.
    pub fn has_file(&self) -> bool {
        is_same_file(&self.file.lock().unwrap_or_else(PoisonError::into_inner), &self.path)
    }

    /// Writes the holder to `daemon.lock`, which is created anew if it was removed.
    pub fn write_holder(&self, holder: LockHolder) -> io::Result<()> {
        let holder = LockHolder { directory: Some(device_and_inode(&self.directory.metadata()?)), ..holder };
        let text = serde_json::to_vec(&holder)?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_same_file(&file, &self.path) {
            *file = try_lock_file(&self.path)?.ok_or(io::ErrorKind::WouldBlock)?;
        }
        // One write after the truncation: a reader sees nothing or everything, and retries if it sees nothing.
        file.set_len(0)?;
        file.write_all_at(&text, 0)
    }
}

/// Returns whether a process holds the lock of a state directory: a daemon that runs, starts or stops.
pub fn is_locked(state: &Path) -> bool {
    open_directory(state).is_ok_and(|directory| {
        flock(&directory, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}

fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(found)) = (file.metadata(), fs::metadata(path)) else { return false };
    device_and_inode(&held) == device_and_inode(&found)
}

fn device_and_inode(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn lock_path(state: &Path) -> PathBuf {
    state.join("daemon.lock")
}

/// Locks a file exclusively, creating it if it is missing; `None` if another process holds the lock.
pub fn try_lock_file(path: &Path) -> io::Result<Option<File>> {
    // Not truncated: the content may be another holder's. O_CLOEXEC, so that no supervisor inherits the lock.
    let file = open_lock_file(path)?;
    Ok(try_flock(&file)?.then_some(file))
}

fn try_flock(file: &File) -> io::Result<bool> {
    for _ in 0..MAX_ATTEMPTS {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_exclusive_and_its_holder_readable() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(LockHolder::read_last(state.path()), None);
        let lock = DaemonLock::try_acquire(state.path()).unwrap().unwrap();
        let directory = Some(device_and_inode(&fs::metadata(state.path()).unwrap()));
        let long =
            LockHolder { pid: 1, version: "10.10.10".into(), socket: Some("/a/long/path".into()), directory };
        let short = LockHolder { pid: 2, version: "1".into(), socket: None, directory };
        for holder in [long, short] {
            lock.write_holder(holder.clone()).unwrap();
            assert_eq!(LockHolder::read_last(state.path()), Some(holder));
        }
        assert!(DaemonLock::try_acquire(state.path()).unwrap().is_none());
        drop(lock);
        assert!(DaemonLock::try_acquire(state.path()).unwrap().is_some());
    }

    #[test]
    fn removed_lock_file_admits_no_second_daemon() {
        let state = tempfile::tempdir().unwrap();
        let lock = DaemonLock::try_acquire(state.path()).unwrap().unwrap();
        let holder = LockHolder { pid: 1, version: "1".into(), socket: None, directory: None };
        lock.write_holder(holder.clone()).unwrap();
        fs::remove_file(lock_path(state.path())).unwrap();
        assert!(lock.covers(state.path()) && !lock.has_file() && is_locked(state.path()));
        assert!(DaemonLock::try_acquire(state.path()).unwrap().is_none());
        lock.write_holder(holder).unwrap();
        assert!(lock.has_file());
        assert_eq!(LockHolder::read_last(state.path()).unwrap().pid, 1);
    }

    #[test]
    fn removed_directory_admits_new_daemon() {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("state");
        fs::create_dir(&state).unwrap();
        let lock = DaemonLock::try_acquire(&state).unwrap().unwrap();
        assert!(lock.covers(&state));
        fs::rename(&state, scratch.path().join("old")).unwrap();
        fs::create_dir(&state).unwrap();
        assert!(!lock.covers(&state) && !is_locked(&state));
        assert!(DaemonLock::try_acquire(&state).unwrap().unwrap().covers(&state));
    }

    #[test]
    fn copied_lock_file_is_recognized() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let lock = DaemonLock::try_acquire(one.path()).unwrap().unwrap();
        let socket = one.path().join("socket");
        let listener = socket::listen(&socket).unwrap();
        let holder = LockHolder { pid: 1, version: "1".into(), socket: Some(socket), directory: None };
        lock.write_holder(holder).unwrap();
        fs::copy(lock_path(one.path()), lock_path(other.path())).unwrap();
        assert_eq!(LockHolder::read_last(other.path()), None);
        assert_eq!(LockHolder::find_original(other.path()), LockHolder::read_last(one.path()));
        assert_eq!(LockHolder::find_original(one.path()), None);
        drop(listener);
        assert_eq!(LockHolder::find_original(other.path()), None);
    }
}
