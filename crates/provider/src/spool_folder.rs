//! The folder of a request: private, temporary, and gone when the request is.
//!
//! Owns its removal, which is also what ends a run that nobody holds any more: a supervisor whose folder is gone ends its
//! tree within a second. So a request that is dropped at any moment, even while its supervisor is being started, leaves
//! neither a file nor a process.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use supervisor::Spool;
use tempfile::TempDir;

use crate::config::{ProviderConfig, folder_of};
use crate::error::ProviderError;

/// How the names of the folders begin.
pub(crate) const PREFIX: &str = "switchboard-";

/// How often the removal is tried: the supervisor may write its last words in between.
const TRIES: u32 = 20;

#[derive(Debug)]
pub(crate) struct SpoolFolder {
    /// None only while it is dropped.
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

    /// The spool of the next run.
    pub fn next(&mut self) -> Spool {
        self.runs += 1;
        let folder = self.folder.as_ref().map_or(Path::new("/"), TempDir::path);
        Spool::at(folder.join(format!("run-{}", self.runs)))
    }
}

impl Drop for SpoolFolder {
    fn drop(&mut self) {
        let Some(folder) = self.folder.take() else { return };
        // By hand, because a folder that is written to meanwhile is not empty when it is to be removed.
        let path = folder.keep();
        for _ in 0..TRIES {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                // Gone, or not ours to remove any more.
                _ => return,
            }
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
        let made = first.folder().parent().unwrap();
        assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
        assert_ne!(folder.next().folder(), first.folder());
        drop(folder);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_cannot_be_used_is_told() {
        let surroundings = BTreeMap::from([("TMPDIR".to_owned(), "/nowhere/at/all".to_owned())]);
        let error = SpoolFolder::make(&ProviderConfig::default(), &surroundings).unwrap_err();
        assert_eq!(error.to_string(), "cannot make a folder in `/nowhere/at/all`");
    }
}
