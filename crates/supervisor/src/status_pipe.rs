//! The pipe through which a supervisor reports to its starter: each status as one line of JSON, or before the first one
//! the error that made it give up.
//!
//! It is the supervisor's stdout. It saves the starter from polling the spool at the start and from waiting for the
//! supervisor's exit at the end. Nothing depends on it: a program without the pipe finds everything in the spool.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use model::RunStatus;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PIPE_BUF, PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;

use crate::readiness::{is_readable, register_readable};

/// Sent in place of a status that is too long for an atomic write; the status is in the spool.
const READY: &[u8] = b"ready\n";

/// The read size.
const CHUNK: usize = 2 * PIPE_BUF;

/// Sends a published status to the starter. Atomic and non-blocking: the starter may be suspended or gone.
pub(crate) fn send(status: &[u8]) {
    let mut message = [status, b"\n"].concat();
    if message.len() > PIPE_BUF {
        message = READY.to_vec();
    }
    let mut stdout = io::stdout();
    let _ = fcntl_getfl(&stdout).and_then(|flags| fcntl_setfl(&stdout, flags | OFlags::NONBLOCK));
    let _ = stdout.write_all(&message).and_then(|()| stdout.flush());
}

/// The starter's end of the pipe.
#[derive(Debug)]
pub(crate) struct StatusPipe(AsyncFd<OwnedFd>);

/// The first message of a supervisor.
#[derive(Debug)]
pub(crate) enum StartupReply {
    /// The run has started.
    Status(Box<RunStatus>),
    /// The run has started; its status is in the spool.
    Ready,
    /// The run has not started, for this reason.
    GaveUp(String),
    /// The supervisor does not reply, for this reason.
    Nothing(String),
}

impl StatusPipe {
    /// Creates a pipe. Returns its read end and the stdout of the supervisor.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (rx, tx) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&rx, fcntl_getfl(&rx)? | OFlags::NONBLOCK)?;
        Ok((Self(register_readable(rx)?), tx))
    }

    /// Reads the first message of the supervisor.
    pub async fn startup_reply(&self) -> io::Result<StartupReply> {
        let mut received = Vec::new();
        while !received.ends_with(b"\n") {
            let mut ready = self.0.readable().await?;
            let before = received.len();
            received.resize(before + CHUNK, 0);
            let read = ready.try_io(|rx| Ok(rustix::io::read(rx.get_ref(), &mut received[before..])?));
            let count = match read {
                Ok(Ok(count)) => count,
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => 0,
                Ok(Err(error)) => return Err(error),
                Err(_not_yet) => {
                    received.truncate(before);
                    continue;
                }
            };
            received.truncate(before + count);
            if count == 0 {
                break;
            }
        }
        Ok(parse_reply(&received))
    }

    /// Waits for the second message or for the end of the pipe. In both cases the run or its supervisor has ended.
    pub async fn wait_closed(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            // The readiness may be left over from the first message. Unread data stays in the pipe for the other
            // waiters.
            if is_readable(self.0.get_ref())? {
                ready.retain_ready();
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

/// Parses the first of the received messages. A short run may already have sent both.
fn parse_reply(received: &[u8]) -> StartupReply {
    let first = received.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if READY.strip_suffix(b"\n") == Some(first) {
        return StartupReply::Ready;
    }
    serde_json::from_slice(first).map_or_else(
        |_| StartupReply::GaveUp(String::from_utf8_lossy(received).trim().to_owned()),
        StartupReply::Status,
    )
}
