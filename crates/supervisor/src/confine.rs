//! The way of an agent into its sandbox, as the supervisor sees it: ready, started, or why not.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use model::{Confinement, NotStarted, NotStartedReason, Quarantined, RunId, RunPlan, SandboxReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sandbox::{
    LaunchStep, LauncherEvent, NestedRepositories, PreparedSandbox, Proxy, SandboxRejection,
    SandboxedCommand, Tier,
};

use crate::active_runs::{ActiveRuns, Publication};
use crate::held::TEMPORARY;
use crate::launch::explain;
use crate::os::{self, Tree};

/// How long a sandbox may take to be made on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The lease on the caches of this process's run.
static CACHES: OnceLock<File> = OnceLock::new();

/// An agent that runs in its sandbox.
#[derive(Debug)]
pub struct Begun {
    pub sandbox: SandboxReport,
    /// The way to named hosts.
    pub proxy: Option<Proxy>,
}

/// A sandbox that is ready for an agent.
#[derive(Debug)]
pub struct ReadySandbox {
    pub prepared: PreparedSandbox,
    /// The list of paths that other runs must not take for the user's; none where there is no place for it.
    pub publication: Option<Publication>,
}

/// Makes a sandbox ready that has been proven to hold. Adds to `recovered` the paths that were moved for killed runs that nobody else has recovered.
pub fn ready(
    confinement: &Confinement,
    plan: &RunPlan,
    run_id: RunId,
    spool: &Path,
    recovered: &mut Vec<Quarantined>,
) -> Result<ReadySandbox, NotStarted> {
    let executable = File::open(os::THIS_PROGRAM).map_err(|error| not_confined(&error.to_string()))?;
    let scratch = confinement.proofs.as_deref().unwrap_or(spool);
    let search_path = plan.env.get("PATH").map_or("", String::as_str);
    let verified = sandbox::select_and_verify(confinement, scratch, executable.as_fd(), search_path)
        .map_err(|rejection| rejected(&rejection))?;
    if let Some(caches) = &confinement.caches {
        let lease = sandbox::lease_caches(caches).map_err(|error| not_confined(&error.to_string()))?;
        // This process carries out one run, and a lease ends with it, however it ends.
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
        // Like a proof, the list of a run is kept where that is possible; the report says so where it is not.
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
    let prepared = sandbox::prepare(&command, verified).map_err(|rejection| rejected(&rejection))?;
    let publication = active.map(|active| active.publish(spool, &prepared.quarantine));
    Ok(ReadySandbox { prepared, publication: publication.transpose().map_err(cannot_list)? })
}

fn is_not_writable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Releases the caches when no process of the run is left, so that a sweep does not have to wait for this process to exit.
pub fn release_caches() {
    if let Some(lease) = CACHES.get() {
        let _ = rustix::fs::flock(lease, rustix::fs::FlockOperation::Unlock);
    }
}

/// Hears out the one inside until the agent runs.
pub fn begin(
    mut prepared: PreparedSandbox,
    tree: &mut Tree,
    error: &OwnedFd,
    plan: &RunPlan,
) -> Result<Begun, NotStarted> {
    // The copies of its own files that this process had would keep it from hearing an end.
    drop(std::mem::take(&mut prepared.inherited));
    tree.stands_in_a_cgroup(prepared.cgroup.take());
    let cannot_hear = |error: io::Error| not_confined(&error.to_string());
    let mut heard = Vec::new();
    let give_up_at = Instant::now() + PATIENCE;
    let (applied, closed) = loop {
        let words = LauncherEvent::parse(&heard);
        let failure = words.iter().find_map(|word| match word {
            LauncherEvent::Failed { step, errno, message } => Some(failed(*step, *errno, message, plan)),
            _ => None,
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let applied = words.iter().find_map(|word| match word {
            LauncherEvent::RulesApplied(applied) => Some(*applied),
            _ => None,
        });
        if words.contains(&LauncherEvent::AgentStarted) {
            break (applied, false);
        }
        if hear(&prepared.events, &mut heard, give_up_at).map_err(cannot_hear)? == 0 {
            break (applied, true);
        }
    };
    // Without namespaces, the one inside has become the agent when it can speak no more.
    let runs = applied.filter(|_| closed == (prepared.tier == Tier::Rules));
    let Some(applied) = runs else { return Err(not_confined(&complaint(error))) };
    let sandbox = SandboxReport::Confined(Box::new(prepared.report(applied)));
    let proxy = prepared.start_proxy().map_err(cannot_hear)?;
    if prepared.tier == Tier::Namespaces {
        tree.stands_in_a_scaffold(prepared.events, heard).map_err(cannot_hear)?;
    }
    Ok(Begun { sandbox, proxy })
}

/// Waits for more. Nothing: nobody can say anything any more.
fn hear(words: &OwnedFd, heard: &mut Vec<u8>, give_up_at: Instant) -> io::Result<usize> {
    let left = give_up_at.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    let mut files = [PollFd::from_borrowed_fd(words.as_fd(), PollFlags::IN)];
    match poll(&mut files, Some(&left)) {
        Ok(0) => return Err(io::Error::other("the sandbox was not made in time")),
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut piece = [0; 4096];
    match rustix::io::read(words, &mut piece) {
        Ok(count) => {
            heard.extend_from_slice(&piece[..count]);
            Ok(count)
        }
        Err(Errno::INTR | Errno::AGAIN) => Ok(1),
        Err(error) => Err(error.into()),
    }
}

/// What bubblewrap said instead of starting anything.
fn complaint(error: &OwnedFd) -> String {
    let mut said = [0; 2000];
    let count = error.try_clone().map(File::from).and_then(|mut file| file.read(&mut said));
    let said = String::from_utf8_lossy(&said[..count.unwrap_or_default()]).trim().to_owned();
    if said.is_empty() { "the sandbox ended before the agent began".to_owned() } else { said }
}

fn failed(step: LaunchStep, errno: Option<i32>, message: &str, plan: &RunPlan) -> NotStarted {
    let error = errno.map_or_else(|| io::Error::other(message.to_owned()), io::Error::from_raw_os_error);
    match step {
        LaunchStep::Mounts | LaunchStep::Rules => not_confined(message),
        LaunchStep::Program => explain(plan, &error),
        LaunchStep::WorkingDirectory => {
            let reason = match error.kind() {
                io::ErrorKind::NotFound => NotStartedReason::CwdMissing,
                io::ErrorKind::NotADirectory => NotStartedReason::CwdNotADirectory,
                io::ErrorKind::PermissionDenied => NotStartedReason::CwdForbidden,
                _ => NotStartedReason::Other,
            };
            let cwd = plan.cwd.display();
            NotStarted { reason, message: format!("cannot work in `{cwd}` inside the sandbox: {error}") }
        }
    }
}

fn rejected(rejection: &SandboxRejection) -> NotStarted {
    let mut text = rejection.to_string();
    if let Some(cause) = std::error::Error::source(rejection) {
        text = format!("{text}: {cause}");
    }
    not_confined(&format!("{text}; {}", rejection.hint()))
}

fn not_confined(why: &str) -> NotStarted {
    NotStarted { reason: NotStartedReason::NotConfined, message: format!("cannot confine the agent: {why}") }
}
