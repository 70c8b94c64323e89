//! The agent's stdin as a socket.
//!
//! A process of the same user can open a pipe through `/proc/PID/fd/0` and write to it, so that a tool of the agent could
//! send a message or grant a permission in the user's place. To open a socket there fails with ENXIO.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::sendfile;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

/// The supervisor's end of the agent's stdin. Dropping it closes stdin: the agent reads the bytes sent so far, then the
/// end of the file.
#[derive(Debug)]
pub struct StdinSocket(OwnedFd);

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendStep {
    /// The number of sent bytes.
    Bytes(usize),
    /// The buffer of the socket is full (EAGAIN).
    WouldBlock,
    /// All bytes of the file have been sent.
    EndOfFile,
    /// No process reads the socket any more (EPIPE, ECONNRESET).
    Closed,
}

impl StdinSocket {
    /// Creates a connection. Returns the supervisor's end, which does not block, and the agent's, which does.
    pub fn connect() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // One direction, like a pipe. Bytes that the agent writes to its stdin would never be read here, and would turn
        // the end of its input into ECONNRESET.
        shutdown(&theirs, Shutdown::Write)?;
        ioctl_fionbio(&ours, true)?;
        Ok((Self(ours), theirs))
    }

    /// Sends up to `limit` bytes from the current position of a file, without a copy in this process.
    pub fn send(&self, file: &File, limit: usize) -> io::Result<SendStep> {
        match sendfile(&self.0, file, None, limit) {
            Ok(0) => Ok(SendStep::EndOfFile),
            Ok(count) => Ok(SendStep::Bytes(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(SendStep::WouldBlock),
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(SendStep::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for StdinSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        file
    }

    #[test]
    fn bytes_are_sent_until_end_of_file() {
        let (ours, theirs) = StdinSocket::connect().unwrap();
        let mut input = file(b"hello");
        assert_eq!(ours.send(&input, 3).unwrap(), SendStep::Bytes(3));
        assert_eq!(ours.send(&input, 3).unwrap(), SendStep::Bytes(2));
        assert_eq!(ours.send(&input, 3).unwrap(), SendStep::EndOfFile);
        input.write_all(b" again").unwrap();
        io::Seek::seek(&mut input, io::SeekFrom::Start(5)).unwrap();
        assert_eq!(ours.send(&input, 9).unwrap(), SendStep::Bytes(6));
        drop(ours);
        let mut read = String::new();
        File::from(theirs).read_to_string(&mut read).unwrap();
        assert_eq!(read, "hello again");
    }

    #[test]
    fn full_socket_does_not_block() {
        let (ours, _theirs) = StdinSocket::connect().unwrap();
        let input = file(&vec![b'x'; 10_000_000]);
        let mut steps = std::iter::from_fn(|| Some(ours.send(&input, 1 << 20).unwrap()));
        assert_eq!(steps.find(|step| !matches!(step, SendStep::Bytes(_))), Some(SendStep::WouldBlock));
    }

    #[test]
    fn socket_without_reader_is_closed() {
        let (ours, theirs) = StdinSocket::connect().unwrap();
        drop(theirs);
        assert_eq!(ours.send(&file(b"hello"), 5).unwrap(), SendStep::Closed);
    }

    #[test]
    fn reader_that_writes_to_its_stdin_still_reads_its_end() {
        let (ours, theirs) = StdinSocket::connect().unwrap();
        let mut theirs = File::from(theirs);
        assert_eq!(theirs.write(b"forged").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        ours.send(&file(b"hello"), 5).unwrap();
        drop(ours);
        let mut read = String::new();
        theirs.read_to_string(&mut read).unwrap();
        assert_eq!(read, "hello");
    }
}
