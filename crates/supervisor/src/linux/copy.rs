//! Copies bytes from a stream of the agent to a file, in constant memory.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// The buffer size.
pub const CHUNK: usize = 16 * 1024;

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStep {
    /// The number of copied bytes.
    Bytes(usize),
    /// The stream is empty for now (EAGAIN).
    WouldBlock,
    /// The last writer has closed the stream.
    EndOfStream,
}

/// Copies up to `limit` bytes, and at most [`CHUNK`], from a non-blocking stream to the end of a file.
pub fn copy_bytes(stream: &OwnedFd, mut file: &File, limit: usize) -> io::Result<CopyStep> {
    let mut buffer = [MaybeUninit::uninit(); CHUNK];
    match rustix::io::read(stream, &mut buffer[..limit.min(CHUNK)]) {
        Ok(([], _)) => Ok(CopyStep::EndOfStream),
        Ok((bytes, _)) => {
            let mut written = 0;
            while written < bytes.len() {
                match file.write(&bytes[written..]) {
                    Ok(step) => written += step,
                    // Count the bytes in the file; the next write fails again and ends the run.
                    Err(_) if written > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(CopyStep::Bytes(written))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(CopyStep::WouldBlock),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    use rustix::pipe::{PipeFlags, pipe_with};

    #[test]
    fn bytes_are_copied_up_to_the_limit_until_the_end() {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(copy_bytes(&reader, &file, 10).unwrap(), CopyStep::WouldBlock);
        File::from(writer).write_all(b"hello\0\xff").unwrap();
        assert_eq!(copy_bytes(&reader, &file, 5).unwrap(), CopyStep::Bytes(5));
        assert_eq!(copy_bytes(&reader, &file, 10).unwrap(), CopyStep::Bytes(2));
        assert_eq!(copy_bytes(&reader, &file, 10).unwrap(), CopyStep::EndOfStream);
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"hello\0\xff");
    }
}
