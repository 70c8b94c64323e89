//! The launcher: a small process that applies the rules to itself and then starts the agent, or becomes it.
//!
//! As the first process of a pid namespace it stays: it reports the agent's exit status, reaps orphans and exits last. The kernel kills
//! every process in the namespace with it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use model::Exit;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, wait, waitid};

use crate::launcher_protocol::{AppliedRules, LaunchStep, LauncherEvent, SandboxSpec};
use crate::mounts::create_mounts;
use crate::{landlock, limits, proxy_listener, seccomp};

/// The first argument with which a program is started as the launcher.
pub const LAUNCHER_ARGUMENT: &str = "--switchboard-sandbox";

/// Runs the launcher. Its arguments are the descriptors of the spec and of the event pipe.
pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut number = || args.next()?.to_str()?.parse::<RawFd>().ok().filter(|number| *number > 2);
    let (Some(spec), Some(events)) = (number(), number()) else { return ExitCode::from(2) };
    let (spec, events) = (adopt_descriptor(spec), adopt_descriptor(events));
    let mut events = EventPipe(File::from(events));
    match launch(spec, &mut events) {
        Ok(()) => ExitCode::SUCCESS,
        Err(LaunchFailure { step, error }) => {
            let (errno, message) = (error.raw_os_error(), error.to_string());
            events.send(&LauncherEvent::Failed { step, errno, message: message.chars().take(500).collect() });
            ExitCode::FAILURE
        }
    }
}

#[expect(unsafe_code, reason = "an inherited descriptor has only a number")]
fn adopt_descriptor(number: RawFd) -> OwnedFd {
    // SAFETY: the parent process opened it for this purpose, and no other code here uses the number.
    unsafe { OwnedFd::from_raw_fd(number) }
}

struct EventPipe(File);

impl EventPipe {
    fn send(&mut self, event: &LauncherEvent) {
        // A reader that closed the pipe has killed this process, or is about to.
        let _ = self.0.write_all(&event.to_line());
    }
}

struct LaunchFailure {
    step: LaunchStep,
    error: io::Error,
}

fn failed_at<E: Into<io::Error>>(step: LaunchStep) -> impl FnOnce(E) -> LaunchFailure {
    move |error| LaunchFailure { step, error: error.into() }
}

fn launch(spec: OwnedFd, events: &mut EventPipe) -> Result<(), LaunchFailure> {
    let mut spec = SandboxSpec::from_file(spec).map_err(failed_at(LaunchStep::Rules))?;
    if let Some(plan) = &spec.mounts {
        create_mounts(plan, &spec.rules.roots).map_err(failed_at(LaunchStep::Mounts))?;
    }
    if let Some(channel) = spec.proxy_channel.take() {
        proxy_listener::bind_and_send(adopt_descriptor(channel).as_fd(), &mut spec.env)
            .map_err(failed_at(LaunchStep::Rules))?;
    }
    limits::set_close_on_exec().map_err(failed_at(LaunchStep::Rules))?;
    std::env::set_current_dir(&spec.cwd).map_err(failed_at(LaunchStep::WorkingDirectory))?;
    let applied = apply_rules(&spec)?;
    events.send(&LauncherEvent::RulesApplied(applied));
    if spec.mounts.is_some() {
        run_as_init(&spec, events)
    } else {
        let error = command(&spec).exec();
        Err(LaunchFailure { step: LaunchStep::Program, error })
    }
}

fn apply_rules(spec: &SandboxSpec) -> Result<AppliedRules, LaunchFailure> {
    let rules = &spec.rules;
    let is_init = spec.mounts.is_some();
    limits::set_limits(rules.bounds, is_init).map_err(failed_at(LaunchStep::Rules))?;
    limits::drop_privileges().map_err(failed_at(LaunchStep::Rules))?;
    if is_init {
        limits::forbid_inspection().map_err(failed_at(LaunchStep::Rules))?;
    }
    let failure =
        |message: String| LaunchFailure { step: LaunchStep::Rules, error: io::Error::other(message) };
    let (files, scopes) = landlock::apply(rules).map_err(failure)?;
    let seccomp = match seccomp::apply(rules.unix_sockets, rules.internet) {
        Err(error) if rules.required => return Err(failure(error.to_string())),
        applied => applied.is_ok(),
    };
    Ok(AppliedRules { files, scopes, seccomp, privileges: true })
}

#[expect(clippy::disallowed_methods, reason = "the one place where an agent is started inside a sandbox")]
fn command(spec: &SandboxSpec) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).env_clear().envs(&spec.env);
    command
}

/// Starts the agent and reaps processes until none is left.
fn run_as_init(spec: &SandboxSpec, events: &mut EventPipe) -> Result<(), LaunchFailure> {
    // The agent leads its own process group, as without a sandbox; the session is this process's.
    let child = command(spec).process_group(0).spawn().map_err(failed_at(LaunchStep::Program))?;
    let agent = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    events.send(&LauncherEvent::AgentStarted);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == agent => {
                let exit = status
                    .exit_status()
                    .map(Exit::Code)
                    .or_else(|| status.terminating_signal().map(Exit::Signal));
                if let Some(exit) = exit {
                    events.send(&LauncherEvent::AgentExited { exit, is_last: !has_children() });
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // ECHILD: no process is left.
            Err(_) => return Ok(()),
        }
    }
}

/// Returns whether a child of this process is alive or not reaped yet.
fn has_children() -> bool {
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, peek), Err(rustix::io::Errno::CHILD))
}
