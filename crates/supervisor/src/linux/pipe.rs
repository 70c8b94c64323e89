//! Moving bytes from a pipe to a file inside the kernel.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

/// What one move came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes.
    Bytes(usize),
    /// The pipe is empty for now.
    Nothing,
    /// Nobody can write to the pipe any more.
    End,
}

/// Moves at most `most` bytes from a non-blocking pipe to the end of a file, without passing them through this process.
///
/// The file must not be open for appending: the kernel refuses to splice into such a one.
pub fn move_bytes(pipe: &OwnedFd, file: &File, most: usize) -> io::Result<Moved> {
    match splice(pipe, None, file, None, most, SpliceFlags::NONBLOCK | SpliceFlags::MOVE) {
        Ok(0) => Ok(Moved::End),
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        // Some file systems cannot be spliced into.
        Err(Errno::INVAL) => copy_bytes(pipe, file, most),
        Err(error) => Err(error.into()),
    }
}

fn copy_bytes(pipe: &OwnedFd, mut file: &File, most: usize) -> io::Result<Moved> {
    let mut buffer = [0; 16 * 1024];
    let room = most.min(buffer.len());
    match rustix::io::read(pipe, &mut buffer[..room]) {
        Ok(0) => Ok(Moved::End),
        Ok(count) => {
            let mut written = 0;
            while written < count {
                match file.write(&buffer[written..count]) {
                    Ok(step) => written += step,
                    // What is in the file is counted; the next write fails again and ends the run.
                    Err(_) if written > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(Moved::Bytes(written))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    use rustix::pipe::{PipeFlags, pipe_with};

    #[test]
    fn copying_by_hand_moves_the_same_bytes_as_the_kernel_does() {
        for step in [move_bytes, copy_bytes] {
            let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
            let mut file = tempfile::tempfile().unwrap();
            assert_eq!(step(&reader, &file, 10).unwrap(), Moved::Nothing);
            File::from(writer).write_all(b"hello\0\xff").unwrap();
            assert_eq!(step(&reader, &file, 5).unwrap(), Moved::Bytes(5));
            assert_eq!(step(&reader, &file, 10).unwrap(), Moved::Bytes(2));
            assert_eq!(step(&reader, &file, 10).unwrap(), Moved::End);
            let mut bytes = Vec::new();
            io::Seek::rewind(&mut file).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, b"hello\0\xff");
        }
    }
}
