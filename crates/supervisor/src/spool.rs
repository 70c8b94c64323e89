//! Read access to a spool, the directory of a run's files.
//!
//! | file | content | written by |
//! | --- | --- | --- |
//! | `plan.json`, `private/` | manifest and private files; the plan is removed once the agent has started, the private files once it has exited | starter |
//! | `input` | the bytes for stdin of the agent, append-only | starter; then the holder of a [`crate::RunInput`] |
//! | `control` | commands to the supervisor, one JSON value per line, append-only; missing unless the input is open | holder of a [`crate::RunInput`]; created by the starter |
//! | `driver.json` | the starter's own notes for the readers of the output; missing if there are none | starter |
//! | `output`, `error` | stdout and stderr of the agent, byte for byte and append-only, so `tail -f` works | supervisor; created by the starter |
//! | `status.json` | [`model::RunStatus`], replaced atomically at the start and at the end | supervisor or recovery |
//! | `status.first`, `status.next` | space reserved for the two statuses, so that a full disk cannot prevent them | supervisor; the starter reserves the second |
//! | `supervisor.log` | errors of the supervisor; missing if there were none | supervisor |
//!
//! Directories have mode 0700 and files 0600: they contain prompts and, temporarily, secrets. The process that holds
//! the lock on the directory is its only writer (see `locked_spool`), except for an open input: `input` and `control` are
//! written by the process that holds the lock on `input`.

use std::io;
use std::path::{Path, PathBuf};

use model::RunStatus;
use regular_file::read_regular;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::SpoolError;
use crate::manifest::RunManifest;
use crate::spool_files::{CONTROL, DRIVER, INPUT, PLAN, STATUS, Versioned, open_directory, parse};

/// The path of a spool. Creating a value does not touch the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spool {
    directory: PathBuf,
}

impl Spool {
    /// Returns the spool in a directory, which need not exist yet.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the directory itself.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the bytes for the agent's stdin.
    pub fn input(&self) -> PathBuf {
        self.directory.join(INPUT)
    }

    /// Returns the path of the commands to the supervisor. The file exists only if the input is open.
    pub(crate) fn control(&self) -> PathBuf {
        self.directory.join(CONTROL)
    }

    /// Returns the path of the starter's notes ([`model::RunPlan::driver`]).
    pub fn driver(&self) -> PathBuf {
        self.directory.join(DRIVER)
    }

    /// Returns the path of the agent's stdout.
    pub fn output(&self) -> PathBuf {
        self.directory.join("output")
    }

    /// Returns the path of the agent's stderr.
    pub fn error(&self) -> PathBuf {
        self.directory.join("error")
    }

    /// Returns the path of the status file.
    pub fn status_file(&self) -> PathBuf {
        self.directory.join(STATUS)
    }

    /// Returns the directory of the plan's private files, which exists during the run.
    pub fn private(&self) -> PathBuf {
        self.directory.join("private")
    }

    /// Returns the directory of quarantined paths. It exists only if a path was moved out of the workspace.
    pub fn quarantine(&self) -> PathBuf {
        self.directory.join(sandbox::QUARANTINE_DIRECTORY)
    }

    /// Returns the status, or `None` if the supervisor has not written one yet.
    pub fn status(&self) -> Result<Option<RunStatus>, SpoolError> {
        self.read_json(STATUS)
    }

    /// Returns the manifest, or `None` if the agent has already started or no run was prepared.
    pub(crate) fn manifest(&self) -> Result<Option<RunManifest>, SpoolError> {
        self.read_json(PLAN)
    }

    fn read_json<T: Versioned>(&self, name: &str) -> Result<Option<T>, SpoolError> {
        let path = self.directory.join(name);
        match read_regular(&path) {
            // After a power loss, a freshly written file may be empty or zero-filled.
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => Ok(None),
            Ok(bytes) => parse(path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SpoolError::Unreadable { path, source }),
        }
    }

    /// Returns whether a supervisor, a starter or a recovery holds the lock.
    pub fn is_locked(&self) -> io::Result<bool> {
        let directory = open_directory(&self.directory)?;
        // A shared lock, so that concurrent readers do not mistake each other for the writer.
        match flock(&directory, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
