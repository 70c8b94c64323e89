//! The identity of a state directory, independent of its path and of the host name.
//!
//! Owns `identity.json`: a constant id, and the placement of the directory's jobs. The opener holds the directory's lock, so every earlier
//! owner with its id is dead, unless the directory is a copy: then the original may be alive and share its store. The file records the
//! device and inode, which differ in a copy.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::{Owner, Placement};
use regular_file::read_regular;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::files::replace_durably;

const FILE: &str = "identity.json";

/// The identity of a state directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateIdentity {
    id: Uuid,
    /// The host part of the placement of its jobs: the id, or the host name for a directory that is older than its id.
    home: String,
    /// The location when it was last opened.
    place: Place,
}

/// The location of a directory. It differs for a copy, and after every reboot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    boot: String,
    device: u64,
    inode: u64,
}

/// An identity and whether the directory was moved.
#[derive(Debug)]
pub(crate) struct Opened {
    pub identity: StateIdentity,
    /// Is true if the directory is where it was when it was last opened.
    pub is_in_place: bool,
}

/// An identity file that is empty or was changed by hand.
#[derive(Debug, thiserror::Error)]
#[error("`{}` is damaged", path.display())]
pub(crate) struct DamagedIdentity {
    path: PathBuf,
    source: serde_json::Error,
}

impl DamagedIdentity {
    /// Returns the remedy. With a store of its own, a directory with a new identity adopts all jobs.
    pub fn hint(&self) -> String {
        format!(
            "restore `{}` from a backup, or remove it: the directory gets a new identity and keeps its jobs",
            self.path.display()
        )
    }
}

impl StateIdentity {
    /// Reads or creates the identity of a directory. The caller holds the directory's lock. If the directory was moved, the caller writes
    /// the identity once it is known not to be a copy of a directory in use.
    pub fn open(state: &Path) -> io::Result<Opened> {
        let place = Place::of(state)?;
        let damaged = |source| io::Error::other(DamagedIdentity { path: state.join(FILE), source });
        let known: Option<Self> = match read_regular(&state.join(FILE)) {
            Ok(text) => Some(serde_json::from_slice(&text).map_err(damaged)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let Some(known) = known else {
            let identity = Self::new(state, place);
            identity.write(state)?;
            return Ok(Opened { identity, is_in_place: true });
        };
        let is_in_place = known.place == place;
        Ok(Opened { identity: Self { place, ..known }, is_in_place })
    }

    fn new(state: &Path, place: Place) -> Self {
        let id = Uuid::new_v4();
        let has_jobs = fs::read_dir(state.join("jobs")).is_ok_and(|mut jobs| jobs.next().is_some());
        let home = if has_jobs { host_name() } else { id.to_string() };
        Self { id, home, place }
    }

    /// Replaces the file durably: without its identity the directory would own none of its jobs.
    pub fn write(&self, state: &Path) -> io::Result<()> {
        replace_durably(state, FILE, self)
    }

    /// Returns the default placement of jobs.
    pub fn home(&self) -> Placement {
        Placement::Host(self.home.clone())
    }

    /// Returns a unique owner name.
    pub fn new_owner(&self) -> Owner {
        Owner::new(format!("{}{}", self.owners(), Uuid::new_v4()))
    }

    /// Returns the common prefix of all owner names of this directory.
    pub fn owners(&self) -> String {
        format!("{}#", self.id)
    }
}

impl Place {
    fn of(directory: &Path) -> io::Result<Self> {
        let found = fs::metadata(directory)?;
        // Without a boot id, a reboot looks like a crash, which only costs a wait.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(Self { boot: boot.trim().to_owned(), device: found.dev(), inode: found.ino() })
    }
}

/// Returns the placement name that earlier versions used for jobs of this machine.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_stays_the_same_under_every_spelling() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateIdentity::open(directory.path()).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        for spelling in [directory.path().join("."), link.join("."), link] {
            let again = StateIdentity::open(&spelling).unwrap();
            assert_eq!((again.identity, again.is_in_place), (first.identity.clone(), true));
        }
    }

    #[test]
    fn copied_directory_is_recognized() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = StateIdentity::open(one.path()).unwrap().identity;
        fs::copy(one.path().join(FILE), other.path().join(FILE)).unwrap();
        let copy = StateIdentity::open(other.path()).unwrap();
        assert_eq!((copy.identity.id, copy.is_in_place), (first.id, false));
        assert!(!StateIdentity::open(other.path()).unwrap().is_in_place, "told until it is written");
        copy.identity.write(other.path()).unwrap();
        assert!(StateIdentity::open(other.path()).unwrap().is_in_place);
    }

    #[test]
    fn jobs_of_an_older_version_keep_their_home() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("jobs/one")).unwrap();
        assert_eq!(
            StateIdentity::open(directory.path()).unwrap().identity.home(),
            Placement::Host(host_name())
        );
    }
}
