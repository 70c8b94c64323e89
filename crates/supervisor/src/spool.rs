//! The folder of a run's files.
//!
//! | file | what it is | written by |
//! | --- | --- | --- |
//! | `plan.json`, `stdin`, `private/` | what is to be run; the plan is removed once the agent has started, the private files once it has ended | the starter |
//! | `output`, `error` | what the agent printed, byte for byte, only ever growing: `tail -f` works | the supervisor |
//! | `status.json` | [`model::RunStatus`], replaced as a whole at the start and at the end | the supervisor, or the recovery |
//! | `status.first`, `status.next` | room kept free for the two statuses, so that it can be written on a full disk | the supervisor |
//! | `supervisor.log` | only there when the supervisor had something to complain about | the supervisor |
//!
//! Folders are for the user alone (0700), files too (0600): they hold prompts and, for a moment, secrets. Whoever holds the
//! lock on the folder is its one writer.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::{RunId, RunPlan, RunStatus, STATUS_VERSION};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Room for a status with the longest paths in it.
const RESERVED_BYTES: u64 = 16 * 1024;

/// A run's folder, by its path. Making one of these touches nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spool {
    folder: PathBuf,
}

/// What stands in `plan.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    version: u32,
    pub run_id: RunId,
    pub plan: RunPlan,
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
        self.folder.join("status.json")
    }

    /// Where the private files of a plan are while it runs.
    pub fn private(&self) -> PathBuf {
        self.folder.join("private")
    }

    pub(crate) fn stdin(&self) -> PathBuf {
        self.folder.join("stdin")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("supervisor.log")
    }

    fn plan_file(&self) -> PathBuf {
        self.folder.join("plan.json")
    }

    /// What the supervisor last wrote down; none when it has written nothing yet.
    pub fn status(&self) -> Result<Option<RunStatus>, SpoolError> {
        let path = self.status_file();
        let Some(status) = read_json::<RunStatus>(&path)? else { return Ok(None) };
        if status.version == STATUS_VERSION {
            Ok(Some(status))
        } else {
            Err(SpoolError::OtherVersion { path, version: status.version })
        }
    }

    /// What was asked for; none when the agent has been started already, or nothing was ever asked for.
    pub(crate) fn order(&self) -> Result<Option<Order>, SpoolError> {
        let path = self.plan_file();
        let Some(order) = read_json::<Order>(&path)? else { return Ok(None) };
        if order.version == STATUS_VERSION {
            Ok(Some(order))
        } else {
            Err(SpoolError::OtherVersion { path, version: order.version })
        }
    }

    /// Lays the plan and its files down for a supervisor. The folder is made when it is missing; one that holds a run
    /// already is refused.
    pub(crate) fn lay_down(&self, run_id: RunId, plan: &RunPlan) -> Result<(), SpoolError> {
        let cannot_write = |source| SpoolError::CannotWrite { path: self.folder.clone(), source };
        make_folder(&self.folder).map_err(cannot_write)?;
        for taken in [self.status_file(), self.plan_file(), self.output()] {
            if taken.exists() {
                return Err(SpoolError::Taken { folder: self.folder.clone() });
            }
        }
        if !plan.private_files.is_empty() {
            make_folder(&self.private()).map_err(cannot_write)?;
        }
        for (name, bytes) in &plan.private_files {
            create(&self.private().join(name))
                .and_then(|mut file| file.write_all(bytes))
                .map_err(cannot_write)?;
        }
        create(&self.stdin()).and_then(|mut file| file.write_all(&plan.stdin)).map_err(cannot_write)?;
        let order = Order { version: STATUS_VERSION, run_id, plan: plan.clone() };
        let json = serde_json::to_vec(&order).map_err(|error| cannot_write(error.into()))?;
        create(&self.plan_file()).and_then(|mut file| file.write_all(&json)).map_err(cannot_write)
    }

    /// Forgets the plan: it may hold secrets in its environment, and the status now says all that is needed.
    pub(crate) fn forget_plan(&self) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.plan_file()))
    }

    /// Removes the private files.
    pub(crate) fn clear_private(&self) -> io::Result<()> {
        ignore_missing(fs::remove_dir_all(self.private()))
    }

    /// Creates a file that only grows, for a stream of the agent.
    pub(crate) fn create_stream(path: &Path) -> io::Result<File> {
        create(path)
    }

    /// Becomes the one writer of the folder; none when somebody else is. Given back when the lock is dropped or its process
    /// ends, however it ends.
    pub(crate) fn lock(&self) -> io::Result<Option<SpoolLock>> {
        let folder = File::open(&self.folder)?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(SpoolLock { _folder: folder })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the room for a later status now, so that a disk that fills up later cannot keep it from being written.
    pub(crate) fn reserve_status(&self, name: &str) -> io::Result<StatusSlot> {
        let next = self.folder.join(name);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        match fallocate(&file, FallocateFlags::empty(), 0, RESERVED_BYTES) {
            // A file system that cannot reserve leaves us with hope, as before.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(StatusSlot { file, next, target: self.status_file() }),
            Err(error) => Err(error.into()),
        }
    }
}

/// The proof that its holder is the one writer of a spool.
#[derive(Debug)]
pub struct SpoolLock {
    _folder: File,
}

/// Reserved room for one status.
#[derive(Debug)]
pub struct StatusSlot {
    file: File,
    next: PathBuf,
    target: PathBuf,
}

impl StatusSlot {
    /// Replaces the status as a whole: a reader sees the old one or the new one, also after a loss of power.
    ///
    /// The bytes are on the disk before the name is. The name itself is left to the file system's journal: should the power
    /// fail before it is there, the old status names a supervisor of another boot, and the run counts as lost, not as
    /// something it was not.
    pub fn publish(self, status: &RunStatus) -> io::Result<()> {
        let json = serde_json::to_vec(status)?;
        self.file.write_all_at(&json, 0)?;
        self.file.set_len(json.len() as u64)?;
        self.file.sync_data()?;
        fs::rename(&self.next, &self.target)
    }

    /// Gives the room back.
    pub fn give_up(self) {
        // A file too many is no reason to fail.
        let _ = fs::remove_file(self.next);
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, SpoolError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SpoolError::Unreadable { path: path.into(), source }),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| SpoolError::Damaged { path: path.into(), source })
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
