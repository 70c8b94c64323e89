//! A host, as small as it can be: JSON-RPC over the stdio of any MCP server.
//!
//! Owns the server's process, and ends it when it is dropped. Waits no longer than a minute for anything, so that a server which
//! never answers is told instead of waited for.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

use crate::Failure;

/// How long a server may be silent, in milliseconds.
const PATIENCE: u16 = 60_000;

/// A running server and the line to it.
#[derive(Debug)]
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    asked: u64,
    /// How long the last line was.
    heard_bytes: usize,
}

impl Client {
    /// Starts the server. It is there when [`Client::initialize`] returns.
    pub fn start(mut command: Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("the server has no stdout")?;
        let output = BufReader::with_capacity(64 * 1024, output);
        Ok(Self { input: child.stdin.take(), output, child, asked: 0, heard_bytes: 0 })
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How many bytes the last message had.
    pub fn heard_bytes(&self) -> usize {
        self.heard_bytes
    }

    /// Greets as hosts do.
    pub fn initialize(&mut self) -> Result<(), Failure> {
        let client = json!({"name": "bench", "version": "1"});
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        let id = self.send("initialize", &params)?;
        self.answer_to(id)?;
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    }

    /// Asks without waiting for the answer; its id.
    pub fn send(&mut self, method: &str, params: &Value) -> Result<u64, Failure> {
        self.asked += 1;
        self.say(&json!({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}))?;
        Ok(self.asked)
    }

    /// The result of that request; everything else that is said meanwhile is passed over.
    pub fn answer_to(&mut self, id: u64) -> Result<Value, Failure> {
        loop {
            let mut message = self.hear()?;
            if message["id"] == id && message.get("method").is_none() {
                return match message.get("error") {
                    Some(error) => Err(format!("the server refused: {error}").into()),
                    None => Ok(message["result"].take()),
                };
            }
        }
    }

    /// The next message, whatever it is.
    pub fn hear(&mut self) -> Result<Value, Failure> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            if self.output.buffer().is_empty() {
                self.wait_for_more()?;
            }
            let available = self.output.fill_buf()?;
            if available.is_empty() {
                return Err("the server has closed its end".into());
            }
            let taken = available.iter().position(|byte| *byte == b'\n').map_or(available.len(), |at| at + 1);
            line.extend_from_slice(&available[..taken]);
            self.output.consume(taken);
        }
        self.heard_bytes = line.len();
        Ok(serde_json::from_slice(&line)?)
    }

    fn wait_for_more(&self) -> Result<(), Failure> {
        let mut ready = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::from(PATIENCE)) {
            Ok(0) => Err("the server has said nothing for a minute".into()),
            // Whatever it is, the read tells more.
            _ => Ok(()),
        }
    }

    fn say(&mut self, message: &Value) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or("the server has no stdin")?;
        Ok(input.write_all(format!("{message}\n").as_bytes())?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
