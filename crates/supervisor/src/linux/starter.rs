//! The process that a run must not outlive.
//!
//! Alive by pid and start time, and then as a pidfd: a process that was given its pid later is never taken for it. Nothing has to
//! be handed over or kept open by the starter, so whatever ends it (SIGKILL, an `abort`, a lack of memory) is seen.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use model::ProcessIdentity;

use super::identity::ProcessHandle;

/// What is known of the starter of a run.
#[derive(Debug)]
pub enum StarterProcess {
    /// The run goes on without it.
    Untracked,
    /// It was alive when it was looked at last.
    Alive(ProcessHandle),
    /// It has ended.
    Exited,
}

impl StarterProcess {
    /// Takes hold of the process that matters, if there is one.
    pub fn track(identity: Option<ProcessIdentity>) -> io::Result<Self> {
        let Some(identity) = identity else { return Ok(Self::Untracked) };
        Ok(ProcessHandle::open(identity)?.map_or(Self::Exited, Self::Alive))
    }

    /// Readable once it has ended; none when there is nothing to wait for any more.
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
