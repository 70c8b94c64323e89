//! The input of a run, for its starter and for any later process that attaches to the run.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use regular_file::open_regular_at;
use rustix::fs::{CWD, FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::handle::Run;
use crate::run_command::{CommandReader, RunCommand};

/// The open input of a run, locked against every other writer.
///
/// [`Write`] appends bytes, which the agent reads from its stdin at its own pace. A write never waits for the agent, and
/// appended bytes reach it even if this process is killed. On a full disk, a write may append fewer bytes than it was
/// given, or fail; earlier input stays. After the run has ended, appending has no effect.
///
/// The lock is released when this value is dropped, or with the process.
#[derive(Debug)]
pub struct RunInput {
    input: File,
    control: File,
    is_closed: bool,
}

/// Another process, or another part of this one, has the input open. Part of an [`io::Error`] of the kind
/// [`ErrorKind::ResourceBusy`].
#[derive(Debug, thiserror::Error)]
#[error("another process writes to `{}`", path.display())]
pub struct InputLocked {
    /// The file.
    pub path: PathBuf,
}

impl Run {
    /// Opens the input of the run, or returns `None` if the input is complete ([`model::InputMode::Complete`]) or the run could not be
    /// started.
    ///
    /// Fails with [`InputLocked`] while another process has it open: two daemons must not interleave their messages.
    pub fn input(&self) -> io::Result<Option<RunInput>> {
        let spool = self.spool();
        let (path, flags) = (spool.input(), OFlags::RDWR | OFlags::APPEND);
        let control = match open_regular_at(CWD, &spool.control(), flags) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            control => control?,
        };
        let input = open_regular_at(CWD, &path, flags)?;
        lock(&input, &path)?;
        // Only now: the former writer may have closed it.
        let is_closed = is_closed(control.try_clone()?)?;
        Ok(Some(RunInput { input, control, is_closed }))
    }
}

fn lock(input: &File, path: &Path) -> io::Result<()> {
    match flock(input, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            Err(io::Error::new(ErrorKind::ResourceBusy, InputLocked { path: path.to_owned() }))
        }
        locked => Ok(locked?),
    }
}

/// Returns whether a control file contains the command that closes the input.
fn is_closed(control: File) -> io::Result<bool> {
    let mut commands = CommandReader::new(control);
    while let Some(lines) = commands.read()? {
        if lines.contains(&Ok(RunCommand::CloseInput)) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl RunInput {
    /// Returns the number of bytes of the input, including those of the plan.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.input.metadata()?.len())
    }

    /// Returns whether the input contains no byte.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads bytes of the input from an offset on. Returns their number, which is 0 at the end.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read_at(buffer, offset)
    }

    /// Closes the input: the agent reads the end of its stdin after the bytes that were appended. Idempotent.
    pub fn close(&mut self) -> io::Result<()> {
        if !self.is_closed {
            RunCommand::CloseInput.append_to(&self.control)?;
            self.is_closed = true;
        }
        Ok(())
    }

    /// Returns whether the input was closed, by this process or by an earlier one.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl Write for RunInput {
    /// Appends bytes. Fails with [`ErrorKind::BrokenPipe`] once the input is closed.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_closed {
            return Err(io::Error::new(ErrorKind::BrokenPipe, "the input is closed"));
        }
        self.input.write(bytes)
    }

    /// Does nothing: there is no buffer.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for RunInput {
    /// Releases the lock even if a process that is being spawned still has a copy of the descriptor.
    fn drop(&mut self) {
        let _ = flock(&self.input, FlockOperation::Unlock);
    }
}
