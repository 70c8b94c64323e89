//! `switchboard status` and `switchboard stop`.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use super::connect::{ConnectError, Connection, connect};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::home::Home;
use crate::wire::{self, Line, Phase, Reply, Request, Role, Status, StopHow};
use crate::{cli, output};

/// How long a daemon that has said that it ends may take over it.
const GONE_WITHIN: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Says how the daemon is. Starts none.
pub fn status(order: &cli::Look) -> Result<ExitCode, Failure> {
    let home = Home::find(&Environment::of_this_process())?;
    let mut connection = match connect(&home, Role::Control) {
        Err(ConnectError::Nobody) => {
            output::line(if order.json {
                r#"{"running":false}"#
            } else {
                "no daemon is running; the next call starts one"
            });
            return Ok(ExitCode::FAILURE);
        }
        connection => connection.map_err(Failure::Connect)?,
    };
    let Reply::Status(status) = ask(&mut connection, &Request::Status, |_| {})? else {
        return Err(Failure::Connect(ConnectError::Stranger { pid: connection.process.as_raw_pid() }));
    };
    if order.json {
        output::line(&serde_json::to_string_pretty(&status)?);
    } else {
        tell(&status);
    }
    if let Some(skew) = wire::skew(&connection.welcome.speaker) {
        output::aside(&format!("note: {skew}"));
    }
    Ok(ExitCode::SUCCESS)
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
    output::line(&format!("connections: {}", status.connections));
    output::line(&format!("state: {}", status.state.display()));
    output::line(&format!("socket: {}", status.socket.display()));
    output::line(&format!("log: {}", status.log.display()));
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
    let home = Home::find(&Environment::of_this_process())?;
    let mut connection = match connect(&home, Role::Control) {
        Err(ConnectError::Nobody) => {
            output::line("no daemon is running");
            return Ok(ExitCode::SUCCESS);
        }
        connection => connection.map_err(Failure::Connect)?,
    };
    // Held before it is asked to end: its answer proves that it was still there, so this is no other's process.
    let process =
        pidfd_open(connection.process, PidfdFlags::empty()).map_err(|errno| broken(errno.into()))?;
    let how = match (order.now, order.cancel) {
        (true, _) => StopHow::Now,
        (false, true) => StopHow::Cancel,
        (false, false) => StopHow::Drain,
    };
    ask(&mut connection, &Request::Stop { how }, |reply| {
        if let Reply::Draining { running: running @ 1.. } = reply {
            output::aside(&format!(
                "waiting for {running} running; `switchboard stop --now` leaves them to the next daemon"
            ));
        }
    })?;
    let pid = connection.process.as_raw_pid();
    let gone = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&GONE_WITHIN))
        .map_err(|errno| broken(errno.into()))?;
    if gone == 0 {
        return Err(Failure::StillThere { pid });
    }
    output::line(&format!("the daemon (pid {pid}) has ended"));
    Ok(ExitCode::SUCCESS)
}

fn broken(error: io::Error) -> Failure {
    Failure::Connect(ConnectError::Broken(error))
}

/// Asks, hears every line out, and returns the last.
fn ask(
    connection: &mut Connection,
    request: &Request,
    mut heard: impl FnMut(&Reply),
) -> Result<Reply, Failure> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    connection.writer.write_all(&line).map_err(broken)?;
    loop {
        let mut line = String::new();
        if connection.reader.read_line(&mut line).map_err(broken)? == 0 {
            // It ended before it had said all; that is what `stop` wants, and nobody else asks for long.
            return Ok(Reply::Ending);
        }
        match serde_json::from_str(&line)? {
            Line { reply, more: true } => heard(&reply),
            Line { reply: Reply::Error(complaint), .. } => {
                return Err(Failure::Connect(ConnectError::Refused(complaint)));
            }
            Line { reply, .. } => return Ok(reply),
        }
    }
}
