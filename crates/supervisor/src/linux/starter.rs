//! The process that a run must not outlive.
//!
//! Held by pid and start time, and then as a pidfd: a process that was given its pid later is never taken for it. Nothing has to
//! be handed over or kept open by the starter, so whatever ends it (SIGKILL, an `abort`, a lack of memory) is seen.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use model::ProcessIdentity;

use super::identity::ProcessHandle;

/// What is known of the starter of a run.
#[derive(Debug)]
pub enum Starter {
    /// The run goes on without it.
    DoesNotMatter,
    /// It was alive when it was looked at last.
    Held(ProcessHandle),
    /// It has ended.
    Gone,
}

impl Starter {
    /// Takes hold of the process that matters, if there is one.
    pub fn hold(identity: Option<ProcessIdentity>) -> io::Result<Self> {
        let Some(identity) = identity else { return Ok(Self::DoesNotMatter) };
        Ok(ProcessHandle::open(identity)?.map_or(Self::Gone, Self::Held))
    }

    /// Readable once it has ended; none when there is nothing to wait for any more.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Held(handle) => Some(handle.as_fd()),
            Self::DoesNotMatter | Self::Gone => None,
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }
}
