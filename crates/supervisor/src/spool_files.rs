//! File names and file format of a spool.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use model::{RunStatus, STATUS_VERSION};
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::de::DeserializeOwned;

use crate::error::SpoolError;

pub const STATUS: &str = "status.json";
pub const PLAN: &str = "plan.json";
pub const INPUT: &str = "input";
pub const CONTROL: &str = "control";
pub const DRIVER: &str = "driver.json";
pub const OUTPUT: &str = "output";
pub const ERROR: &str = "error";
pub const PRIVATE: &str = "private";
/// The agent's temporary files, if it has no private `/tmp`.
pub const TEMPORARY: &str = "tmp";
pub const LOG: &str = "supervisor.log";
pub const QUARANTINE: &str = "quarantine.json";
pub const QUARANTINE_NEXT: &str = "quarantine.next";

/// The temporary names of a status before its rename to [`STATUS`].
pub const STATUS_FIRST: &str = "status.first";
pub const STATUS_NEXT: &str = "status.next";

/// A file with a format version.
pub trait Versioned: DeserializeOwned {
    fn version(&self) -> u32;
}

impl Versioned for RunStatus {
    fn version(&self) -> u32 {
        self.version
    }
}

/// Parses a file, and rejects one of another format version.
pub(crate) fn parse<T: Versioned>(path: PathBuf, bytes: &[u8]) -> Result<T, SpoolError> {
    match serde_json::from_slice::<T>(bytes) {
        Ok(value) if value.version() == STATUS_VERSION => Ok(value),
        Ok(value) => Err(SpoolError::OtherVersion { path, version: value.version() }),
        Err(source) => Err(SpoolError::Damaged { path, source }),
    }
}

/// Opens the directory of a run. Anything but a directory is rejected, including a symbolic link.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}
