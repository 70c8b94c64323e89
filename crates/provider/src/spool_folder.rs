//! The directory of a request: private, temporary, and removed with the request except for quarantined paths.
//!
//! Its removal also stops an abandoned run: a supervisor without its directory stops its tree within a second. So a request
//! that is dropped at any moment, even while its supervisor starts, leaves neither a file nor a process.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use supervisor::Spool;
use tempfile::TempDir;

use crate::config::{ProviderConfig, folder_of};
use crate::error::ProviderError;

/// The prefix of the directories.
pub(crate) const PREFIX: &str = "switchboard-";

/// The number of removal attempts: the supervisor may write its final status in between.
const TRIES: u32 = 20;

#[derive(Debug)]
pub(crate) struct SpoolFolder {
    /// `None` only during drop.
    folder: Option<TempDir>,
    runs: u32,
}

impl SpoolFolder {
    pub fn make(
        config: &ProviderConfig,
        surroundings: &BTreeMap<String, String>,
    ) -> Result<Self, ProviderError> {
        let temporary = || folder_of(surroundings, "TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
        let parent = config.spools.clone().unwrap_or_else(temporary);
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&parent);
        let folder =
            made.map_err(|source| ProviderError::folder("cannot make a folder in", &parent, source))?;
        Ok(Self { folder: Some(folder), runs: 0 })
    }

    /// Returns the spool of the next run.
    pub fn next(&mut self) -> Spool {
        self.runs += 1;
        let folder = self.folder.as_ref().map_or(Path::new("/"), TempDir::path);
        Spool::at(folder.join(format!("run-{}", self.runs)))
    }
}

impl Drop for SpoolFolder {
    fn drop(&mut self) {
        let Some(folder) = self.folder.take() else { return };
        // Removed manually: a directory that is written to concurrently is not empty.
        let path = folder.keep();
        let mut keeps = false;
        for run in 1..=self.runs {
            keeps |= remove_run(&Spool::at(path.join(format!("run-{run}"))));
        }
        if !keeps {
            remove(&path);
        }
    }
}

/// Removes the files of a run. Returns whether some remain: quarantined files belong to the user, and the answer contains their
/// path.
fn remove_run(spool: &Spool) -> bool {
    let aside = spool.directory().with_extension("quarantine");
    let keeps = std::fs::rename(spool.quarantine(), &aside).is_ok();
    // The whole directory: a supervisor that still runs stops when it is missing.
    remove(spool.directory());
    if keeps {
        let restored =
            std::fs::create_dir(spool.directory()).and_then(|()| std::fs::rename(&aside, spool.quarantine()));
        // On failure the files stay beside their location; a destructor cannot report it.
        let _ = restored;
    }
    keeps
}

fn remove(path: &Path) {
    for _ in 0..TRIES {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            // Removed, or no longer ours.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_gone_when_it_is_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let config = ProviderConfig { spools: Some(parent.path().into()), ..ProviderConfig::default() };
        let mut folder = SpoolFolder::make(&config, &BTreeMap::new()).unwrap();
        let first = folder.next();
        std::fs::create_dir_all(first.private()).unwrap();
        let made = first.directory().parent().unwrap();
        assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(folder.next().directory(), first.directory());
        drop(folder);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn quarantined_files_outlive_the_request() {
        let parent = tempfile::tempdir().unwrap();
        let config = ProviderConfig { spools: Some(parent.path().into()), ..ProviderConfig::default() };
        let mut folder = SpoolFolder::make(&config, &BTreeMap::new()).unwrap();
        let (first, second) = (folder.next(), folder.next());
        for run in [&first, &second] {
            std::fs::create_dir_all(run.private()).unwrap();
        }
        std::fs::create_dir_all(first.quarantine().join("home/shop")).unwrap();
        std::fs::write(first.quarantine().join("home/shop/.envrc"), "work").unwrap();
        drop(folder);
        assert_eq!(std::fs::read(first.quarantine().join("home/shop/.envrc")).unwrap(), b"work");
        assert!(!first.private().exists() && !second.directory().exists());
    }

    #[test]
    fn a_place_that_cannot_be_used_is_told() {
        let surroundings = BTreeMap::from([("TMPDIR".to_owned(), "/nowhere/at/all".to_owned())]);
        let error = SpoolFolder::make(&ProviderConfig::default(), &surroundings).unwrap_err();
        assert_eq!(error.to_string(), "cannot make a folder in `/nowhere/at/all`");
    }
}
