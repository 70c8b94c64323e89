//! Sends an open input to the agent's stdin as it grows, and reads the commands beside it.
//!
//! Owns the supervisor's end of stdin and the watch on the files `input` and `control`. Never blocks: an agent that does
//! not read leaves the rest of its input in the file, and nothing waits for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::locked_spool::LockedSpool;
use crate::log::log_error;
use crate::os::{InotifyWatch, SendStep, StdinSocket};
use crate::run_command::{CommandReader, RunCommand};

/// The interval at which the files are checked without an inotify watch.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// The maximum number of bytes per call, so that signals and the agent's output are handled in time.
const MAX_BYTES_PER_CALL: usize = 1 << 20;

/// The open input of a running agent.
#[derive(Debug)]
pub struct InputPump {
    /// `None` once stdin is closed, by either side.
    socket: Option<StdinSocket>,
    /// Its position is that of the next byte to send.
    input: File,
    /// Set while the file contains bytes that the agent has no room for.
    has_pending: bool,
    /// Set once no more bytes will follow.
    is_closing: bool,
    commands: CommandReader,
    has_logged_unknown: bool,
    /// `None` if the user has no inotify watch left.
    watch: Option<InotifyWatch>,
    /// The time of the next check that no event announces.
    check_at: Option<Instant>,
}

impl InputPump {
    /// Opens the files of the spool and connects them to a new stdin, which is also returned. Nothing is sent yet.
    pub fn connect(spool: &LockedSpool) -> io::Result<(Self, OwnedFd)> {
        let (input, commands) = (spool.input()?, CommandReader::new(spool.control()?));
        let (socket, stdin) = StdinSocket::connect()?;
        // Before the first read, or an append in between would go unnoticed.
        let watch = InotifyWatch::open_files(&[input.as_fd(), commands.control().as_fd()])?;
        let pump = Self {
            socket: Some(socket),
            input,
            has_pending: false,
            is_closing: false,
            commands,
            has_logged_unknown: false,
            watch,
            check_at: Some(Instant::now()),
        };
        Ok((pump, stdin))
    }

    /// Returns a descriptor that becomes readable when a file may have grown.
    pub fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    /// Returns the stdin that becomes writable when the agent reads, while there are bytes to send.
    pub fn stdin_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().filter(|_| self.has_pending).map(AsFd::as_fd)
    }

    /// Returns the time of the next check that no event announces, if any.
    pub fn check_at(&self) -> Option<Instant> {
        self.check_at
    }

    /// Returns whether that time has come.
    pub fn is_due(&self, now: Instant) -> bool {
        self.check_at.is_some_and(|at| at <= now)
    }

    /// Sends new and pending bytes, and returns new commands. A failed send closes stdin.
    pub fn pump(&mut self, now: Instant) -> io::Result<Vec<RunCommand>> {
        if let Some(watch) = &self.watch {
            // Drained before the files are read, or a growth in between would go unnoticed.
            watch.drain()?;
        }
        let lines = self.commands.read()?;
        self.check_at = match (&lines, &self.watch) {
            // There may be more lines.
            (Some(_), _) => Some(now),
            (None, Some(_)) => None,
            (None, None) => Some(now + POLL_INTERVAL),
        };
        self.send().inspect_err(|_| self.socket = None)?;
        let known =
            lines.into_iter().flatten().filter_map(|line| line.map_err(|text| self.log_unknown(&text)).ok());
        Ok(known.collect())
    }

    /// Closes stdin once the bytes that are in the file have been sent.
    pub fn close_at_end(&mut self) {
        self.is_closing = true;
        // So that the next check closes it even if all bytes have been sent.
        self.has_pending = true;
    }

    /// Sends bytes until there are none left, the agent has no room, or others have waited long enough.
    fn send(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while let Some(socket) = &self.socket
            && sent < MAX_BYTES_PER_CALL
        {
            let step = socket.send(&self.input, MAX_BYTES_PER_CALL)?;
            self.has_pending = step != SendStep::EndOfFile;
            match step {
                SendStep::Bytes(count) => sent += count,
                SendStep::WouldBlock => break,
                SendStep::EndOfFile if !self.is_closing => break,
                SendStep::EndOfFile | SendStep::Closed => self.socket = None,
            }
        }
        Ok(())
    }

    /// Logs the first unknown command of a run: a writer of a later version may repeat them without end.
    fn log_unknown(&mut self, command: &str) {
        if !std::mem::replace(&mut self.has_logged_unknown, true) {
            log_error(&format!("skipped an unknown command, and will skip others: {command}"));
        }
    }
}
