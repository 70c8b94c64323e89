//! A minimal MCP host: JSON-RPC over the stdio of any MCP server.
//!
//! Owns the server's process, and kills it on drop. Every wait is limited to a minute or to a given deadline, so that a server
//! without a reply is reported.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::Failure;

/// The default time limit of a wait.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running server and the line to it.
#[derive(Debug)]
pub struct BenchHost {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
    /// The deadline of all waits.
    give_up_at: Option<Instant>,
    asked: u64,
    /// The length of the last line.
    heard_bytes: usize,
}

impl BenchHost {
    /// Starts the server. It is there when [`BenchHost::initialize`] returns.
    pub fn start(mut command: Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("the server has no stdout")?;
        let output = Some(BufReader::with_capacity(64 * 1024, output));
        Ok(Self { input: child.stdin.take(), output, child, give_up_at: None, asked: 0, heard_bytes: 0 })
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the length of the last message.
    pub fn heard_bytes(&self) -> usize {
        self.heard_bytes
    }

    /// Greets as hosts do.
    pub fn initialize(&mut self) -> Result<(), Failure> {
        let client = json!({"name": "bench", "version": "1"});
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let id = self.send("initialize", &params)?;
        self.answer_to(id)?;
        self.send_message(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    }

    /// Asks without waiting for the answer; its id.
    pub fn send(&mut self, method: &str, params: &Value) -> Result<u64, Failure> {
        self.asked += 1;
        self.send_message(&json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}))?;
        Ok(self.asked)
    }

    /// Returns the result of a request; other messages are skipped.
    pub fn answer_to(&mut self, id: u64) -> Result<Value, Failure> {
        loop {
            let mut message = self.hear()?;
            if message["id"] == id && message.get("method").is_none() {
                return match message.get("error") {
                    Some(error) => Err(format!("the server returned an error: {error}").into()),
                    None => Ok(message["result"].take()),
                };
            }
        }
    }

    /// Returns the next message.
    pub fn hear(&mut self) -> Result<Value, Failure> {
        let give_up_at = self.give_up_at;
        let output = self.output.as_mut().ok_or("the reader of the server has stopped")?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            if output.buffer().is_empty() {
                wait_for_more(output.get_ref(), give_up_at)?;
            }
            let available = output.fill_buf()?;
            if available.is_empty() {
                return Err("the server closed its stdout".into());
            }
            let taken = available.iter().position(|byte| *byte == b'\n').map_or(available.len(), |at| at + 1);
            line.extend_from_slice(&available[..taken]);
            output.consume(taken);
        }
        self.heard_bytes = line.len();
        Ok(serde_json::from_slice(&line)?)
    }

    /// Sets the deadline of all waits.
    pub fn give_up_at(&mut self, moment: Instant) {
        self.give_up_at = Some(moment);
    }

    /// Closes both ends, as the kernel does for a host that was killed. The server lives on as long as it likes, or until this is
    /// dropped.
    pub fn hang_up(&mut self) {
        drop(self.input.take());
        drop(self.output.take());
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends a JSON-RPC message, for example a notification.
    pub fn send_message(&mut self, message: &Value) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or("the server has no stdin")?;
        Ok(input.write_all(format!("{message}\n").as_bytes())?)
    }
}

fn wait_for_more(output: &ChildStdout, give_up_at: Option<Instant>) -> Result<(), Failure> {
    let patience = give_up_at.map_or(PATIENCE, |moment| moment.saturating_duration_since(Instant::now()));
    let mut ready = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
    match poll(&mut ready, PollTimeout::try_from(patience)?) {
        Ok(0) => Err(Silence.into()),
        // The read reports the error.
        _ => Ok(()),
    }
}

/// A server that does not answer.
#[derive(Debug)]
pub struct Silence;

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server did not answer in time")
    }
}

impl std::error::Error for Silence {}

impl Drop for BenchHost {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
