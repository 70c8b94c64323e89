//! The lock that makes a daemon the only one of its state folder, and what it says about its holder.
//!
//! The kernel frees it when the holder is gone, however it went. What stands in the file is an address for front-ends and never a
//! proof: a dead daemon's words stay until the next one's.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

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
}

impl Holder {
    /// Who last held the lock of a state folder; whether it still does, only a connection can tell.
    pub fn last(state: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path(state)).ok()?).ok()
    }
}

/// The right to be the daemon, for as long as the value lives.
#[derive(Debug)]
pub struct DaemonLock(File);

impl DaemonLock {
    /// Becomes the daemon; none when there is one.
    pub fn take(state: &Path) -> io::Result<Option<Self>> {
        let file = exclusive(&path(state))?;
        Ok(file.map(Self))
    }

    /// Whether the file that is locked is still the one that others find. Who removes the state folder makes way for another
    /// daemon, with another lock.
    pub fn is_in(&self, state: &Path) -> bool {
        let (Ok(held), Ok(found)) = (self.0.metadata(), fs::symlink_metadata(path(state))) else {
            return false;
        };
        (held.dev(), held.ino()) == (found.dev(), found.ino())
    }

    /// Says who holds it and where it listens.
    pub fn announce(&self, holder: &Holder) -> io::Result<()> {
        let text = serde_json::to_vec(holder)?;
        // Empty, then whole in one write: a reader finds nothing or everything, and looks again when it finds nothing.
        self.0.set_len(0)?;
        self.0.write_all_at(&text, 0)
    }
}

fn path(state: &Path) -> PathBuf {
    state.join("daemon.lock")
}

/// The lock on a file of the user's, made when it is missing; none when somebody else has it.
pub fn exclusive(path: &Path) -> io::Result<Option<File>> {
    // Not truncated: it may be another's words. Closed on exec, so that no supervisor goes on holding it.
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_holds_it_and_its_words_are_read_by_others() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Holder::last(state.path()), None);
        let lock = DaemonLock::take(state.path()).unwrap().unwrap();
        let long = Holder { pid: 1, version: "10.10.10".into(), socket: Some("/a/long/path".into()) };
        let short = Holder { pid: 2, version: "1".into(), socket: None };
        for holder in [long, short] {
            lock.announce(&holder).unwrap();
            assert_eq!(Holder::last(state.path()), Some(holder));
        }
        assert!(DaemonLock::take(state.path()).unwrap().is_none());
        drop(lock);
        assert!(DaemonLock::take(state.path()).unwrap().is_some());
    }

    #[test]
    fn a_lock_whose_file_was_removed_or_replaced_keeps_nobody_out() {
        let state = tempfile::tempdir().unwrap();
        let lock = DaemonLock::take(state.path()).unwrap().unwrap();
        assert!(lock.is_in(state.path()));
        fs::remove_file(path(state.path())).unwrap();
        assert!(!lock.is_in(state.path()));
        let next = DaemonLock::take(state.path()).unwrap().unwrap();
        assert!(!lock.is_in(state.path()) && next.is_in(state.path()));
    }
}
