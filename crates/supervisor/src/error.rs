//! Errors of the spool, and their classification into transient and permanent ones.

use std::io;
use std::path::PathBuf;

use model::STATUS_VERSION;
use rustix::io::Errno;

/// Returns whether the machine ran out of a resource (EMFILE, ENOMEM, ENOSPC …), so that a retry may succeed.
pub fn is_resource_exhaustion(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::NOSPC, Errno::DQUOT];
    Errno::from_io_error(error).is_some_and(|errno| exhausted.contains(&errno))
}

/// An unusable spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// A file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not valid JSON of the expected form.
    #[error("`{}` is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position and kind of the syntax error.
        source: serde_json::Error,
    },
    /// A file was written by another version of this program.
    #[error("`{}` has format {version}, and this program reads format {STATUS_VERSION}", path.display())]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its format version.
        version: u32,
    },
    /// A file or the directory cannot be written.
    #[error("cannot write to the spool `{}`", path.display())]
    CannotWrite {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory already contains a run.
    #[error("the spool `{}` already contains a run", directory.display())]
    Taken {
        /// The directory.
        directory: PathBuf,
    },
}

impl SpoolError {
    /// Returns whether a retry may succeed because the machine ran out of a resource.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreadable { source, .. } | Self::CannotWrite { source, .. } => {
                is_resource_exhaustion(source)
            }
            Self::Damaged { .. } | Self::OtherVersion { .. } | Self::Taken { .. } => false,
        }
    }

    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "check that the directory exists and belongs to you",
            Self::Damaged { .. } => {
                "the file was modified by another program; the output files beside it are still readable"
            }
            Self::OtherVersion { .. } => "use the version of Switchboard that started the run",
            Self::CannotWrite { .. } => "check the free space and the permissions of the directory",
            Self::Taken { .. } => "use a separate directory for every run",
        }
    }
}
