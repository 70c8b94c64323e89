//! Launches the agent, inside its sandbox if the policy asks for one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use model::{InputMode, NotStarted, NotStartedReason, Policy, Quarantined, RunId, RunPlan, SandboxReport};

use crate::active_runs::Publication;
use crate::confine::{ReadySandbox, StartedSandbox, prepare_sandbox, wait_until_started};
use crate::input_pump::InputPump;
use crate::locked_spool::LockedSpool;
use crate::not_started::{check_working_directory, spawn_failure};
use crate::os::{Pipes, ProcessTree};
use crate::path_guard::PathGuard;
use crate::spooled_stream::SpooledStream;

/// The maximum number of attempts to set up a sandbox: a path found during the preparation (a socket to be masked) may
/// be gone when it is mounted.
const MAX_ATTEMPTS: u32 = 10;

/// A running agent and its streams.
#[derive(Debug)]
pub struct Launched {
    pub tree: ProcessTree,
    /// The pump of its stdin, if its input is open.
    pub input: Option<InputPump>,
    pub output: SpooledStream,
    pub error: SpooledStream,
    /// The enforcement of its policy.
    pub sandbox: SandboxReport,
    /// The guard of protected paths that did not exist at the start.
    pub guard: Option<PathGuard>,
    /// The list of these paths for other runs.
    pub publication: Option<Publication>,
    /// The proxy to the allowed hosts, if the policy names any.
    pub proxy: Option<sandbox::Proxy>,
}

/// The files of the agent's streams.
#[derive(Debug)]
pub struct StreamFiles {
    pub output: File,
    pub error: File,
}

/// Launches the agent. On failure, no process is left.
pub fn launch(
    spool: &LockedSpool,
    directory: &Path,
    plan: &RunPlan,
    run_id: RunId,
    files: StreamFiles,
) -> Result<Launched, NotStarted> {
    check_working_directory(&plan.cwd)?;
    let mut attempts_left = MAX_ATTEMPTS;
    // Kept across attempts: the first one recovers killed runs, but a later one may start the agent.
    let mut recovered = Vec::new();
    loop {
        attempts_left -= 1;
        match try_launch(spool, directory, plan, run_id, &mut recovered) {
            Ok(Started {
                tree,
                pipes,
                input,
                guard,
                publication,
                sandbox: StartedSandbox { mut sandbox, proxy },
            }) => {
                if let SandboxReport::Confined(confined) = &mut sandbox {
                    confined.quarantined = recovered;
                }
                return match (
                    SpooledStream::new(pipes.output, files.output),
                    SpooledStream::new(pipes.error, files.error),
                ) {
                    (Ok(output), Ok(error)) => {
                        Ok(Launched { tree, input, output, error, sandbox, guard, publication, proxy })
                    }
                    (Err(refusal), _) | (_, Err(refusal)) => {
                        tree.abandon();
                        Err(spawn_failure(plan, &refusal))
                    }
                };
            }
            Err(FailedLaunch { can_retry: true, .. }) if attempts_left > 0 => {}
            Err(FailedLaunch { failure, .. }) => return Err(failure),
        }
    }
}

/// The result of a successful attempt.
struct Started {
    tree: ProcessTree,
    pipes: Pipes,
    input: Option<InputPump>,
    guard: Option<PathGuard>,
    publication: Option<Publication>,
    sandbox: StartedSandbox,
}

/// Spawns the agent, or its sandbox with the agent inside.
fn try_launch(
    spool: &LockedSpool,
    directory: &Path,
    plan: &RunPlan,
    run_id: RunId,
    recovered: &mut Vec<Quarantined>,
) -> Result<Started, FailedLaunch> {
    let mut prepared = match &plan.policy {
        Policy::Off => None,
        Policy::Confined(confinement) => {
            Some(prepare_sandbox(confinement, plan, run_id, directory, recovered)?)
        }
    };
    // Written before the agent can create anything.
    let guard = match &mut prepared {
        Some(ReadySandbox { prepared, .. }) => {
            let roots = std::mem::take(&mut prepared.held_roots);
            PathGuard::start(spool, directory, run_id, &prepared.quarantine, roots)
                .map_err(|error| spawn_failure(plan, &error))?
        }
        None => None,
    };
    let (stdin, input) = open_stdin(spool, plan.input_mode).map_err(|error| spawn_failure(plan, &error))?;
    let started =
        ProcessTree::spawn(plan, run_id, stdin.as_fd(), prepared.as_ref().map(|ready| &ready.prepared));
    let (mut tree, pipes) = started.map_err(|error| spawn_failure(plan, &error))?;
    let (sandbox, publication) = match prepared {
        None => (Ok(StartedSandbox { sandbox: SandboxReport::Off, proxy: None }), None),
        Some(ReadySandbox { prepared, publication }) => {
            (wait_until_started(prepared, &mut tree, &pipes.error, plan), publication)
        }
    };
    match sandbox {
        Ok(sandbox) => Ok(Started { tree, pipes, input, guard, publication, sandbox }),
        Err(failure) => {
            tree.abandon();
            Err(FailedLaunch { can_retry: failure.reason == NotStartedReason::NotConfined, failure })
        }
    }
}

/// Opens the agent's stdin. A complete input is the file itself: the agent reads it at its own pace, and no prompt is too
/// long for a pipe buffer. An open one is pumped.
fn open_stdin(spool: &LockedSpool, mode: InputMode) -> io::Result<(OwnedFd, Option<InputPump>)> {
    match mode {
        InputMode::Complete => Ok((spool.input()?.into(), None)),
        InputMode::Open => InputPump::connect(spool).map(|(pump, stdin)| (stdin, Some(pump))),
    }
}

/// A failed attempt.
struct FailedLaunch {
    failure: NotStarted,
    can_retry: bool,
}

impl From<NotStarted> for FailedLaunch {
    fn from(failure: NotStarted) -> Self {
        Self { failure, can_retry: false }
    }
}
