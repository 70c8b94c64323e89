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
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use model::{RunStatus, STATUS_VERSION};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use crate::held::{RunManifest, STATUS, Versioned};
use crate::lack::is_resource_exhaustion;
use crate::regular::read_regular;

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
        self.read(crate::held::PLAN)
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

/// Opens the directory of a run. A FIFO or a link in its place is refused.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

/// Reads what a program of this version has written.
pub(crate) fn parse<T: Versioned>(path: PathBuf, bytes: &[u8]) -> Result<T, SpoolError> {
    match serde_json::from_slice::<T>(bytes) {
        Ok(value) if value.version() == STATUS_VERSION => Ok(value),
        Ok(value) => Err(SpoolError::OtherVersion { path, version: value.version() }),
        Err(source) => Err(SpoolError::Damaged { path, source }),
    }
}

/// A spool that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The operating system refused.
    #[error("cannot read `{}`", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Not what a supervisor writes.
    #[error("`{}` is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where it goes wrong.
        source: serde_json::Error,
    },
    /// Written by another version of this program.
    #[error("`{}` has format {version}, and this program reads format {STATUS_VERSION}", path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The operating system refused.
    #[error("cannot write to the spool `{}`", path.display())]
    CannotWrite {
        /// The folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// There is a run in it already.
    #[error("the spool `{}` already holds a run", folder.display())]
    Taken {
        /// The folder.
        folder: PathBuf,
    },
}

impl SpoolError {
    /// Whether it may pass: the machine lacks something for now.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreadable { source, .. } | Self::CannotWrite { source, .. } => {
                is_resource_exhaustion(source)
            }
            Self::Damaged { .. } | Self::OtherVersion { .. } | Self::Taken { .. } => false,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "check that the folder is there and belongs to you",
            Self::Damaged { .. } => {
                "the file was changed by another program; the output beside it is still readable"
            }
            Self::OtherVersion { .. } => "use the version of Switchboard that started the run",
            Self::CannotWrite { .. } => "check the free space and the rights of the folder",
            Self::Taken { .. } => "give every run a folder of its own",
        }
    }
}
