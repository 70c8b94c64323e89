//! Runs an agent that speaks the Agent Client Protocol, together with the commands that it requests from its client.
//!
//! Some agents do not run commands themselves: they send `terminal/create` to their client. This program is started in
//! place of such an agent, in its sandbox, as `terminal-host PROGRAM ARGS…`. It connects the agent with its own stdin and
//! stdout, answers the requests for terminals, and forwards everything else unchanged. When the agent exits, it kills the
//! commands and exits in the same way. It knows no vendor and no other part of the protocol.
//!
//! The agent refers to a terminal by its id, so the client would not see the output of the command. Therefore the program
//! adds a notification `_switchboard/terminal_output` to its stdout when a command exits, before the agent learns of it.
//!
//! Memory is bounded: a long line is streamed, the output of a command is cut at its start, and the number of terminals
//! is limited. The agent's streams are sockets, because a command could open a pipe through `/proc` and forge output.

mod agent;
mod child_process;
mod line_assembler;
mod line_writer;
mod output_reader;
mod output_tail;
mod reply;
mod signals;
mod terminal;
mod terminal_request;
mod terminals;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;

use crate::agent::{AgentStreams, HostedAgent};
use crate::child_process::ChildExit;
use crate::line_assembler::{LineAssembler, LinePart};
use crate::line_writer::LineWriter;
use crate::output_reader::{OutputReader, ReadStep};
use crate::reply::TerminalReply;
use crate::terminal_request::TerminalRequest;
use crate::terminals::Terminals;

/// The size of a read.
const CHUNK_BYTES: usize = 64 * 1024;
/// The replies that wait for an agent that does not read its stdin. One more blocks its stdout.
const MAX_PENDING_REPLIES: usize = 1000;
/// The exit code of a wrong command line.
const USAGE: u8 = 2;

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    run(std::env::args_os().skip(1))
}

/// Runs the program with these arguments. It does not return after the agent was started: the process exits with it.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let Some(program) = args.next() else {
        complain("usage: terminal-host PROGRAM [ARGUMENT…]");
        return ExitCode::from(USAGE);
    };
    signals::catch_termination();
    // Not the buffered handle: a piece of a line is forwarded at once.
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    match stdout.and_then(|stdout| Ok((HostedAgent::spawn(&program, args)?, File::from(stdout)))) {
        Ok(((agent, streams), stdout)) => serve(&agent, streams, stdout),
        Err(error) => {
            complain(&format!("error: cannot start `{}`: {error}", program.display()));
            // The codes of a shell.
            ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
        }
    }
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Serves the agent until it exits, and exits like it.
fn serve(agent: &HostedAgent, streams: AgentStreams, stdout: File) -> ExitCode {
    let (input, stdout) = (&Mutex::new(streams.input), &Mutex::new(stdout));
    let (replies, pending) = mpsc::sync_channel::<TerminalReply>(MAX_PENDING_REPLIES);
    thread::scope(|scope| {
        let forwarder = thread::Builder::new().spawn_scoped(scope, || forward_input(input));
        let writer = thread::Builder::new().spawn_scoped(scope, move || write_replies(&pending, input));
        if let Err(error) = forwarder.and(writer) {
            complain(&format!("error: cannot start a thread: {error}"));
            // The supervisor ends the agent.
            return signals::exit_like(ChildExit::Code(126));
        }
        let mut terminals = Terminals::new(scope, replies, stdout);
        let mut writer = LineWriter::new(stdout);
        let exit = forward_output(agent, OutputReader::new(streams.output), &mut terminals, &mut writer);
        // No line follows the last one of the agent, and none is cut off by the exit.
        let _last = writer.lock();
        terminals.kill_all();
        // Not by the end of the scope: other threads may wait for input that never comes.
        signals::exit_like(exit)
    })
}

/// Forwards our stdin to the agent, up to its end.
fn forward_input(input: &Mutex<UnixStream>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut stdin = io::stdin().lock();
    let mut writer = LineWriter::new(input);
    loop {
        match stdin.read(&mut chunk) {
            // An agent that has closed its stdin: the rest is discarded.
            Ok(count) if count > 0 => drop(writer.write(&chunk[..count])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => break,
        }
    }
    let _ = writer.lock().shutdown(Shutdown::Write);
}

fn write_replies(pending: &mpsc::Receiver<TerminalReply>, input: &Mutex<UnixStream>) {
    for reply in pending {
        // An agent that has closed its stdin does not get it.
        let _ = LineWriter::new(input).write(&reply.into_line());
    }
}

/// Forwards the agent's stdout, except for requests for terminals, which are answered. Returns the exit of the agent.
fn forward_output(
    agent: &HostedAgent,
    mut output: OutputReader,
    terminals: &mut Terminals<'_, '_>,
    writer: &mut LineWriter<'_, File>,
) -> ChildExit {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut lines = LineAssembler::default();
    let mut forward = |bytes: &[u8]| {
        if writer.write(bytes).is_err() {
            // No process reads our stdout any more. The agent learns it from its own.
            agent.shutdown_output();
        }
    };
    loop {
        match output.step(&agent.process, None, &mut chunk) {
            ReadStep::Bytes(count) => lines.push(&chunk[..count], &mut |part| match part {
                LinePart::Line(line) => match TerminalRequest::parse(line) {
                    Some(request) => terminals.answer(request),
                    None => forward(line),
                },
                LinePart::Piece(piece) => forward(piece),
            }),
            ReadStep::Exited(exit) => {
                forward(lines.rest());
                return exit;
            }
            ReadStep::Released => {}
        }
    }
}
