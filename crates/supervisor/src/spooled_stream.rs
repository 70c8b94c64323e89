//! One stream of the agent, on its way from a socket or a pipe into the spool.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::os::{CHUNK, CopyStep, copy_bytes};

/// How much is moved before the other things the supervisor waits for get a look.
const MAX_BYTES_PER_CALL: usize = 1 << 20;

/// How many more bytes a run may print, on all its streams.
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

/// What became of the bytes that were there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// They are in the spool, or as many of them as one turn moves.
    Bytes,
    /// There were none.
    Nothing,
    /// The budget is spent and there is more.
    OverBudget,
}

/// A socket or a pipe, and the file its bytes go to.
#[derive(Debug)]
pub struct SpooledStream {
    pipe: Option<OwnedFd>,
    file: File,
    bytes: u64,
}

impl SpooledStream {
    /// Joins a pipe to an empty file.
    pub fn new(pipe: OwnedFd, file: File) -> io::Result<Self> {
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        Ok(Self { pipe: Some(pipe), file, bytes: 0 })
    }

    /// The pipe, for as long as somebody may write to it.
    pub fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// How many bytes are in the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the file can still be reached by a name.
    pub fn is_on_disk(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }

    /// Moves what is there, up to about a megabyte, without waiting.
    pub fn copy(&mut self, budget: &mut Budget) -> io::Result<Copied> {
        let before = self.bytes;
        while self.bytes - before < MAX_BYTES_PER_CALL as u64 {
            let Some(pipe) = &self.pipe else { break };
            let limit = budget.left().min(MAX_BYTES_PER_CALL);
            if limit == 0 {
                // Only a byte too many is over the limit; an end is not.
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
                    // All that was there: the next byte wakes this up again. An agent that prints line by line is asked once a
                    // line then, and not twice.
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

    /// Reads no more; a writer finds the pipe broken.
    pub fn close(&mut self) {
        self.pipe = None;
    }
}
