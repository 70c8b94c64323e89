//! One terminal: a command with its output and its exit status.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::child_process::{ChildExit, ChildProcess};
use crate::line_writer::LineWriter;
use crate::output_reader::{OutputReader, ReadStep};
use crate::output_tail::{MAX_LIMIT, OutputTail};
use crate::reply::{ReplyBody, TerminalReply};
use crate::terminal_request::TerminalCommand;

/// The size of a read.
const CHUNK_BYTES: usize = 16 * 1024;
/// The limit of the output in a notification of the client.
const MAX_REPORTED_BYTES: usize = 256 * 1024;
/// The notification of the client about a command that has exited.
const OUTPUT_METHOD: &str = "_switchboard/terminal_output";
/// The requests that can wait for the exit of one command.
const MAX_WAITERS: usize = 100;

/// A terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    process: ChildProcess,
    state: Mutex<TerminalState>,
}

#[derive(Debug)]
struct TerminalState {
    output: OutputTail,
    /// Set after the output was reported.
    exit: Option<ChildExit>,
    /// The requests that wait for the exit.
    waiters: Vec<Waiter>,
}

/// A request that is answered at the exit of the command.
#[derive(Debug)]
struct Waiter {
    /// The id of the request; a notification has none.
    id: Option<Value>,
    reply: ExitReply,
}

/// The result of a request that is answered at the exit of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitReply {
    /// The exit status.
    Status,
    /// An empty object.
    Empty,
}

impl ExitReply {
    fn result(self, exit: ChildExit) -> Value {
        match self {
            Self::Status => describe(exit),
            Self::Empty => json!({}),
        }
    }
}

/// The streams of a new terminal.
#[derive(Debug)]
pub(crate) struct TerminalStreams {
    pub(crate) output: PipeReader,
    /// Closed by the release of the terminal.
    pub(crate) release: PipeReader,
}

impl Terminal {
    /// Starts a command in a process group of its own. Dropping the last value releases the terminal.
    pub(crate) fn spawn(command: &TerminalCommand) -> io::Result<(Self, TerminalStreams, PipeWriter)> {
        // A pipe, unlike the agent's own streams: commands reopen `/dev/stderr`, which fails on a socket. No process takes
        // this output for a message of the agent.
        let (output, sink) = io::pipe()?;
        let (release, release_sink) = io::pipe()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "running the agent's commands is the purpose of this program"
        )]
        let mut child = Command::new(&command.program);
        child.args(&command.args).envs(command.env.iter().cloned()).process_group(0);
        child.stdin(Stdio::null()).stdout(sink.try_clone()?).stderr(sink);
        if let Some(cwd) = &command.cwd {
            child.current_dir(cwd);
        }
        let process = ChildProcess::spawn(&mut child)?;
        let output_tail = OutputTail::new(command.output_limit);
        let state = TerminalState { output: output_tail, exit: None, waiters: Vec::new() };
        Ok((Self { process, state: Mutex::new(state) }, TerminalStreams { output, release }, release_sink))
    }

    /// Reads the output, reports it to `client` at the exit and answers the waiting requests, until the terminal is released.
    /// Then it reaps the command.
    pub(crate) fn follow(
        &self,
        id: &str,
        streams: TerminalStreams,
        replies: &SyncSender<TerminalReply>,
        client: &Mutex<File>,
    ) {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut reader = OutputReader::new(streams.output.into());
        loop {
            match reader.step(&self.process, Some(streams.release.as_fd()), &mut chunk) {
                ReadStep::Bytes(count) => self.state().output.push(&chunk[..count]),
                ReadStep::Exited(exit) => {
                    // An error means that the client is gone, which the agent learns when it writes itself.
                    let _ = LineWriter::new(client).write(&self.notification(id, exit));
                    let waiters = {
                        let mut state = self.state();
                        state.exit = Some(exit);
                        std::mem::take(&mut state.waiters)
                    };
                    for Waiter { id, reply } in waiters {
                        let body = ReplyBody::Result(reply.result(exit));
                        // An error means that the program exits.
                        let _ = id.map(|id| replies.send(TerminalReply { id, body }));
                    }
                }
                ReadStep::Released => break,
            }
        }
        self.process.reap();
    }

    /// Returns the notification of the client, as a line.
    fn notification(&self, id: &str, exit: ChildExit) -> Vec<u8> {
        let (output, truncated) = self.state().output.text(MAX_REPORTED_BYTES, true);
        let params = json!({
            "terminalId": id, "output": output, "truncated": truncated, "exitStatus": describe(exit),
        });
        format!("{}\n", json!({ "jsonrpc": "2.0", "method": OUTPUT_METHOD, "params": params })).into_bytes()
    }

    /// Returns the result of `terminal/output`.
    pub(crate) fn output(&self) -> Value {
        let mut state = self.state();
        let exit = state.exit;
        let (output, truncated) = state.output.text(MAX_LIMIT, exit.is_some());
        let mut result = json!({ "output": output, "truncated": truncated });
        if let Some(exit) = exit {
            result["exitStatus"] = describe(exit);
        }
        result
    }

    /// Returns the result of a request at the exit, or `None` if it is sent later.
    pub(crate) fn reply_at_exit(
        &self,
        id: Option<&Value>,
        reply: ExitReply,
    ) -> Result<Option<Value>, String> {
        let mut state = self.state();
        match state.exit {
            Some(exit) => Ok(Some(reply.result(exit))),
            None if state.waiters.len() >= MAX_WAITERS => {
                Err(format!("{MAX_WAITERS} requests wait for the exit of this command already"))
            }
            None => {
                state.waiters.push(Waiter { id: id.cloned(), reply });
                Ok(None)
            }
        }
    }

    /// Kills the command and its descendants in its process group. Only for a terminal that is not released.
    pub(crate) fn kill(&self) {
        self.process.kill_group();
    }

    /// Kills and reaps a command that nothing follows.
    pub(crate) fn abandon(&self) {
        self.process.kill_group();
        self.process.reap();
    }

    /// Blocks until the command has exited.
    pub(crate) fn wait(&self) {
        self.process.wait();
    }

    fn state(&self) -> MutexGuard<'_, TerminalState> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the exit status as the protocol has it.
fn describe(exit: ChildExit) -> Value {
    match exit {
        ChildExit::Code(code) => json!({ "exitCode": code, "signal": null }),
        ChildExit::Signal(signal) => json!({ "exitCode": null, "signal": signal_name(signal) }),
    }
}

fn signal_name(number: i32) -> String {
    const NAMES: [(i32, &str); 15] = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
    ];
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}
