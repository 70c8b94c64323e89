//! Copies one stream of the agent from its socket or pipe to a file in the spool.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::os::{CHUNK, CopyStep, copy_bytes};

/// The maximum number of bytes per call, so that signals and the other stream are handled in time.
const MAX_BYTES_PER_CALL: usize = 1 << 20;

/// The number of bytes that a run may still print, on all its streams.
#[derive(Debug)]
pub struct Budget(Option<u64>);

impl Budget {
    pub fn new(limit: Option<u64>) -> Self {
        Self(limit)
    }

    fn left(&self) -> usize {
        self.0.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX))
    }

    fn spend(&mut self, bytes: usize) {
        if let Some(left) = &mut self.0 {
            *left = left.saturating_sub(bytes as u64);
        }
    }
}

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// Bytes were copied; there may be more.
    Bytes,
    /// There was nothing to read.
    Nothing,
    /// The budget is exhausted and there is more output.
    OverBudget,
}

/// A socket or pipe, and the file that receives its bytes.
#[derive(Debug)]
pub struct SpooledStream {
    pipe: Option<OwnedFd>,
    file: File,
    bytes: u64,
}

impl SpooledStream {
    /// Connects a pipe to an empty file.
    pub fn new(pipe: OwnedFd, file: File) -> io::Result<Self> {
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        Ok(Self { pipe: Some(pipe), file, bytes: 0 })
    }

    /// Returns the pipe, while it is open.
    pub fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Returns the number of bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the file still has a name.
    pub fn is_on_disk(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }

    /// Copies available bytes, up to about a megabyte, without blocking.
    pub fn copy(&mut self, budget: &mut Budget) -> io::Result<Copied> {
        let before = self.bytes;
        while self.bytes - before < MAX_BYTES_PER_CALL as u64 {
            let Some(pipe) = &self.pipe else { break };
            let limit = budget.left().min(MAX_BYTES_PER_CALL);
            if limit == 0 {
                // Only another byte exceeds the limit; an end of file does not.
                match rustix::io::read(pipe, &mut [0_u8]) {
                    Ok(0) => self.pipe = None,
                    Ok(_) => return Ok(Copied::OverBudget),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                break;
            }
            match copy_bytes(pipe, &self.file, limit)? {
                CopyStep::Bytes(count) => {
                    self.bytes += count as u64;
                    budget.spend(count);
                    // A short read: the pipe is empty, and the next byte wakes the supervisor. Saves a second read per
                    // line.
                    if count < CHUNK.min(limit) {
                        break;
                    }
                }
                CopyStep::WouldBlock => break,
                CopyStep::EndOfStream => self.pipe = None,
            }
        }
        Ok(if self.bytes > before { Copied::Bytes } else { Copied::Nothing })
    }

    /// Closes the pipe; further writes of the agent fail with EPIPE.
    pub fn close(&mut self) {
        self.pipe = None;
    }
}
