//! The supervisor program: reads the manifest in a spool, executes it and writes the final status.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;
use std::time::Instant;

use model::{
    End, LimitClock, Policy, RunPlan, RunReport, RunState, RunStatus, STATUS_VERSION, SandboxReport, TreeEnd,
    TreeUsage,
};
use sandbox::{CommitWatch, CountedCommits};

use crate::active_runs::Publication;
use crate::clock::now_ms;
use crate::confine::release_caches;
use crate::error::SpoolError;
use crate::fork_server::{FORK_SERVER_ARG, ForkedSupervisor, serve_forks};
use crate::launch::{Launched, StreamFiles, launch};
use crate::locked_spool::{LockedSpool, StatusSlot};
use crate::log::log_error;
use crate::manifest::RunManifest;
use crate::os::{self, StarterProcess};
use crate::setup::ProcessSetup;
use crate::spool_files::{ERROR, OUTPUT};
use crate::status_pipe;
use crate::supervision::{Supervision, Watches};

/// The first argument that turns an embedding program into a supervisor.
pub(crate) const SUPERVISOR_ARG: &str = "--switchboard-supervisor";

/// Runs the supervisor program: `switchboard-supervisor <spool>`, with the locked directory as its stdin.
///
/// Must come first in a process: it closes every other inherited file.
pub fn main() -> ExitCode {
    if let Some(code) = sandbox::run_if_requested() {
        return code;
    }
    supervise(env::args_os().nth(1).as_deref())
}

/// Turns a program that embeds this library into its own supervisor (see [`crate::Supervisor::this_program`]).
///
/// Call it first in `main`, before anything opens a file or starts a thread, and return the exit code if there is one:
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = supervisor::run_if_asked() {
///         return code;
///     }
///     // the program itself
/// #   std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn run_if_asked() -> Option<ExitCode> {
    if let Some(code) = sandbox::run_if_requested() {
        return Some(code);
    }
    let mut args = env::args_os().skip(1);
    (args.next()? == SUPERVISOR_ARG).then(|| supervise(args.next().as_deref()))
}

fn supervise(directory: Option<&OsStr>) -> ExitCode {
    let Some(directory) = directory else {
        let usage = "the spool is missing\nhint: this program is started by Switchboard: `switchboard-supervisor <spool>`";
        let _ = writeln!(io::stderr(), "switchboard-supervisor: {usage}");
        return ExitCode::from(2);
    };
    panic::set_hook(Box::new(|defect| log_error(&defect.to_string())));
    let done = if directory == FORK_SERVER_ARG {
        match serve_forks() {
            Ok(Some(ForkedSupervisor { directory, setup })) => execute(&directory, &setup),
            Ok(None) => Ok(()),
            Err(error) => Err(GaveUp::Setup(error)),
        }
    } else {
        let setup = os::close_inherited_files().and_then(|()| ProcessSetup::new());
        setup.map_err(GaveUp::Setup).and_then(|setup| execute(directory, &setup))
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(deeper) = cause {
                text = format!("{text}: {deeper}");
                cause = deeper.source();
            }
            // Before the startup reply, the starter reads the error from stdout; afterwards it is only in the log.
            let _ = io::stdout().write_all(text.as_bytes());
            log_error(&text);
            ExitCode::FAILURE
        }
    }
}

/// An error that makes a supervisor give up.
#[derive(Debug, thiserror::Error)]
enum GaveUp {
    #[error("cannot set up the supervisor process")]
    Setup(#[source] io::Error),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("there is no plan in the spool `{0}`")]
    NoPlan(String),
    #[error("another process has locked the spool `{0}`")]
    Locked(String),
    #[error("cannot write to the spool")]
    Write(#[source] io::Error),
}

/// Executes the manifest in the spool on stdin: launches the agent, supervises it to the end and writes the final status.
fn execute(directory: &OsStr, setup: &ProcessSetup) -> Result<(), GaveUp> {
    let signals = &setup.signals;
    os::detach_from_caller().map_err(GaveUp::Setup)?;
    let name = || directory.display().to_string();
    let spool = LockedSpool::from_stdin().map_err(GaveUp::Setup)?.ok_or_else(|| GaveUp::Locked(name()))?;
    let RunManifest { run_id, plan, starter, .. } =
        spool.manifest()?.ok_or_else(|| GaveUp::NoPlan(name()))?;
    let files = open_streams(&spool).map_err(GaveUp::Write)?;
    // The starter has reserved its space, before the agent can fill the disk.
    let final_slot = spool.final_status_slot(plan.status_durability).map_err(GaveUp::Write)?;

    let status = RunStatus {
        version: STATUS_VERSION,
        run_id,
        boot_id: os::boot_id().map_err(GaveUp::Setup)?.to_owned(),
        supervisor: setup.identity,
        started_at_ms: now_ms(),
        sandbox: None,
        limits: Some(LimitClock { limits: plan.limits.clone(), started_monotonic_ms: os::monotonic_ms() }),
        state: RunState::Ended(never_started(End::Stopped)),
    };
    let since = Instant::now();
    let stopped = signals.read_pending().map_err(GaveUp::Setup)?.stop;
    let starter = StarterProcess::track(starter).map_err(GaveUp::Setup)?;
    let commits = match &plan.policy {
        Policy::Confined(_) => CommitWatch::start(&plan.cwd, &plan.env),
        Policy::Off => None,
    };
    let launched = if stopped {
        Err(End::Stopped)
    } else if starter.has_exited() {
        Err(End::StarterGone)
    } else {
        launch(&spool, directory.as_ref(), &plan, run_id, files).map_err(End::NotStarted)
    };
    let (mut guard, mut input);
    let (report, sandbox) = match launched {
        Err(end) => (never_started(end), None),
        Ok(mut launched) => {
            let mut sandbox = launched.sandbox.clone();
            let proxy = launched.proxy.take();
            // Dropped at the end of the process: closing an inotify watch blocks.
            guard = launched.guard.take();
            input = launched.input.take();
            let publication = launched.publication.take();
            let status = RunStatus { sandbox: Some(sandbox.clone()), ..status.clone() };
            let announced = announce(&spool, &plan, &status, &launched);
            let watches = Watches { guard: guard.as_mut(), input: input.as_mut() };
            let mut supervision = Supervision::new(launched, &plan.limits, signals, starter, watches, since);
            match announced {
                Ok(json) => status_pipe::send(&json),
                // A run without a status could not be found again, so it must not continue.
                Err(error) => supervision.spool_failed(&error),
            }
            let report = supervision.run_to_end();
            if let SandboxReport::Confined(confined) = &mut sandbox {
                if let Some(proxy) = proxy {
                    confined.refused_hosts = proxy.close();
                }
                if let Some(guard) = &guard {
                    confined.quarantined.extend(guard.sweep(&spool));
                }
                if let Some(commits) = &commits {
                    let CountedCommits { without_hooks, unsigned } = commits.count();
                    (confined.commits_without_hooks, confined.unsigned_commits) = (without_hooks, unsigned);
                }
            }
            if !matches!(report.tree, TreeEnd::LeftAlive { .. }) {
                publication.iter().for_each(Publication::withdraw);
            }
            (report, Some(sandbox))
        }
    };
    let report = RunReport { sandbox: sandbox.clone(), ..report };
    let status = RunStatus { sandbox, state: RunState::Ended(report), ..status };
    release_caches();
    let json = finish(&spool, &final_slot, &status).map_err(GaveUp::Write)?;
    let free_reservation = || {
        if let Err(error) = final_slot.free_reservation(json.len()) {
            log_error(&format!("cannot free the reserved space: {error}"));
        }
    };
    if final_slot.is_space_scarce() {
        free_reservation();
        status_pipe::send(&json);
    } else {
        status_pipe::send(&json);
        free_reservation();
    }
    // Let the waiters run first: this process has nothing left to do but to exit.
    std::thread::yield_now();
    Ok(())
}

/// Publishes the first status and removes the plan: from here on the run can be found without it. Returns the written
/// bytes.
fn announce(
    spool: &LockedSpool,
    plan: &RunPlan,
    status: &RunStatus,
    launched: &Launched,
) -> io::Result<Vec<u8>> {
    let status = RunStatus { state: RunState::Running { agent: launched.tree.agent() }, ..status.clone() };
    let json = spool.publish_first_status(&status, plan.status_durability)?;
    spool.remove_plan()?;
    Ok(json)
}

fn finish(spool: &LockedSpool, slot: &StatusSlot<'_>, status: &RunStatus) -> io::Result<Vec<u8>> {
    // Secrets first: an ended status implies that they are gone.
    let cleared = spool.remove_private_files().and_then(|()| spool.remove_plan());
    let json = slot.publish(status)?;
    // After the status: if the supervisor were killed in between, the recovery would not report the quarantined paths.
    let is_over =
        matches!(&status.state, RunState::Ended(report) if !matches!(report.tree, TreeEnd::LeftAlive { .. }));
    if is_over {
        spool.remove_quarantine_list()?;
    }
    cleared?;
    Ok(json)
}

fn open_streams(spool: &LockedSpool) -> io::Result<StreamFiles> {
    Ok(StreamFiles { output: spool.stream(OUTPUT)?, error: spool.stream(ERROR)? })
}

fn never_started(end: End) -> RunReport {
    RunReport {
        end,
        exit: None,
        ended_at_ms: now_ms(),
        duration_ms: 0,
        output_bytes: 0,
        error_bytes: 0,
        usage: TreeUsage::default(),
        descendants_ended: 0,
        was_suspended: false,
        tree: TreeEnd::ProvenEmpty,
        sandbox: None,
    }
}
