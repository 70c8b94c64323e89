//! The lock that makes a daemon the only one of its state directory, and the file in which it announces itself.
//!
//! The lock is on the directory itself, so no file that is removed from it lets a second daemon in; and on `daemon.lock`, where earlier
//! versions have theirs. The kernel releases both when the holder is gone, however it went. The file is an address for front-ends and never
//! a proof: the words of a dead daemon stay until the next one replaces them, and a copy of the directory has those of the original.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use supervisor::read_regular;

use crate::home::socket;

/// How often a lock is tried that [`is_held`] may hold for a moment.
const TRIES: u32 = 3;

/// Who holds the lock, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Where it listens; nowhere yet while it starts.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// The device and inode of its state directory.
    #[serde(default)]
    pub directory: Option<(u64, u64)>,
}

impl Holder {
    /// Returns the last holder of the lock of a state directory; whether it still holds it, only a connection can tell.
    pub fn last(state: &Path) -> Option<Self> {
        Self::announced(state).filter(|holder| holder.is_of(state))
    }

    /// Returns the holder of another directory, of which this one is a copy, if that daemon still listens.
    pub fn of_original(state: &Path) -> Option<Self> {
        let holder = Self::announced(state).filter(|holder| !holder.is_of(state))?;
        let listens = holder.socket.as_deref().is_some_and(|path| socket::connect(path).is_ok());
        listens.then_some(holder)
    }

    fn announced(state: &Path) -> Option<Self> {
        serde_json::from_slice(&read_regular(&path(state)).ok()?).ok()
    }

    fn is_of(&self, state: &Path) -> bool {
        self.directory
            .is_none_or(|directory| fs::metadata(state).is_ok_and(|found| place(&found) == directory))
    }
}

/// The right to be the daemon, for as long as the value lives.
#[derive(Debug)]
pub struct DaemonLock {
    directory: File,
    path: PathBuf,
    file: Mutex<File>,
}

impl DaemonLock {
    /// Becomes the daemon; none when there is one.
    pub fn take(state: &Path) -> io::Result<Option<Self>> {
        let directory = File::open(state)?;
        if !lock_exclusively(&directory)? {
            return Ok(None);
        }
        let path = path(state);
        let file = exclusive(&path)?;
        Ok(file.map(|file| Self { directory, path, file: Mutex::new(file) }))
    }

    /// Whether the locked directory is still the one that others find. Who removes the state directory makes way for another daemon.
    pub fn is_in(&self, state: &Path) -> bool {
        is_at(&self.directory, state)
    }

    /// Whether others still find the file in which the daemon announces itself.
    pub fn is_announced(&self) -> bool {
        is_at(&self.file.lock().unwrap_or_else(PoisonError::into_inner), &self.path)
    }

    /// Announces the holder and where it listens, in a new file if the old one was removed.
    pub fn announce(&self, holder: Holder) -> io::Result<()> {
        let holder = Holder { directory: Some(place(&self.directory.metadata()?)), ..holder };
        let text = serde_json::to_vec(&holder)?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_at(&file, &self.path) {
            *file = exclusive(&self.path)?.ok_or(io::ErrorKind::WouldBlock)?;
        }
        // Empty, then whole in one write: a reader finds nothing or everything, and looks again when it finds nothing.
        file.set_len(0)?;
        file.write_all_at(&text, 0)
    }
}

/// Whether a process holds the lock of a state directory, and so is its daemon, or is starting or ending as such.
pub fn is_held(state: &Path) -> bool {
    File::open(state).is_ok_and(|directory| {
        flock(&directory, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(found)) = (file.metadata(), fs::metadata(path)) else { return false };
    place(&held) == place(&found)
}

fn place(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn path(state: &Path) -> PathBuf {
    state.join("daemon.lock")
}

/// The lock on a file of the user's, made when it is missing; none when somebody else has it.
pub fn exclusive(path: &Path) -> io::Result<Option<File>> {
    // Not truncated: it may be another's words. Closed on exec, so that no supervisor goes on holding it.
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    Ok(lock_exclusively(&file)?.then_some(file))
}

fn lock_exclusively(file: &File) -> io::Result<bool> {
    for _ in 0..TRIES {
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
    fn only_one_holds_it_and_its_words_are_read_by_others() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Holder::last(state.path()), None);
        let lock = DaemonLock::take(state.path()).unwrap().unwrap();
        let directory = Some(place(&fs::metadata(state.path()).unwrap()));
        let long =
            Holder { pid: 1, version: "10.10.10".into(), socket: Some("/a/long/path".into()), directory };
        let short = Holder { pid: 2, version: "1".into(), socket: None, directory };
        for holder in [long, short] {
            lock.announce(holder.clone()).unwrap();
            assert_eq!(Holder::last(state.path()), Some(holder));
        }
        assert!(DaemonLock::take(state.path()).unwrap().is_none());
        drop(lock);
        assert!(DaemonLock::take(state.path()).unwrap().is_some());
    }

    #[test]
    fn removed_file_lets_no_second_daemon_in() {
        let state = tempfile::tempdir().unwrap();
        let lock = DaemonLock::take(state.path()).unwrap().unwrap();
        let holder = Holder { pid: 1, version: "1".into(), socket: None, directory: None };
        lock.announce(holder.clone()).unwrap();
        fs::remove_file(path(state.path())).unwrap();
        assert!(lock.is_in(state.path()) && !lock.is_announced() && is_held(state.path()));
        assert!(DaemonLock::take(state.path()).unwrap().is_none());
        lock.announce(holder).unwrap();
        assert!(lock.is_announced());
        assert_eq!(Holder::last(state.path()).unwrap().pid, 1);
    }

    #[test]
    fn removed_directory_keeps_nobody_out() {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("state");
        fs::create_dir(&state).unwrap();
        let lock = DaemonLock::take(&state).unwrap().unwrap();
        assert!(lock.is_in(&state));
        fs::rename(&state, scratch.path().join("old")).unwrap();
        fs::create_dir(&state).unwrap();
        assert!(!lock.is_in(&state) && !is_held(&state));
        assert!(DaemonLock::take(&state).unwrap().unwrap().is_in(&state));
    }

    #[test]
    fn copy_of_the_file_is_told_from_the_original() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let lock = DaemonLock::take(one.path()).unwrap().unwrap();
        let socket = one.path().join("socket");
        let listener = socket::listen(&socket).unwrap();
        let holder = Holder { pid: 1, version: "1".into(), socket: Some(socket), directory: None };
        lock.announce(holder).unwrap();
        fs::copy(path(one.path()), path(other.path())).unwrap();
        assert_eq!(Holder::last(other.path()), None);
        assert_eq!(Holder::of_original(other.path()), Holder::last(one.path()));
        assert_eq!(Holder::of_original(one.path()), None);
        drop(listener);
        assert_eq!(Holder::of_original(other.path()), None);
    }
}
