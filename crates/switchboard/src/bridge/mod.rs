//! `switchboard mcp`: forwards MCP messages between a host on stdio and the daemon.
//!
//! Owns the connection and its in-flight requests. Knows no tools, and writes only protocol messages to stdout. If the daemon exits with
//! requests in flight, the bridge connects to the next daemon or starts it, replays `initialize` and the requests. Every tool call carries a
//! request key by which the daemon recognizes it, so no job runs twice. Without requests in flight the bridge waits for the host's
//! next message, so that `switchboard stop` does not start a new daemon.
//!
//! Three threads, so that no end blocks another: one reads the host, one reads the daemon and writes to the host, and the main thread
//! writes to the daemon.

mod event_queue;
mod in_flight;
mod lines;
mod message;
mod resident;

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use protocol::{ClientRole, ConnectorError, DaemonConnector, describe_version_skew};

use crate::client;
use crate::failure::{CommandFailure, RuntimeError};
use crate::output;
use event_queue::{BridgeEvent, EventQueue};
use in_flight::{HostLine, InFlight, MessageLine, error_reply};
use lines::ReadLine;

/// The maximum size of a line. A prompt of 50 MB fits.
const MAX_LINE_BYTES: usize = 256 << 20;
/// How long to wait for replies after the host closed stdin. The daemon replies within 3 s of the half-close, and another may have to be
/// started.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(8);
/// The backoff per attempt, from the third attempt on.
const BACKOFF: Duration = Duration::from_millis(100);
/// The stack size of the threads, which keep their data on the heap.
const STACK_BYTES: usize = 128 * 1024;

/// Runs the bridge until the host closes stdin.
pub fn run() -> Result<ExitCode, CommandFailure> {
    let shared = Arc::new(Shared::default());
    let host = shared.clone();
    // Not joined: a blocking read of stdin cannot be interrupted; the thread ends with the process.
    spawn("host", move || read_host(&host)).map_err(RuntimeError::from)?;
    let mut bridge = Bridge { shared, connector: None, daemon: None, daemons: 0, has_reported_skew: false };
    bridge.reconnect();
    bridge.forward_lines();
    Ok(ExitCode::SUCCESS)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(work)
}

/// The state that the threads share.
#[derive(Debug, Default)]
struct Shared {
    events: EventQueue,
    in_flight: Mutex<InFlight>,
}

impl Shared {
    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the host until it closes stdin, then waits until it closes stdout.
fn read_host(shared: &Shared) {
    read_lines(shared);
    shared.events.close_stdin();
    // POLLERR and POLLHUP are reported without being requested.
    let stdout = io::stdout();
    let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
    while poll(&mut ends, None) == Err(Errno::INTR) {}
    if ends[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
        shared.events.close_stdout();
    }
}

fn read_lines(shared: &Shared) {
    let Ok(stdin) = io::stdin().as_fd().try_clone_to_owned() else { return };
    let mut reader = BufReader::with_capacity(64 * 1024, std::fs::File::from(stdin));
    loop {
        match lines::read_line(&mut reader, MAX_LINE_BYTES) {
            Ok(ReadLine::Line(line)) => shared.events.push_line(line),
            Ok(ReadLine::TooLong) => {
                let message = format!(
                    "a message is longer than {MAX_LINE_BYTES} bytes. hint: put large input into a file"
                );
                send_to_host(shared, &error_reply("null", &message));
            }
            Ok(ReadLine::End) | Err(_) => return,
        }
    }
}

/// Reads a daemon until it closes the connection. Forwards only complete lines.
fn read_daemon(shared: &Shared, mut reader: BufReader<UnixStream>, number: u64) {
    // Startup is over, and the daemon has not replied yet.
    resident::drop_file_pages();
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
        if shared.in_flight().on_daemon_line(&line) {
            send_to_host(shared, &line);
        }
        shared.events.push_progress();
        line.clear();
        // Release the memory of a long reply.
        line.shrink_to(64 * 1024);
    }
    shared.events.push_daemon_gone(number);
}

fn send_to_host(shared: &Shared, line: &[u8]) {
    if output::protocol_message(line).is_err() {
        shared.events.close_stdout();
    }
}

/// The thread that writes to the daemon and reconnects.
struct Bridge {
    shared: Arc<Shared>,
    connector: Option<DaemonConnector>,
    daemon: Option<Daemon>,
    daemons: u64,
    has_reported_skew: bool,
}

/// A connected daemon.
struct Daemon {
    number: u64,
    writer: UnixStream,
    reader: JoinHandle<()>,
}

impl Bridge {
    /// Forwards lines until the host closes stdin or stdout.
    fn forward_lines(&mut self) {
        loop {
            match self.shared.events.next(None) {
                BridgeEvent::Line(line) => self.forward(line),
                BridgeEvent::DaemonGone(number) => self.on_daemon_gone(number),
                BridgeEvent::StdoutClosed => return,
                BridgeEvent::StdinClosed => return self.wait_for_last_replies(),
                BridgeEvent::Progress => {}
            }
        }
    }

    fn forward(&mut self, line: Vec<u8>) {
        let line = self.shared.in_flight().on_host_line(line);
        match line {
            HostLine::Stale => {}
            HostLine::Rejected(reply) => send_to_host(&self.shared, &reply),
            HostLine::Tracked(line) => {
                // The reconnection replays it with the other requests in flight.
                if !self.send(&line) {
                    self.reconnect();
                }
            }
            HostLine::Untracked(line) => {
                if !self.send(&line) && self.reconnect() {
                    self.send(&line);
                }
            }
        }
    }

    /// Sends a line to the daemon. Returns false if it is gone.
    fn send(&mut self, line: &MessageLine) -> bool {
        let is_sent = self.daemon.as_mut().is_some_and(|daemon| daemon.writer.write_all(line).is_ok());
        if !is_sent {
            self.disconnect();
        }
        is_sent
    }

    fn on_daemon_gone(&mut self, number: u64) {
        if self.daemon.as_ref().is_some_and(|daemon| daemon.number == number) {
            self.disconnect();
            if self.shared.in_flight().is_waiting() {
                self.reconnect();
            }
        }
    }

    /// Disconnects from a daemon after all of its replies are forwarded, so that no answered request is replayed.
    fn disconnect(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.writer.shutdown(Shutdown::Both);
            let _ = daemon.reader.join();
        }
    }

    /// Connects to a daemon, or starts one, and replays the requests in flight. On failure, fails all of them and returns false.
    fn reconnect(&mut self) -> bool {
        loop {
            let (exhausted, attempts) = {
                let mut in_flight = self.shared.in_flight();
                (in_flight.fail_exhausted(), in_flight.max_attempts())
            };
            for reply in exhausted {
                send_to_host(&self.shared, &reply);
            }
            if attempts > 1 {
                thread::sleep(BACKOFF * attempts);
            }
            if let Err(error) = self.connect() {
                let message =
                    format!("{}. Submitted calls continue: list them with call_jobs", describe_error(&error));
                let replies = self.shared.in_flight().fail_all(&message);
                for reply in replies {
                    send_to_host(&self.shared, &reply);
                }
                return false;
            }
            let lines = self.shared.in_flight().replay();
            if lines.iter().all(|line| self.send(line)) {
                return true;
            }
            if !self.shared.in_flight().is_waiting() {
                return false;
            }
        }
    }

    fn connect(&mut self) -> Result<(), ConnectorError> {
        let connector = match &mut self.connector {
            Some(connector) => connector,
            none => none.insert(client::connector()?),
        };
        let connection = connector.connect_or_start(ClientRole::Mcp)?;
        let skew = describe_version_skew(&connection.welcome.peer);
        if let Some(skew) = skew.filter(|_| !self.has_reported_skew) {
            self.has_reported_skew = true;
            output::aside(&format!("switchboard: {skew}"));
        }
        self.daemons += 1;
        let (shared, number) = (self.shared.clone(), self.daemons);
        let stream = connection.reader;
        let reader =
            spawn("daemon", move || read_daemon(&shared, stream, number)).map_err(ConnectorError::Prepare)?;
        self.daemon = Some(Daemon { number, writer: connection.writer, reader });
        Ok(())
    }

    /// Waits for replies after the host closed stdin, as hosts do on exit and pipelines after the last request. Jobs continue.
    fn wait_for_last_replies(&mut self) {
        let deadline = Instant::now() + LAST_REPLIES_TIMEOUT;
        self.half_close();
        while self.daemon.is_some() && self.shared.in_flight().is_waiting() && Instant::now() < deadline {
            match self.shared.events.next(Some(deadline)) {
                BridgeEvent::StdoutClosed => return,
                BridgeEvent::DaemonGone(number) => {
                    self.on_daemon_gone(number);
                    self.half_close();
                }
                BridgeEvent::Line(_) | BridgeEvent::StdinClosed | BridgeEvent::Progress => {}
            }
        }
    }

    /// Half-closes the connection: the daemon then replies to waiting requests with the status of their jobs.
    fn half_close(&self) {
        if let Some(daemon) = &self.daemon {
            let _ = daemon.writer.shutdown(Shutdown::Write);
        }
    }
}

/// Formats an error with its causes and its hint in one line. An MCP host cannot run a command, so its user is asked to.
fn describe_error(error: &ConnectorError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    let hint = error.hint();
    match hint.as_str() {
        // The text contains the hint of the daemon.
        "" => text,
        hint if hint.contains("`switchboard ") => {
            format!("{text}. hint: ask the user to check Switchboard's daemon and its log")
        }
        hint => format!("{text}. hint: {hint}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_errors_name_no_command() {
        let errors = [
            ConnectorError::InsideCall,
            ConnectorError::InsideSandboxedCall,
            ConnectorError::StartTimeout { holder: None },
            ConnectorError::StartFailed { output: String::new(), code: None },
            ConnectorError::Killed { signal: None },
        ];
        for error in errors {
            let text = describe_error(&error);
            assert!(text.contains("hint: ") && !text.contains("`switchboard "), "{text}");
        }
    }
}
