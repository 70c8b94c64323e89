//! Starting the agent, or saying exactly why it cannot be.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use model::{NotStarted, NotStartedReason, Policy, Quarantined, RunId, RunPlan, SandboxReport};

use crate::active_runs::Publication;
use crate::confine::{ReadySandbox, StartedSandbox, prepare_sandbox, wait_until_started};
use crate::locked_spool::LockedSpool;
use crate::not_started::{check_working_directory, spawn_failure};
use crate::os::{Pipes, ProcessTree};
use crate::path_guard::PathGuard;
use crate::spooled_stream::SpooledStream;

/// How often a sandbox is tried to be made: what was there when it was laid out (a socket that is to be covered) may be gone
/// when it is mounted.
const MAX_ATTEMPTS: u32 = 10;

/// A started agent and its two streams.
#[derive(Debug)]
pub struct Launched {
    pub tree: ProcessTree,
    pub output: SpooledStream,
    pub error: SpooledStream,
    /// What confines it.
    pub sandbox: SandboxReport,
    /// The protected paths that did not exist when it started.
    pub guard: Option<PathGuard>,
    /// The list of these paths for other runs.
    pub publication: Option<Publication>,
    /// The way to named hosts, where the policy names some.
    pub proxy: Option<sandbox::Proxy>,
}

/// Where the agent's streams go.
#[derive(Debug)]
pub struct StreamFiles {
    pub output: File,
    pub error: File,
}

/// Starts the agent. Its stdin is the file in the spool itself: the agent finds its end by itself, at its own pace, and no
/// prompt can be too long for a pipe. When it fails, nothing runs.
pub fn launch(
    spool: &LockedSpool,
    directory: &Path,
    plan: &RunPlan,
    run_id: RunId,
    files: StreamFiles,
) -> Result<Launched, NotStarted> {
    check_working_directory(&plan.cwd)?;
    let mut attempts_left = MAX_ATTEMPTS;
    // Kept over all attempts: the first one recovers killed runs, and another may be the one that starts the agent.
    let mut recovered = Vec::new();
    loop {
        attempts_left -= 1;
        match try_launch(spool, directory, plan, run_id, &mut recovered) {
            Ok(Started {
                tree,
                pipes,
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
                        Ok(Launched { tree, output, error, sandbox, guard, publication, proxy })
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

/// An agent that runs.
struct Started {
    tree: ProcessTree,
    pipes: Pipes,
    guard: Option<PathGuard>,
    publication: Option<Publication>,
    sandbox: StartedSandbox,
}

/// Starts the agent, or the sandbox with the agent inside.
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
    // Written down before the agent can create anything.
    let guard = match &mut prepared {
        Some(ReadySandbox { prepared, .. }) => {
            let roots = std::mem::take(&mut prepared.held_roots);
            PathGuard::start(spool, directory, run_id, &prepared.quarantine, roots)
                .map_err(|error| spawn_failure(plan, &error))?
        }
        None => None,
    };
    let stdin = spool.stdin().map_err(|error| spawn_failure(plan, &error))?;
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
        Ok(sandbox) => Ok(Started { tree, pipes, guard, publication, sandbox }),
        Err(failure) => {
            tree.abandon();
            Err(FailedLaunch { can_retry: failure.reason == NotStartedReason::NotConfined, failure })
        }
    }
}

/// Why nothing was started, and whether a second look may find it otherwise.
struct FailedLaunch {
    failure: NotStarted,
    can_retry: bool,
}

impl From<NotStarted> for FailedLaunch {
    fn from(failure: NotStarted) -> Self {
        Self { failure, can_retry: false }
    }
}
