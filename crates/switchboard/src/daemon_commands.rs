//! `switchboard status`, `switchboard stop` and `switchboard serve --background`.

use std::io;
use std::process::ExitCode;

use protocol::enclosing_run::{find_enclosing_run, is_in_sandboxed_call};
use protocol::{
    ClientRole, ConnectError, DaemonPhase, DaemonRequest, DaemonStatus, ErrorReply, LockHolder,
    ProcessEnvironment, RequestError, StopMode, SwitchboardHome, connect, connect_when_ready,
    describe_version_skew,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::client::{self, JobReply};
use crate::daemon::DaemonError;
use crate::drift::ConfigDrift;
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure};
use crate::{cli, output};

/// The timeout for the exit of a daemon that is stopping.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Prints the status of the daemon. Does not start one.
pub fn status(args: &cli::Look) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let home = SwitchboardHome::from_environment(&environment)?;
    let result = connect_when_ready(&home, ClientRole::Control).map_err(RequestError::from).and_then(
        |mut connection| {
            let status = protocol::exchange(&mut connection, &DaemonRequest::Status, |_| {})?;
            Ok((status, ConfigDrift::query(&mut connection, &home, &environment), connection.welcome.peer))
        },
    );
    let (status, drift, peer) = match result {
        Ok((JobReply::Status(status), drift, peer)) => (status, drift, peer),
        // The daemon has just exited.
        Ok(_) | Err(RequestError::Connect(ConnectError::NotRunning)) => {
            let message = if args.json {
                r#"{"running":false}"#
            } else if is_in_sandboxed_call(&environment) {
                "the daemon cannot be reached from inside a sandboxed call"
            } else if find_enclosing_run(&environment).is_some() {
                "no daemon is running, and none can be started inside a call"
            } else {
                "no daemon is running; the next command starts one"
            };
            output::line(message);
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        let mut json = serde_json::to_value(&status)?;
        if let Some(drift) = &drift {
            json["config_drift"] = serde_json::to_value(drift)?;
        }
        output::line(&serde_json::to_string_pretty(&json)?);
    } else {
        print_status(&status);
    }
    if let Some(drift) = drift {
        drift.print();
    }
    if let Some(skew) = describe_version_skew(&peer) {
        output::aside(&format!("note: {skew}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the daemon and prints its address.
pub fn serve_in_background(args: &cli::Serve) -> Result<ExitCode, CommandFailure> {
    let mut connector = client::connector()?;
    let options = args.http.iter().flat_map(|address| ["--http".to_owned(), address.clone()]);
    let mut connection = match connector.start_in_background(&options.collect::<Vec<_>>()) {
        // The same error as that of `switchboard serve`.
        Err(error) if error.is_already_running() => {
            let state = connector.home().state().to_owned();
            let holder = LockHolder::read_last(&state);
            return Err(DaemonError::Taken { state, holder }.into());
        }
        connection => connection?,
    };
    let pid = connection.process.as_raw_pid();
    output::line(&format!("the daemon is running (pid {pid}, version {})", protocol::VERSION));
    if let JobReply::Status(DaemonStatus { http: Some(http), .. }) =
        protocol::exchange(&mut connection, &DaemonRequest::Status, |_| {})?
    {
        output::line(&format!("http: {http}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns why the running daemon rejects calls; `None` if it accepts them, or none is running.
pub fn daemon_problem(home: &SwitchboardHome) -> Option<ErrorReply> {
    let mut connection = connect(home, ClientRole::Control, None).ok()?;
    match protocol::exchange(&mut connection, &DaemonRequest::Status, |_| {}) {
        Ok(JobReply::Status(status)) => status.problem,
        _ => None,
    }
}

fn print_status(status: &DaemonStatus) {
    let uptime = format_uptime(status.uptime_ms / 1000);
    let phase = match status.phase {
        DaemonPhase::Open => "",
        DaemonPhase::Draining => "; draining: it exits when running jobs finish",
        DaemonPhase::Stopping => "; it is stopping",
    };
    output::line(&format!(
        "the daemon is running (pid {}, version {}), up for {uptime}{phase}",
        status.pid, status.version
    ));
    output::line(&format!("jobs: {} running, {} queued", status.running, status.queued));
    if let Some(problem) = &status.problem {
        output::line(&format!("no call is accepted: {}", problem.message));
        output::line(&format!("  hint: {}", problem.hint));
    }
    output::line(&format!("connections: {}", status.connections));
    output::line(&format!("state: {}", status.state.display()));
    output::line(&format!("socket: {}", status.socket.display()));
    output::line(&format!("log: {}", status.log.display()));
    if let Some(http) = &status.http {
        output::line(&format!("http: {http}"));
    }
}

fn format_uptime(seconds: u64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600.. => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Stops the daemon and waits until it has exited.
pub fn stop(args: &cli::Stop) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    // A drain would wait for the call that this process runs in.
    if !args.now && !args.cancel && find_enclosing_run(&environment).is_some() {
        return Err(StopError::InsideCall.into());
    }
    let home = SwitchboardHome::from_environment(&environment)?;
    let mut connection = match connect_when_ready(&home, ClientRole::Control) {
        // Runs continue without a daemon, and only a daemon can cancel them.
        Err(ConnectError::NotRunning) if args.cancel && home.state().join("jobs").exists() => {
            client::connector()?.connect_or_start(ClientRole::Control)?
        }
        Err(ConnectError::NotRunning) => {
            output::line("no daemon is running");
            return Ok(ExitCode::SUCCESS);
        }
        // SIGTERM works with every protocol version.
        Err(ConnectError::ProtocolMismatch { pid, error }) => return stop_by_signal(&home, pid, &error),
        connection => connection?,
    };
    // Opened before the request: the reply proves that the daemon was still running, so the pid was not reused.
    let process = open_process(connection.process)?;
    let mode = match (args.now, args.cancel) {
        (true, _) => StopMode::Now,
        (false, true) => StopMode::Cancel,
        (false, false) => StopMode::Drain,
    };
    protocol::exchange(&mut connection, &DaemonRequest::Stop { mode }, |reply| {
        if let JobReply::Draining { running: running @ 1.. } = reply {
            output::aside(&waiting_line(*running, mode));
        }
    })?;
    wait_for_exit(&process, connection.process)
}

fn waiting_line(running: u64, mode: StopMode) -> String {
    match (mode, running) {
        (StopMode::Cancel, 1) => "waiting until 1 running job is canceled".to_owned(),
        (StopMode::Cancel, jobs) => format!("waiting until {jobs} running jobs are canceled"),
        (_, 1) => "waiting for 1 job; `switchboard stop --now` leaves it to the next daemon".to_owned(),
        (_, jobs) => {
            format!("waiting for {jobs} jobs; `switchboard stop --now` leaves them to the next daemon")
        }
    }
}

/// Stops a daemon of another protocol version. Running jobs continue.
fn stop_by_signal(home: &SwitchboardHome, pid: i32, error: &ErrorReply) -> Result<ExitCode, CommandFailure> {
    output::aside(&format!("{}; stopping it with SIGTERM (running jobs continue)", error.message));
    let Some(daemon) = Pid::from_raw(pid) else { return Err(RequestError::UnexpectedReply.into()) };
    let process = open_process(daemon)?;
    // The same pid still listens, so the pidfd does not refer to a later process.
    match connect(home, ClientRole::Control, None) {
        Err(ConnectError::ProtocolMismatch { pid: again, .. }) if again == pid => {
            pidfd_send_signal(&process, Signal::TERM).map_err(|errno| broken(errno.into()))?;
        }
        Err(ConnectError::NotRunning) => {}
        Err(error) => return Err(error.into()),
        // Another daemon has replaced it.
        Ok(_) => return Err(RequestError::UnexpectedReply.into()),
    }
    wait_for_exit(&process, daemon)
}

fn open_process(process: Pid) -> Result<OwnedFd, ConnectError> {
    pidfd_open(process, PidfdFlags::empty()).map_err(|errno| broken(errno.into()))
}

fn wait_for_exit(process: &OwnedFd, pid: Pid) -> Result<ExitCode, CommandFailure> {
    let exited = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&EXIT_TIMEOUT));
    if exited.map_err(|errno| broken(errno.into()))? == 0 {
        return Err(StopError::StillRunning { pid: pid.as_raw_pid() }.into());
    }
    output::line(&format!("stopped the daemon (pid {})", pid.as_raw_pid()));
    Ok(ExitCode::SUCCESS)
}

fn broken(error: io::Error) -> ConnectError {
    ConnectError::Broken(error)
}

/// The daemon was not stopped.
#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("`switchboard stop` would wait for the call it runs in")]
    InsideCall,
    #[error("the daemon (pid {pid}) did not exit within 60 s")]
    StillRunning { pid: i32 },
}

impl CommandError for StopError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::InsideCall => {
                "run it outside the call, or use `switchboard stop --now`, which leaves running jobs to the next daemon"
                    .to_owned()
            }
            Self::StillRunning { pid } => {
                format!("see its log; `kill -9 {pid}` kills it, and running jobs continue")
            }
        })
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Failed
    }
}
