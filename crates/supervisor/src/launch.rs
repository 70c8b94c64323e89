//! Starting the agent, or saying exactly why it cannot be.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use model::{NotStarted, NotStartedReason, Policy, Quarantined, RunId, RunPlan, SandboxReport};

use crate::active_runs::Publication;
use crate::confine::{Begun, ReadySandbox, begin, ready};
use crate::copy::Stream;
use crate::guard::Guard;
use crate::locked_spool::LockedSpool;
use crate::not_started::{check_folder, explain};
use crate::os::{Pipes, Tree};

/// How often a sandbox is tried to be made: what was there when it was laid out (a socket that is to be covered) may be gone
/// when it is mounted.
const TRIES: u32 = 10;

/// A started agent and its two streams.
#[derive(Debug)]
pub struct Launched {
    pub tree: Tree,
    pub output: Stream,
    pub error: Stream,
    /// What confines it.
    pub sandbox: SandboxReport,
    /// The protected paths that did not exist when it started.
    pub guard: Option<Guard>,
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
    folder: &Path,
    plan: &RunPlan,
    run_id: RunId,
    files: StreamFiles,
) -> Result<Launched, NotStarted> {
    check_folder(&plan.cwd)?;
    let mut tries_left = TRIES;
    // Kept over all attempts: the first one recovers killed runs, and another may be the one that starts the agent.
    let mut recovered = Vec::new();
    loop {
        tries_left -= 1;
        match started(spool, folder, plan, run_id, &mut recovered) {
            Ok(Started { tree, pipes, guard, publication, begun: Begun { mut sandbox, proxy } }) => {
                if let SandboxReport::Confined(confined) = &mut sandbox {
                    confined.quarantined = recovered;
                }
                return match (Stream::new(pipes.output, files.output), Stream::new(pipes.error, files.error))
                {
                    (Ok(output), Ok(error)) => {
                        Ok(Launched { tree, output, error, sandbox, guard, publication, proxy })
                    }
                    (Err(refusal), _) | (_, Err(refusal)) => {
                        tree.abandon();
                        Err(explain(plan, &refusal))
                    }
                };
            }
            Err(NotBegun { again: true, .. }) if tries_left > 0 => {}
            Err(NotBegun { failure, .. }) => return Err(failure),
        }
    }
}

/// An agent that runs.
struct Started {
    tree: Tree,
    pipes: Pipes,
    guard: Option<Guard>,
    publication: Option<Publication>,
    begun: Begun,
}

/// Starts the agent, or the sandbox with the agent inside.
fn started(
    spool: &LockedSpool,
    folder: &Path,
    plan: &RunPlan,
    run_id: RunId,
    recovered: &mut Vec<Quarantined>,
) -> Result<Started, NotBegun> {
    let mut prepared = match &plan.policy {
        Policy::Off => None,
        Policy::Confined(confinement) => Some(ready(confinement, plan, run_id, folder, recovered)?),
    };
    // Written down before the agent can create anything.
    let guard = match &mut prepared {
        Some(ReadySandbox { prepared, .. }) => {
            let roots = std::mem::take(&mut prepared.held_roots);
            Guard::set(spool, folder, run_id, &prepared.quarantine, roots)
                .map_err(|error| explain(plan, &error))?
        }
        None => None,
    };
    let stdin = spool.stdin().map_err(|error| explain(plan, &error))?;
    let started = Tree::spawn(plan, run_id, stdin.as_fd(), prepared.as_ref().map(|ready| &ready.prepared));
    let (mut tree, pipes) = started.map_err(|error| explain(plan, &error))?;
    let (begun, publication) = match prepared {
        None => (Ok(Begun { sandbox: SandboxReport::Off, proxy: None }), None),
        Some(ReadySandbox { prepared, publication }) => {
            (begin(prepared, &mut tree, &pipes.error, plan), publication)
        }
    };
    match begun {
        Ok(begun) => Ok(Started { tree, pipes, guard, publication, begun }),
        Err(failure) => {
            tree.abandon();
            Err(NotBegun { again: failure.reason == NotStartedReason::NotConfined, failure })
        }
    }
}

/// Why nothing was started, and whether a second look may find it otherwise.
struct NotBegun {
    failure: NotStarted,
    again: bool,
}

impl From<NotStarted> for NotBegun {
    fn from(failure: NotStarted) -> Self {
        Self { failure, again: false }
    }
}
