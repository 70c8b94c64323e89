//! The process that a run must not outlive.
//!
//! Identified by pid and start time, then watched through a pidfd, so a reused pid is never mistaken for it. The
//! starter need not pass or keep open anything, so any kind of exit is noticed (SIGKILL, `abort`, the OOM killer).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use model::ProcessIdentity;

use super::identity::ProcessHandle;

/// The state of the starter of a run.
#[derive(Debug)]
pub enum StarterProcess {
    /// The run does not depend on its starter.
    Untracked,
    /// It was alive at the last check.
    Alive(ProcessHandle),
    /// It has exited.
    Exited,
}

impl StarterProcess {
    /// Opens the process on which the run depends, if any.
    pub fn track(identity: Option<ProcessIdentity>) -> io::Result<Self> {
        let Some(identity) = identity else { return Ok(Self::Untracked) };
        Ok(ProcessHandle::open(identity)?.map_or(Self::Exited, Self::Alive))
    }

    /// Returns a descriptor that becomes readable when the starter exits.
    pub fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Alive(handle) => Some(handle.as_fd()),
            Self::Untracked | Self::Exited => None,
        }
    }

    pub fn has_exited(&self) -> bool {
        matches!(self, Self::Exited)
    }
}
