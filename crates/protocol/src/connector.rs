//! Connects to the daemon and starts one if none is running. The only place that spawns a daemon.
//!
//! Clients that find no daemon compete for `start.lock`. The winner spawns the daemon; the others connect to it. The new daemon
//! reports on a pipe that it is ready, or why it failed to start.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use model::RunId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use crate::connection::{ConnectError, DaemonConnection, connect};
use crate::enclosing_run::{find_enclosing_run, is_in_sandboxed_call};
use crate::environment::ProcessEnvironment;
use crate::greeting::ClientRole;
use crate::home::{HomeError, SwitchboardHome};
use crate::lock::{LockHolder, try_lock_file};

/// The line that a daemon prints once it accepts connections.
pub const READY: &str = "ready";
/// The exit code of a daemon that found another one running.
pub const EXIT_ALREADY_RUNNING: i32 = 6;

/// The timeout until a daemon is ready, including the shutdown or start of another one.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of daemons in a row that may die without output. One is an accident; several mean that none can start.
const MAX_SILENT_DEATHS: u32 = 3;
/// The bounds of the backoff between connection attempts.
const MIN_BACKOFF: Duration = Duration::from_millis(5);
const MAX_BACKOFF: Duration = Duration::from_millis(300);
/// The maximum size of a startup error.
const MAX_STARTUP_OUTPUT: u64 = 64 * 1024;

/// Connects to the daemon of one state directory, and starts it if necessary. Reaps the daemons that it spawned.
#[derive(Debug)]
pub struct DaemonConnector {
    home: SwitchboardHome,
    environment: ProcessEnvironment,
    /// The variables that submitted calls carry.
    call_environment: BTreeMap<String, String>,
    spawned: Vec<Child>,
}

impl DaemonConnector {
    /// Creates a connector. `call_environment` is passed on to the agents of submitted calls.
    pub fn new(
        home: SwitchboardHome,
        environment: ProcessEnvironment,
        call_environment: BTreeMap<String, String>,
    ) -> Self {
        Self { home, environment, call_environment, spawned: Vec::new() }
    }

    /// Returns the paths of the installation.
    pub fn home(&self) -> &SwitchboardHome {
        &self.home
    }

    /// Connects to the daemon, and starts one if none is running. Concurrent clients start only one.
    pub fn connect_or_start(&mut self, role: ClientRole) -> Result<DaemonConnection, ConnectorError> {
        self.spawned.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let deadline = Instant::now() + START_TIMEOUT;
        let mut backoff = MIN_BACKOFF;
        let mut silent_deaths = 0;
        loop {
            match connect(&self.home, role, Some(&self.call_environment)) {
                Err(ConnectError::NotRunning) => {}
                connection => return Ok(connection?),
            }
            reject_inside_call(&self.environment)?;
            if let Some(_start_lock) = self.try_lock_start()? {
                match connect(&self.home, role, Some(&self.call_environment)) {
                    Err(ConnectError::NotRunning) => {}
                    connection => return Ok(connection?),
                }
                match self.start(&[], deadline) {
                    // Another daemon is starting or stopping: it holds its lock and does not listen.
                    Err(error) if error.is_already_running() => {
                        silent_deaths = 0;
                        backoff = (backoff * 2).min(MAX_BACKOFF);
                    }
                    // Killed before its first output, so it did not reject anything: retry.
                    Err(error) if error.is_silent_death() => {
                        silent_deaths += 1;
                        if silent_deaths == MAX_SILENT_DEATHS {
                            return Err(error);
                        }
                    }
                    other => other?,
                }
            }
            if Instant::now() > deadline {
                return Err(self.start_timeout());
            }
            sleep(backoff);
        }
    }

    /// Starts a daemon with options for `serve` and connects to it. Unlike [`Self::connect_or_start`], fails if one is running.
    pub fn start_in_background(&mut self, options: &[String]) -> Result<DaemonConnection, ConnectorError> {
        reject_inside_call(&self.environment)?;
        self.home.create()?;
        self.start(options, Instant::now() + START_TIMEOUT)?;
        Ok(connect(&self.home, ClientRole::Control, None)?)
    }

    fn try_lock_start(&self) -> Result<Option<File>, ConnectorError> {
        self.home.create()?;
        try_lock_file(&self.home.state().join("start.lock")).map_err(ConnectorError::Prepare)
    }

    /// Spawns a daemon and waits until it is ready.
    fn start(&mut self, options: &[String], deadline: Instant) -> Result<(), ConnectorError> {
        let (reader, writer) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| ConnectorError::Prepare(errno.into()))?;
        let program = current_program().map_err(ConnectorError::Prepare)?;
        let cannot = |source| ConnectorError::Spawn { program: program.clone(), source };
        let child = spawn_daemon(&program, options, writer).map_err(cannot)?;
        self.spawned.push(child);
        match read_startup_output(&reader, deadline).map_err(ConnectorError::Prepare)? {
            None => Err(self.start_timeout()),
            Some(output) if output.starts_with(READY) => Ok(()),
            Some(output) => {
                // The daemon closed its pipe, so it is exiting.
                let status = self.spawned.pop().and_then(|mut child| child.wait().ok());
                let output = output.trim();
                let output = output.strip_prefix("error: ").unwrap_or(output).to_owned();
                Err(match status.and_then(|status| status.code()) {
                    None if output.is_empty() => {
                        ConnectorError::Killed { signal: status.and_then(|status| status.signal()) }
                    }
                    code => ConnectorError::StartFailed { output, code },
                })
            }
        }
    }

    fn start_timeout(&self) -> ConnectorError {
        ConnectorError::StartTimeout { holder: LockHolder::read_last(self.home.state()) }
    }
}

/// Returns the path of this program. After an upgrade, the path leads to the new program, which is the one to spawn.
fn current_program() -> io::Result<PathBuf> {
    let path = env::current_exe()?.into_os_string().into_vec();
    let path = path.strip_suffix(b" (deleted)").map(<[u8]>::to_vec).unwrap_or(path);
    Ok(OsString::from_vec(path).into())
}

/// Spawns a daemon, which calls `setsid` itself. It inherits the user's environment, since agents do.
#[expect(clippy::disallowed_methods, reason = "the only place that spawns a daemon")]
fn spawn_daemon(program: &PathBuf, options: &[String], output: OwnedFd) -> io::Result<Child> {
    Command::new(program)
        .args(["serve", "--detached"])
        .args(options)
        .env_remove(RunId::VARIABLE)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
}

/// Reads the output of a daemon until it is ready or closes the pipe; `None` after the deadline.
fn read_startup_output(reader: &OwnedFd, deadline: Instant) -> io::Result<Option<String>> {
    let mut pipe = File::from(reader.try_clone()?);
    let (mut output, mut buffer) = (Vec::new(), [0; 4096]);
    while !output.starts_with(READY.as_bytes()) && (output.len() as u64) < MAX_STARTUP_OUTPUT {
        let left = deadline.saturating_duration_since(Instant::now());
        let left =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(0), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(reader, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match pipe.read(&mut buffer)? {
            0 => break,
            length => output.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&output).into_owned()))
}

fn reject_inside_call(environment: &ProcessEnvironment) -> Result<(), ConnectorError> {
    if is_in_sandboxed_call(environment) {
        Err(ConnectorError::InsideSandboxedCall)
    } else if find_enclosing_run(environment).is_some() {
        Err(ConnectorError::InsideCall)
    } else {
        Ok(())
    }
}

/// Returns the name of a signal that kills a process under a resource limit or by a fault; the number of any other.
fn signal_name(signal: i32) -> String {
    let names = [
        (Signal::KILL, "SIGKILL"),
        (Signal::TERM, "SIGTERM"),
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::BUS, "SIGBUS"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::SYS, "SIGSYS"),
    ];
    let name = names.iter().find(|(known, _)| known.as_raw() == signal);
    name.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

/// The daemon is neither reachable nor startable.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// The state directory is unusable.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// A daemon is running but not usable.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// This process runs in a sandboxed call.
    #[error("the daemon cannot be reached from inside a sandboxed call")]
    InsideSandboxedCall,
    /// No daemon is running, and this process runs in a call.
    #[error("no daemon is running, and none can be started inside a call")]
    InsideCall,
    /// The daemon cannot be spawned.
    #[error("cannot start the daemon `{}`", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The lock, the pipe or a thread cannot be created.
    #[error("cannot prepare to start the daemon")]
    Prepare(#[source] io::Error),
    /// The daemon exited before it was ready.
    #[error("the daemon failed to start: {}", if output.is_empty() { "it exited without a message" } else { output })]
    StartFailed {
        /// The error that it printed.
        output: String,
        /// Its exit code.
        code: Option<i32>,
    },
    /// The daemon was killed before its first output.
    #[error("the daemon was killed{} before it started", signal.map(|signal| format!(" by {}", signal_name(signal))).unwrap_or_default())]
    Killed {
        /// The signal, if known.
        signal: Option<i32>,
    },
    /// The daemon was not ready in time.
    #[error("the daemon did not become ready in time{}", holder.as_ref().map(|holder| format!(" (last known pid {})", holder.pid)).unwrap_or_default())]
    StartTimeout {
        /// The last holder of the lock.
        holder: Option<LockHolder>,
    },
}

impl ConnectorError {
    /// Returns whether the start failed because another daemon is running.
    pub fn is_already_running(&self) -> bool {
        matches!(self, Self::StartFailed { code: Some(EXIT_ALREADY_RUNNING), .. })
    }

    /// Returns whether the daemon died before it reported anything.
    fn is_silent_death(&self) -> bool {
        match self {
            Self::Killed { .. } => true,
            Self::StartFailed { output, .. } => output.is_empty(),
            _ => false,
        }
    }

    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Home(error) => error.hint(),
            Self::Connect(error) => error.hint(),
            Self::InsideSandboxedCall => {
                "place the call outside, or run the outer call with policy `off`".to_owned()
            }
            Self::InsideCall => {
                "start one outside the call with `switchboard serve --background`; a daemon started here would be killed when the call ends"
                    .to_owned()
            }
            Self::Spawn { .. } => "check the limits on processes and memory".to_owned(),
            Self::Prepare(error) => regular_file::path_hint(error)
                .unwrap_or_else(|| "check the limit on open files and the free disk space".to_owned()),
            // The daemon printed its own hint.
            Self::StartFailed { output, .. } if output.contains("hint: ") => String::new(),
            Self::StartFailed { .. } => {
                "fix that and retry; `switchboard serve` runs in the foreground and shows the error".to_owned()
            }
            Self::Killed { .. } => "check the resource limits (`ulimit -a`) and the free memory".to_owned(),
            Self::StartTimeout { .. } => "see the daemon log (`switchboard config` prints its path)".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_program_is_an_existing_file() {
        assert!(current_program().unwrap().is_file());
    }
}
