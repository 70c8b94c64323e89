//! The directory of a run's files, for those who read it.
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
//! lock on the directory is its one writer (see `held`).

use std::io;
use std::path::{Path, PathBuf};

use model::RunStatus;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::SpoolError;
use crate::manifest::RunManifest;
use crate::regular::{open_directory, read_regular};
use crate::spool_files::{PLAN, STATUS, Versioned, parse};

/// A run's directory, by its path. Making one of these touches nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spool {
    directory: PathBuf,
}

impl Spool {
    /// The spool in that directory, which need not exist yet.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the agent's stdout is.
    pub fn output(&self) -> PathBuf {
        self.directory.join("output")
    }

    /// Where the agent's stderr is.
    pub fn error(&self) -> PathBuf {
        self.directory.join("error")
    }

    /// Where the status is.
    pub fn status_file(&self) -> PathBuf {
        self.directory.join(STATUS)
    }

    /// Where the private files of a plan are while it runs.
    pub fn private(&self) -> PathBuf {
        self.directory.join("private")
    }

    /// Returns where the paths are that were moved out of the workspace; missing unless there was one.
    pub fn quarantine(&self) -> PathBuf {
        self.directory.join(sandbox::QUARANTINE_DIRECTORY)
    }

    /// What the supervisor last wrote down; none when it has written nothing yet.
    pub fn status(&self) -> Result<Option<RunStatus>, SpoolError> {
        self.read_json(STATUS)
    }

    /// What was asked for; none when the agent has been started already, or nothing was ever asked for.
    pub(crate) fn manifest(&self) -> Result<Option<RunManifest>, SpoolError> {
        self.read_json(PLAN)
    }

    fn read_json<T: Versioned>(&self, name: &str) -> Result<Option<T>, SpoolError> {
        let path = self.directory.join(name);
        match read_regular(&path) {
            // Empty is what a loss of power leaves of a file that had just been written.
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => Ok(None),
            Ok(bytes) => parse(path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SpoolError::Unreadable { path, source }),
        }
    }

    /// Whether somebody writes to the directory: a supervisor or a recovery.
    pub fn is_locked(&self) -> io::Result<bool> {
        let directory = open_directory(&self.directory)?;
        // Shared, so that two who ask do not take each other for a writer.
        match flock(&directory, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
