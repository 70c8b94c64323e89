//! Reads the output of a child process, and reports its exit after its last output.
//!
//! Descendants can hold the stream open, so its end is not awaited: after the exit, only the bytes that the stream can
//! already hold are read before the exit is reported.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, retry_on_intr};

use crate::child_process::{ChildExit, ChildProcess};

/// More bytes than a pipe or a socket can hold.
const MAX_BUFFERED_BYTES: usize = 1024 * 1024;

/// The output of a child process.
#[derive(Debug)]
pub(crate) struct OutputReader {
    /// `None` at its end.
    stream: Option<OwnedFd>,
    exit: Option<ChildExit>,
    is_reported: bool,
    /// The number of bytes to read at most before the exit is reported.
    remaining: usize,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// The number of bytes that were read.
    Bytes(usize),
    /// The process has exited. Further output is that of its descendants.
    Exited(ChildExit),
    /// The process has exited, and the reader is not needed any more.
    Released,
}

impl OutputReader {
    pub(crate) fn new(stream: OwnedFd) -> Self {
        Self { stream: Some(stream), exit: None, is_reported: false, remaining: MAX_BUFFERED_BYTES }
    }

    /// Blocks until there is output, or the process exits, or, after that, the peer of `release` is closed.
    pub(crate) fn step(
        &mut self,
        process: &ChildProcess,
        release: Option<BorrowedFd<'_>>,
        buffer: &mut [u8],
    ) -> ReadStep {
        loop {
            let awaits_rest = self.exit.is_some() && !self.is_reported;
            let [has_output, has_exited, is_released] = self.poll(process, release, awaits_rest);
            if has_exited && self.exit.is_none() {
                self.exit = process.exit();
                continue;
            }
            if self.is_reported && is_released {
                return ReadStep::Released;
            }
            if has_output && !(awaits_rest && self.remaining == 0) {
                match self.read(buffer) {
                    0 => self.stream = None,
                    count => {
                        if awaits_rest {
                            self.remaining = self.remaining.saturating_sub(count);
                        }
                        return ReadStep::Bytes(count);
                    }
                }
            } else if let Some(exit) = self.exit.filter(|_| awaits_rest) {
                self.is_reported = true;
                return ReadStep::Exited(exit);
            }
        }
    }

    /// Returns the number of bytes, or 0 at the end of the stream. A stream with an error has ended.
    fn read(&self, buffer: &mut [u8]) -> usize {
        self.stream.as_ref().map_or(0, |stream| retry_on_intr(|| read(stream, &mut *buffer)).unwrap_or(0))
    }

    /// Returns which of the output, the process and the release are ready.
    fn poll(&self, process: &ChildProcess, release: Option<BorrowedFd<'_>>, is_immediate: bool) -> [bool; 3] {
        let release = release.filter(|_| self.is_reported);
        let process = Some(process.as_fd()).filter(|_| self.exit.is_none());
        let sources = [self.stream.as_ref().map(AsFd::as_fd), process, release];
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let timeout = is_immediate.then(Timespec::default);
        if retry_on_intr(|| poll(&mut fds, timeout.as_ref())).is_err() {
            return [false; 3];
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        sources.map(|source| source.is_some() && ready.next().unwrap_or(false))
    }
}
