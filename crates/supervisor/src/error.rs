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
        /// The directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// There is a run in it already.
    #[error("the spool `{}` already holds a run", directory.display())]
    Taken {
        /// The directory.
        directory: PathBuf,
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
            Self::Unreadable { .. } => "check that the directory is there and belongs to you",
            Self::Damaged { .. } => {
                "the file was changed by another program; the output beside it is still readable"
            }
            Self::OtherVersion { .. } => "use the version of Switchboard that started the run",
            Self::CannotWrite { .. } => "check the free space and the rights of the directory",
            Self::Taken { .. } => "give every run a directory of its own",
        }
    }
}
