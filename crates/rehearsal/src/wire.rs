//! The three standard streams, unbuffered: written bytes are visible to the reader when the call returns.
//!
//! Owns every write to stdout and stderr. std's handles buffer by line, lock, and cannot be closed.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// About the size of an L2 cache: larger blocks are not faster, smaller ones cost more system calls.
const BLOCK: usize = 256 * 1024;

/// One of the standard streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandardStream {
    Stdin,
    Stdout,
    Stderr,
}

impl StandardStream {
    fn fd(self) -> BorrowedFd<'static> {
        match self {
            Self::Stdin => rustix::stdio::stdin(),
            Self::Stdout => rustix::stdio::stdout(),
            Self::Stderr => rustix::stdio::stderr(),
        }
    }

    /// Writes all of `bytes`.
    pub(crate) fn write(self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::write(self.fd(), bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::INTR) => {}
                // The parent may have left its end of a shared terminal or socket non-blocking.
                Err(Errno::AGAIN) => self.wait_for_room()?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Writes `pattern` over and over until `total` bytes are out. The last byte is a newline if the
    /// pattern ends with one, wherever the pattern is cut.
    pub(crate) fn flood(self, pattern: &[u8], total: u64) -> io::Result<()> {
        let mut block = Vec::with_capacity(BLOCK + pattern.len());
        while block.len() < BLOCK {
            block.extend_from_slice(pattern);
        }
        let mut left = total;
        while left > block.len() as u64 {
            self.write(&block)?;
            left -= block.len() as u64;
        }
        block.truncate(usize::try_from(left).unwrap_or(block.len()));
        if let (Some(last), Some(b'\n')) = (block.last_mut(), pattern.last()) {
            *last = b'\n';
        }
        self.write(&block)
    }

    /// Closes the stream: its reader sees the end, and later output is discarded.
    ///
    /// The descriptor is replaced, not freed, because the next opened file would get its number and the output.
    pub(crate) fn close(self) -> io::Result<()> {
        let nowhere = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        match self {
            Self::Stdin => rustix::stdio::dup2_stdin(nowhere)?,
            Self::Stdout => rustix::stdio::dup2_stdout(nowhere)?,
            Self::Stderr => rustix::stdio::dup2_stderr(nowhere)?,
        }
        Ok(())
    }

    fn wait_for_room(self) -> io::Result<()> {
        match poll(&mut [PollFd::from_borrowed_fd(self.fd(), PollFlags::OUT)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
