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

use crate::config::{ProviderConfig, directory_variable};
use crate::error::ProviderError;

/// The prefix of the directories.
pub(crate) const PREFIX: &str = "switchboard-";

/// The number of removal attempts: the supervisor may write its final status in between.
const TRIES: u32 = 20;

#[derive(Debug)]
pub(crate) struct RequestDirectory {
    /// `None` only during drop.
    directory: Option<TempDir>,
    runs: u32,
}

impl RequestDirectory {
    pub fn create(
        config: &ProviderConfig,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, ProviderError> {
        let temporary = || directory_variable(environment, "TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
        let parent = config.spools.clone().unwrap_or_else(temporary);
        let made = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&parent);
        let directory =
            made.map_err(|source| ProviderError::directory("cannot create a directory in", &parent, source))?;
        Ok(Self { directory: Some(directory), runs: 0 })
    }

    /// Returns the spool of the next run.
    pub fn next(&mut self) -> Spool {
        self.runs += 1;
        let directory = self.directory.as_ref().map_or(Path::new("/"), TempDir::path);
        Spool::at(directory.join(format!("run-{}", self.runs)))
    }
}

impl Drop for RequestDirectory {
    fn drop(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        // Removed manually: a directory that is written to concurrently is not empty.
        let path = directory.keep();
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
    fn request_directory_is_private_and_removed_on_drop() {
        let parent = tempfile::tempdir().unwrap();
        let config = ProviderConfig { spools: Some(parent.path().into()), ..ProviderConfig::default() };
        let mut directory = RequestDirectory::create(&config, &BTreeMap::new()).unwrap();
        let first = directory.next();
        std::fs::create_dir_all(first.private()).unwrap();
        let made = first.directory().parent().unwrap();
        assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(directory.next().directory(), first.directory());
        drop(directory);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn quarantined_files_outlive_the_request() {
        let parent = tempfile::tempdir().unwrap();
        let config = ProviderConfig { spools: Some(parent.path().into()), ..ProviderConfig::default() };
        let mut directory = RequestDirectory::create(&config, &BTreeMap::new()).unwrap();
        let (first, second) = (directory.next(), directory.next());
        for run in [&first, &second] {
            std::fs::create_dir_all(run.private()).unwrap();
        }
        std::fs::create_dir_all(first.quarantine().join("home/shop")).unwrap();
        std::fs::write(first.quarantine().join("home/shop/.envrc"), "work").unwrap();
        drop(directory);
        assert_eq!(std::fs::read(first.quarantine().join("home/shop/.envrc")).unwrap(), b"work");
        assert!(!first.private().exists() && !second.directory().exists());
    }

    #[test]
    fn unusable_spool_parent_is_reported() {
        let environment = BTreeMap::from([("TMPDIR".to_owned(), "/nowhere/at/all".to_owned())]);
        let error = RequestDirectory::create(&ProviderConfig::default(), &environment).unwrap_err();
        assert_eq!(error.to_string(), "cannot create a directory in `/nowhere/at/all`");
    }
}
