//! The folder of a run's files, for those who read it.
//!
//! | file | what it is | written by |
//! | --- | --- | --- |
//! | `plan.json`, `stdin`, `private/` | what is to be run; the plan is removed once the agent has started, the private files once it has ended | the starter |
//! | `output`, `error` | what the agent printed, byte for byte, only ever growing: `tail -f` works | the supervisor; made by the starter |
//! | `status.json` | [`model::RunStatus`], replaced as a whole at the start and at the end | the supervisor, or the recovery |
//! | `status.first`, `status.next` | room kept free for the two statuses, so that a full disk cannot keep them from being written | the supervisor; the second is reserved by the starter |
//! | `supervisor.log` | only there when the supervisor had something to complain about | the supervisor |
//!
//! Folders are for the user alone (0700), files too (0600): they hold prompts and, for a moment, secrets. Whoever holds the
//! lock on the folder is its one writer (see `held`).

use std::io;
use std::path::{Path, PathBuf};

use model::RunStatus;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::SpoolError;
use crate::manifest::RunManifest;
use crate::regular::{open_directory, read_regular};
use crate::spool_files::{PLAN, STATUS, Versioned, parse};

/// A run's folder, by its path. Making one of these touches nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spool {
    folder: PathBuf,
}

impl Spool {
    /// The spool in that folder, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the agent's stdout is.
    pub fn output(&self) -> PathBuf {
        self.folder.join("output")
    }

    /// Where the agent's stderr is.
    pub fn error(&self) -> PathBuf {
        self.folder.join("error")
    }

    /// Where the status is.
    pub fn status_file(&self) -> PathBuf {
        self.folder.join(STATUS)
    }

    /// Where the private files of a plan are while it runs.
    pub fn private(&self) -> PathBuf {
        self.folder.join("private")
    }

    /// Returns where the paths are that were moved out of the workspace; missing unless there was one.
    pub fn quarantine(&self) -> PathBuf {
        self.folder.join(sandbox::QUARANTINE_DIRECTORY)
    }

    /// What the supervisor last wrote down; none when it has written nothing yet.
    pub fn status(&self) -> Result<Option<RunStatus>, SpoolError> {
        self.read(STATUS)
    }

    /// What was asked for; none when the agent has been started already, or nothing was ever asked for.
    pub(crate) fn order(&self) -> Result<Option<RunManifest>, SpoolError> {
        self.read(PLAN)
    }

    fn read<T: Versioned>(&self, name: &str) -> Result<Option<T>, SpoolError> {
        let path = self.folder.join(name);
        match read_regular(&path) {
            // Empty is what a loss of power leaves of a file that had just been written.
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => Ok(None),
            Ok(bytes) => parse(path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SpoolError::Unreadable { path, source }),
        }
    }

    /// Whether somebody writes to the folder: a supervisor or a recovery.
    pub fn is_held(&self) -> io::Result<bool> {
        let folder = open_directory(&self.folder)?;
        // Shared, so that two who ask do not take each other for a writer.
        match flock(&folder, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
