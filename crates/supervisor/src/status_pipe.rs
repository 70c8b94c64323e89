//! What a supervisor tells the program that started it: each status as it stands in the spool, a message each; or, before the first,
//! why it gave up.
//!
//! A pipe, the supervisor's stdout. It spares its starter a look into the spool at the beginning and the wait for the
//! supervisor's own exit at the end. Nothing depends on it: whoever has no message finds everything in the spool.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use model::RunStatus;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PIPE_BUF, PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;

use crate::readiness::{is_readable, register_readable};

/// Said instead of a status that is too long for a message: it stands in the spool.
const READY: &[u8] = b"ready\n";

/// How much is read at once.
const CHUNK: usize = 2 * PIPE_BUF;

/// In the supervisor: lets its starter know what it has just written down. In one piece or not at all, and without waiting: the
/// starter may be suspended, or gone.
pub(crate) fn send(status: &[u8]) {
    let mut message = [status, b"\n"].concat();
    if message.len() > PIPE_BUF {
        message = READY.to_vec();
    }
    let mut stdout = io::stdout();
    let _ = fcntl_getfl(&stdout).and_then(|flags| fcntl_setfl(&stdout, flags | OFlags::NONBLOCK));
    let _ = stdout.write_all(&message).and_then(|()| stdout.flush());
}

/// The starter's end.
#[derive(Debug)]
pub(crate) struct StatusPipe(AsyncFd<OwnedFd>);

/// What was heard first.
#[derive(Debug)]
pub(crate) enum StartupReply {
    /// The run is there.
    Status(Box<RunStatus>),
    /// The same, and its status is in the spool.
    Ready,
    /// There is none, for this reason.
    GaveUp(String),
    /// Nothing, and nothing will be, for this reason.
    Nothing(String),
}

impl StatusPipe {
    /// A message, and what the supervisor is to have as its stdout.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (rx, tx) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&rx, fcntl_getfl(&rx)? | OFlags::NONBLOCK)?;
        Ok((Self(register_readable(rx)?), tx))
    }

    /// Hears the supervisor out: a status, or why there is none.
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

    /// Waits until there is a second word, or there will be none: in both cases the run is over, or its supervisor.
    pub async fn wait_closed(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            // The first word may have left its mark. What is there now is left there, and so heard by everybody who waits.
            if is_readable(self.0.get_ref())? {
                ready.retain_ready();
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

/// An agent that ended at once has received both.
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
