//! Asking the daemon; `switchboard status` and `switchboard stop`.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::connect::{ConnectError, Connection, connect, connect_patiently};
use super::drift::ConfigDrift;
use super::inside;
use super::start::{self, FrontError, Starter};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::home::Home;
use crate::wire::{self, Complaint, Line, Phase, Reply, Request, Role, Status, StopHow};
use crate::{cli, output};

/// How long a daemon that has said that it ends may take over it.
const GONE_WITHIN: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Says how the daemon is. Starts none.
pub fn status(order: &cli::Look) -> Result<ExitCode, Failure> {
    let environment = Environment::of_this_process();
    let home = Home::find(&environment)?;
    let asked =
        connect_patiently(&home, Role::Control).map_err(Failure::Connect).and_then(|mut connection| {
            let status = say(&mut connection, &Request::Status, |_| {})?;
            Ok((status, ConfigDrift::ask(&mut connection, &home, &environment), connection.welcome.speaker))
        });
    let (status, drift, speaker) = match asked {
        Ok((Reply::Status(status), drift, speaker)) => (status, drift, speaker),
        // It ended just now.
        Ok(_) | Err(Failure::Connect(ConnectError::Nobody)) => {
            let none = if order.json {
                r#"{"running":false}"#
            } else if inside::a_confined_call(&environment) {
                "the daemon cannot be reached from inside a sandboxed call"
            } else if inside::a_call(&environment).is_some() {
                "no daemon is running, and none can be started inside a call"
            } else {
                "no daemon is running; the next call starts one"
            };
            output::line(none);
            return Ok(ExitCode::FAILURE);
        }
        Err(failure) => return Err(failure),
    };
    if order.json {
        let mut told = serde_json::to_value(&status)?;
        if let Some(drift) = &drift {
            told["config_drift"] = serde_json::to_value(drift)?;
        }
        output::line(&serde_json::to_string_pretty(&told)?);
    } else {
        tell(&status);
    }
    if let Some(drift) = drift {
        drift.print();
    }
    if let Some(skew) = wire::skew(&speaker) {
        output::aside(&format!("note: {skew}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the daemon and says where it is.
pub fn serve_in_background(order: &cli::Serve) -> Result<ExitCode, Failure> {
    let mut connection = start::in_background(order)?;
    let pid = connection.process.as_raw_pid();
    output::line(&format!("the daemon runs (pid {pid}, version {})", wire::VERSION));
    if let Reply::Status(Status { http: Some(http), .. }) = say(&mut connection, &Request::Status, |_| {})? {
        output::line(&format!("http: {http}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns why the running daemon accepts no calls; none when it does, or none runs.
pub fn daemon_problem(home: &Home) -> Option<Complaint> {
    let mut connection = connect(home, Role::Control, None).ok()?;
    match say(&mut connection, &Request::Status, |_| {}) {
        Ok(Reply::Status(status)) => status.problem,
        _ => None,
    }
}

fn tell(status: &Status) {
    let up = up_for(status.uptime_ms / 1000);
    let phase = match status.phase {
        Phase::Open => "",
        Phase::Draining => "; it waits for what runs and ends then",
        Phase::Ending => "; it is ending",
    };
    output::line(&format!(
        "the daemon runs (pid {}, version {}), up for {up}{phase}",
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

fn up_for(seconds: u64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600.. => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Ends the daemon, and returns when it is gone.
pub fn stop(order: &cli::Stop) -> Result<ExitCode, Failure> {
    let environment = Environment::of_this_process();
    // A daemon that drains waits for every call, this one too.
    if !order.now && !order.cancel && inside::a_call(&environment).is_some() {
        return Err(FrontError::StopInsideACall.into());
    }
    let home = Home::find(&environment)?;
    let mut connection = match connect_patiently(&home, Role::Control) {
        // Jobs go on without a daemon, and only a daemon can tell that all of them are gone.
        Err(ConnectError::Nobody) if order.cancel && home.state().join("jobs").exists() => {
            let mut starter = Starter::new(environment).map_err(FrontError::from)?;
            starter.connect_or_start(Role::Control)?
        }
        Err(ConnectError::Nobody) => {
            output::line("no daemon is running");
            return Ok(ExitCode::SUCCESS);
        }
        // Signals are understood in every protocol.
        Err(ConnectError::OtherProtocol { pid, complaint }) => return stop_by_signal(&home, pid, &complaint),
        connection => connection.map_err(Failure::Connect)?,
    };
    // Held before it is asked to end: its answer proves that it was still there, so this is no other's process.
    let process = hold(connection.process)?;
    let how = match (order.now, order.cancel) {
        (true, _) => StopHow::Now,
        (false, true) => StopHow::Cancel,
        (false, false) => StopHow::Drain,
    };
    say(&mut connection, &Request::Stop { how }, |reply| {
        if let Reply::Draining { running: running @ 1.. } = reply {
            output::aside(&waiting_line(*running, how));
        }
    })?;
    until_gone(&process, connection.process)
}

fn waiting_line(running: u64, how: StopHow) -> String {
    match (how, running) {
        (StopHow::Cancel, 1) => "waiting until 1 running job is canceled".to_owned(),
        (StopHow::Cancel, jobs) => format!("waiting until {jobs} running jobs are canceled"),
        (_, 1) => "waiting for 1 job; `switchboard stop --now` leaves it to the next daemon".to_owned(),
        (_, jobs) => {
            format!("waiting for {jobs} jobs; `switchboard stop --now` leaves them to the next daemon")
        }
    }
}

/// Ends a daemon that cannot be talked to. What runs goes on.
fn stop_by_signal(home: &Home, pid: i32, complaint: &Complaint) -> Result<ExitCode, Failure> {
    output::aside(&format!("{}; it is ended by SIGTERM, and what runs goes on", complaint.message));
    let Some(daemon) = Pid::from_raw(pid) else { return Err(Failure::UnexpectedReply) };
    let process = hold(daemon)?;
    // It is still the one that listens, so what is held is not a later process with its number.
    match connect(home, Role::Control, None) {
        Err(ConnectError::OtherProtocol { pid: again, .. }) if again == pid => {
            pidfd_send_signal(&process, Signal::TERM).map_err(|errno| broken(errno.into()))?;
        }
        Err(ConnectError::Nobody) => {}
        Err(error) => return Err(Failure::Connect(error)),
        // Another daemon has taken over meanwhile.
        Ok(_) => return Err(Failure::UnexpectedReply),
    }
    until_gone(&process, daemon)
}

fn hold(process: Pid) -> Result<OwnedFd, Failure> {
    pidfd_open(process, PidfdFlags::empty()).map_err(|errno| broken(errno.into()))
}

fn until_gone(process: &OwnedFd, pid: Pid) -> Result<ExitCode, Failure> {
    let gone = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&GONE_WITHIN));
    if gone.map_err(|errno| broken(errno.into()))? == 0 {
        return Err(Failure::StillThere { pid: pid.as_raw_pid() });
    }
    output::line(&format!("the daemon (pid {}) has ended", pid.as_raw_pid()));
    Ok(ExitCode::SUCCESS)
}

fn broken(error: io::Error) -> Failure {
    Failure::Connect(ConnectError::Broken(error))
}

/// The number of daemons that may die over one request.
const MOST_DAEMONS: u32 = 5;

/// Asks the daemon, which is started when there is none, what is answered by one line. Only for what may be asked twice: a daemon
/// that dies over it is followed by the next.
pub fn ask(starter: &mut Starter, request: &Request) -> Result<Reply, Failure> {
    hear_out(starter, request, |_| {})
}

/// The same for an answer of several lines, all but the last of which are passed on. After the first of them nothing is asked
/// again.
pub fn hear_out(
    starter: &mut Starter,
    request: &Request,
    mut heard: impl FnMut(&Reply),
) -> Result<Reply, Failure> {
    let mut begun = false;
    for _ in 0..MOST_DAEMONS {
        let mut connection = starter.connect_or_start(Role::Control)?;
        let said = say(&mut connection, request, |reply| {
            begun = true;
            heard(reply);
        });
        match said {
            Ok(Reply::Ending) | Err(Failure::Connect(ConnectError::Broken(_))) if !begun => {}
            Ok(Reply::Ending) => return Err(Failure::UnexpectedReply),
            said => return said,
        }
    }
    Err(Failure::DaemonUnavailable { attempts: MOST_DAEMONS, job: request.job().map(str::to_owned) })
}

/// Asks for what must not be asked twice.
pub fn ask_once(starter: &mut Starter, request: &Request) -> Result<Reply, Failure> {
    let mut connection = starter.connect_or_start(Role::Control)?;
    match say(&mut connection, request, |_| {})? {
        Reply::Ending => Err(Failure::UnexpectedReply),
        reply => Ok(reply),
    }
}

/// Asks, hears every line out, and returns the last.
pub(super) fn say(
    connection: &mut Connection,
    request: &Request,
    mut heard: impl FnMut(&Reply),
) -> Result<Reply, Failure> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    connection.writer.write_all(&line).map_err(broken)?;
    loop {
        let mut line = String::new();
        match connection.reader.read_line(&mut line) {
            // It ended before it had said all; that is what `stop` wants, and nobody else asks for long.
            Ok(0) => return Ok(Reply::Ending),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Reply::Ending),
            read => drop(read.map_err(broken)?),
        }
        match serde_json::from_str(&line)? {
            Line { reply, more: true } => heard(&reply),
            Line { reply: Reply::Error(complaint), .. } => {
                return Err(Failure::Connect(ConnectError::Refused(complaint)));
            }
            Line { reply: Reply::Refused { about, why }, .. } => return Err(Failure::Refused { about, why }),
            Line { reply, .. } => return Ok(reply),
        }
    }
}
