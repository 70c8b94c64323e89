//! Starts an agent in its sandbox: prepares the sandbox and waits until the agent runs in it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use model::{Confinement, NotStarted, Quarantined, RunId, RunPlan, SandboxReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sandbox::{LauncherEvent, NestedRepositories, PreparedSandbox, Proxy, SandboxedCommand, Tier};

use crate::active_runs::{ActiveRuns, Publication};
use crate::not_started::{not_confined, sandbox_rejection, step_failure};
use crate::os::{self, ProcessTree};
use crate::spool_files::TEMPORARY;

/// The maximum time to set up a sandbox, for slow machines.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The lease on the caches of this process's run.
static CACHES: OnceLock<File> = OnceLock::new();

/// A sandbox with a running agent.
#[derive(Debug)]
pub struct StartedSandbox {
    pub sandbox: SandboxReport,
    /// The proxy to the allowed hosts.
    pub proxy: Option<Proxy>,
}

/// A sandbox that is ready to be entered.
#[derive(Debug)]
pub struct ReadySandbox {
    pub prepared: PreparedSandbox,
    /// The published list of paths that other runs must not treat as the user's; `None` if it cannot be stored.
    pub publication: Option<Publication>,
}

/// Prepares a sandbox that has passed its self-test. Appends to `recovered` the paths that were quarantined for killed
/// runs.
pub fn prepare_sandbox(
    confinement: &Confinement,
    plan: &RunPlan,
    run_id: RunId,
    spool: &Path,
    recovered: &mut Vec<Quarantined>,
) -> Result<ReadySandbox, NotStarted> {
    let executable = File::open(os::THIS_PROGRAM).map_err(|error| not_confined(&error.to_string()))?;
    let scratch = confinement.proofs.as_deref().unwrap_or(spool);
    let search_path = plan.env.get("PATH").map_or("", String::as_str);
    let settled = sandbox::select_and_verify(confinement, scratch, executable.as_fd(), search_path)
        .map_err(|refusal| sandbox_rejection(&refusal))?;
    if let Some(caches) = &confinement.caches {
        let lease = sandbox::lease_caches(caches).map_err(|error| not_confined(&error.to_string()))?;
        // One process executes one run, so the lease ends with the process, however it exits.
        lease.map(|lease| CACHES.set(lease));
    }
    let mut env = plan.env.clone();
    env.insert(RunId::VARIABLE.to_owned(), run_id.to_string());
    let (program, args, cwd) = (&plan.program, &plan.args, &plan.cwd);
    let temporary = Some(spool.join(TEMPORARY));
    let temporary = temporary.as_deref();
    let repositories = &NestedRepositories::find(confinement);
    let cannot_list = |error: io::Error| not_confined(&format!("cannot list the run: {error}"));
    let active = confinement.proofs.as_ref().map(|proofs| ActiveRuns::lock(proofs, run_id));
    let mut active = match active.transpose() {
        // Best effort: the report states that the list could not be published.
        Err(error) if is_not_writable(&error) => None,
        active => active.map_err(cannot_list)?,
    };
    if let Some(active) = &mut active {
        recovered.append(&mut active.recovered);
    }
    let others = active.as_ref().map(|active| &active.others[..]);
    let executable = executable.as_fd();
    let command = SandboxedCommand {
        confinement,
        program,
        args,
        env,
        cwd,
        repositories,
        others,
        temporary,
        executable,
    };
    let prepared = sandbox::prepare(&command, settled).map_err(|refusal| sandbox_rejection(&refusal))?;
    let publication = active.map(|active| active.publish(spool, &prepared.quarantine));
    Ok(ReadySandbox { prepared, publication: publication.transpose().map_err(cannot_list)? })
}

fn is_not_writable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Releases the lease on the caches once no process of the run is left, so that a sweep need not wait for this process.
pub fn release_caches() {
    if let Some(lease) = CACHES.get() {
        let _ = rustix::fs::flock(lease, rustix::fs::FlockOperation::Unlock);
    }
}

/// Reads the status messages from inside the sandbox until the agent runs.
pub fn wait_until_started(
    mut prepared: PreparedSandbox,
    tree: &mut ProcessTree,
    error: &OwnedFd,
    plan: &RunPlan,
) -> Result<StartedSandbox, NotStarted> {
    // Copies of the sandbox's descriptors in this process would prevent an end of file.
    drop(std::mem::take(&mut prepared.inherited));
    tree.set_cgroup(prepared.cgroup.take());
    let cannot_read = |error: io::Error| not_confined(&error.to_string());
    let mut received = Vec::new();
    let give_up_at = Instant::now() + SETUP_TIMEOUT;
    let (applied, closed) = loop {
        let messages = LauncherEvent::parse(&received);
        let failure = messages.iter().find_map(|message| match message {
            LauncherEvent::Failed { step, errno, message } => {
                Some(step_failure(*step, *errno, message, plan))
            }
            _ => None,
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let applied = messages.iter().find_map(|message| match message {
            LauncherEvent::RulesApplied(applied) => Some(*applied),
            _ => None,
        });
        if messages.contains(&LauncherEvent::AgentStarted) {
            break (applied, false);
        }
        if read_more(&prepared.events, &mut received, give_up_at).map_err(cannot_read)? == 0 {
            break (applied, true);
        }
    };
    // Without namespaces, the process inside becomes the agent by exec, which closes the pipe.
    let runs = applied.filter(|_| closed == (prepared.tier == Tier::Rules));
    let Some(applied) = runs else { return Err(not_confined(&read_stderr(error))) };
    let sandbox = SandboxReport::Confined(Box::new(prepared.report(applied)));
    let proxy = prepared.start_proxy().map_err(cannot_read)?;
    if prepared.tier == Tier::Namespaces {
        tree.enter_sandbox(prepared.events, received).map_err(cannot_read)?;
    }
    Ok(StartedSandbox { sandbox, proxy })
}

/// Waits for more messages. Returns 0 at the end of the pipe.
fn read_more(pipe: &OwnedFd, received: &mut Vec<u8>, give_up_at: Instant) -> io::Result<usize> {
    let left = give_up_at.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    let mut files = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
    match poll(&mut files, Some(&left)) {
        Ok(0) => return Err(io::Error::other("the sandbox was not set up in time")),
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut buffer = [0; 4096];
    match rustix::io::read(pipe, &mut buffer) {
        Ok(count) => {
            received.extend_from_slice(&buffer[..count]);
            Ok(count)
        }
        Err(Errno::INTR | Errno::AGAIN) => Ok(1),
        Err(error) => Err(error.into()),
    }
}

/// Returns the error message of bubblewrap.
fn read_stderr(error: &OwnedFd) -> String {
    let mut text = [0; 2000];
    let count = error.try_clone().map(File::from).and_then(|mut file| file.read(&mut text));
    let text = String::from_utf8_lossy(&text[..count.unwrap_or_default()]).trim().to_owned();
    if text.is_empty() { "the sandbox exited before the agent started".to_owned() } else { text }
}
