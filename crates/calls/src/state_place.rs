//! The place of the state directory, which a user may move while a service runs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path of the state directory, and the directory that was there when the service opened it.
#[derive(Debug)]
pub(crate) struct StatePlace {
    path: PathBuf,
    directory: File,
}

impl StatePlace {
    /// Remembers the directory at a path.
    pub fn new(path: PathBuf) -> io::Result<Self> {
        Ok(Self { directory: File::open(&path)?, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the directory is still at its path. If not, a file that is written to the path would be stray.
    pub fn is_in_place(&self) -> bool {
        let (Ok(opened), Ok(found)) = (self.directory.metadata(), fs::metadata(&self.path)) else {
            return false;
        };
        (opened.dev(), opened.ino()) == (found.dev(), found.ino())
    }

    /// Returns whether the directory was moved, and the files of its jobs with it. They are not lost.
    pub fn was_moved(&self) -> bool {
        !self.is_in_place() && self.directory.metadata().is_ok_and(|found| found.nlink() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_directory_is_told_from_a_removed_one() {
        let scratch = tempfile::tempdir().unwrap();
        let (state, moved) = (scratch.path().join("state"), scratch.path().join("moved"));
        fs::create_dir(&state).unwrap();
        let place = StatePlace::new(state.clone()).unwrap();
        assert!(place.is_in_place() && !place.was_moved());
        fs::rename(&state, &moved).unwrap();
        assert!(!place.is_in_place() && place.was_moved());
        fs::create_dir(&state).unwrap();
        assert!(!place.is_in_place() && place.was_moved());
        fs::remove_dir(&state).unwrap();
        fs::rename(&moved, &state).unwrap();
        assert!(place.is_in_place() && !place.was_moved());
        fs::remove_dir(&state).unwrap();
        assert!(!place.is_in_place() && !place.was_moved());
    }
}
