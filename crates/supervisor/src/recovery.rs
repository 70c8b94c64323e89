//! Ending what a killed supervisor has left, and writing down that it was so.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{
    End, Enforcement, ProcessIdentity, RunId, RunReport, RunState, RunStatus, STATUS_VERSION, Safeguard,
    SafeguardName, SandboxReport, StatusDurability, TreeEnd, TreeUsage,
};

use crate::clock::now_ms;
use crate::error::{SpoolError, is_resource_exhaustion};
use crate::locked_spool::LockedSpool;
use crate::os::{self, DeadSupervisor, KillPass, ProcessHandle, Survivors};
use crate::path_guard::PathGuard;
use crate::spool::Spool;
use crate::spool_files::{ERROR, OUTPUT};

/// How long processes that do not even end on SIGKILL are waited for.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a supervisor that has just been killed may still hold its directory.
const EXIT_GRACE: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How many passes in a row must find nothing. A process that forks and ends between the reading of the table and the reading
/// of its environment hides from one look, and its child from the same one; hardly from three.
const CLEAN_PASSES: u32 = 3;
/// How many passes a machine on which processes come and go all the time gets for that.
const MAX_PASSES: u32 = 40;

/// Ends every process that a dead supervisor has left of a run, writes the run's last status and returns its report. A run
/// that has ended already is left as it is, unless some of its processes could not be ended then; one whose supervisor lives
/// is refused.
///
/// Blocks for as long as the processes take to die, some ten seconds at most. Any number of programs may call it at once.
pub fn recover(directory: &Path) -> Result<RunReport, RecoverError> {
    recover_run(directory, false, &End::SupervisorLost)
}

/// Ends a run whose status cannot be read, so that its supervisor and processes are only known by the open directory that the
/// supervisor has as its stdin. It is asked first; one that still holds the directory after ten seconds is killed with its tree.
///
/// Blocks for as long as that takes.
pub fn stop_unreadable_run(directory: &Path) -> io::Result<()> {
    let give_up_at = Instant::now() + KILL_TIMEOUT;
    let supervisors = os::find_supervisors(directory)?;
    for (supervisor, _) in &supervisors {
        supervisor.terminate()?;
    }
    for (supervisor, identity) in supervisors {
        while os::is_alive(identity)? {
            if Instant::now() > give_up_at {
                kill_with_tree(&supervisor, identity)?;
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    Ok(())
}

/// Kills the supervisor of a directory, which is only known by the open directory that it has as its stdin, with its tree.
pub(crate) fn kill_supervisor(directory: &Path) -> io::Result<()> {
    for (supervisor, identity) in os::find_supervisors(directory)? {
        kill_with_tree(&supervisor, identity)?;
    }
    Ok(())
}

/// Kills a supervisor and its process tree. The tree first: while its subreaper is there, no process can leave the tree.
/// Processes that are left are found again and reported by the recovery.
pub(crate) fn kill_with_tree(supervisor: &ProcessHandle, identity: ProcessIdentity) -> io::Result<()> {
    supervisor.suspend()?;
    sweep(|| os::kill_below(identity))?;
    supervisor.kill()?;
    Ok(())
}

/// Recovers a run for a program that may have seen its supervisor die, or has killed it for the given reason.
pub(crate) fn recover_run(
    directory: &Path,
    observed_exit: bool,
    end: &End,
) -> Result<RunReport, RecoverError> {
    // Whoever holds the directory is its writer, so nobody else is: neither a supervisor nor another recovery.
    let locked = lock_spool(&Spool::at(directory))?;
    let boot_id = os::boot_id().map_err(RecoverError::Sweep)?;
    let status = match locked.status()? {
        Some(status) => status,
        None => match locked.manifest()? {
            Some(manifest) => placeholder_status(manifest.run_id, boot_id),
            None => return Err(RecoverError::NoRun { directory: directory.into() }),
        },
    };
    let dead = DeadSupervisor { identity: status.supervisor, observed_exit };
    let dead = (status.boot_id == boot_id && dead.identity.pid > 0).then_some(dead);
    let report = match &status.state {
        RunState::Ended(report) if is_final(&Spool::at(directory), &status.boot_id, report) => {
            return Ok(report.clone());
        }
        RunState::Ended(report) if matches!(report.tree, TreeEnd::LeftAlive { .. }) => {
            let survivors = Survivors::new(status.run_id, dead);
            let (tree, _) = sweep(|| survivors.kill()).map_err(RecoverError::Sweep)?;
            RunReport { tree, ..report.clone() }
        }
        _ => {
            let survivors = Survivors::new(status.run_id, dead);
            let (tree, ended) = sweep(|| survivors.kill()).map_err(RecoverError::Sweep)?;
            // In this boot its processes may have gone on until now. In an earlier one nothing did after its last word.
            let ran_until = if status.boot_id == boot_id { None } else { locked.last_output_ms() };
            let end = end.clone();
            RunReport { end, descendants_ended: ended, ..lost_report(&locked, &status, tree, ran_until) }
        }
    };
    let mut report = report;
    // Only now: a process that was left could have created them again.
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    if let Some(guard) =
        PathGuard::from_spool(&locked, &directory, status.run_id).map_err(RecoverError::Sweep)?
    {
        let quarantined = guard.sweep(&locked);
        if let Some(SandboxReport::Confined(confined)) = &mut report.sandbox {
            // Beside those of killed runs that it had recovered itself.
            confined.quarantined.retain(|entry| !quarantined.contains(entry));
            confined.quarantined.extend(quarantined);
        }
    }
    write_final_status(&locked, status, &report)
        .map_err(|source| RecoverError::Write { directory, source })?;
    Ok(report)
}

fn write_final_status(locked: &LockedSpool, status: RunStatus, report: &RunReport) -> io::Result<()> {
    locked.remove_private_files()?;
    locked.remove_plan()?;
    locked.remove_first_status()?;
    locked.remove_quarantine_list()?;
    locked
        .new_status_slot(StatusDurability::PowerLoss)?
        .publish(&RunStatus { state: RunState::Ended(report.clone()), ..status })?;
    Ok(())
}

/// Whether nothing about a run can change any more.
///
/// Not so when some of its processes could not be ended; nor when its status says "ended" while the files beside it are
/// shorter than it says: then it was written before the machine lost_report power, what is missing may have been the answer, and the
/// run counts as lost_report.
pub(crate) fn is_final(spool: &Spool, boot_id: &str, report: &RunReport) -> bool {
    let same_boot = os::boot_id().is_ok_and(|now| now == boot_id);
    // A file that was removed is no loss of power.
    let is_whole = |path: PathBuf, bytes: u64| fs::metadata(path).map_or(true, |file| file.len() >= bytes);
    let whole = is_whole(spool.output(), report.output_bytes) && is_whole(spool.error(), report.error_bytes);
    (same_boot || whole) && !matches!(report.tree, TreeEnd::LeftAlive { .. })
}

/// The supervisor was killed before its first word; the agent may have been started all the same.
fn placeholder_status(run_id: RunId, boot_id: &str) -> RunStatus {
    let nobody = ProcessIdentity { pid: 0, start_ticks: u64::MAX };
    RunStatus {
        version: STATUS_VERSION,
        run_id,
        boot_id: boot_id.to_owned(),
        supervisor: nobody,
        started_at_ms: now_ms(),
        sandbox: None,
        limits: None,
        state: RunState::Running { agent: nobody },
    }
}

/// Waits until nobody else writes to the spool: a living supervisor is an error, one that is dying and another recovery are
/// soon done.
fn lock_spool(spool: &Spool) -> Result<LockedSpool, RecoverError> {
    let started = Instant::now();
    loop {
        let open = |source| RecoverError::Open { directory: spool.directory().into(), source };
        if let Some(locked) = LockedSpool::try_lock(spool.directory()).map_err(open)? {
            return Ok(locked);
        }
        let alive = match spool.status()? {
            Some(RunStatus { state: RunState::Running { .. }, supervisor, .. }) => {
                os::is_alive(supervisor).map_err(RecoverError::Sweep)?
            }
            _ => false,
        };
        let patience = if alive { EXIT_GRACE } else { KILL_TIMEOUT + KILL_TIMEOUT };
        if started.elapsed() > patience {
            return Err(RecoverError::StillRunning { directory: spool.directory().into() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Kills what is found until nothing is found any more; says how sure that is, and how many there were.
pub(crate) fn sweep(kill: impl Fn() -> io::Result<KillPass>) -> io::Result<(TreeEnd, u32)> {
    let give_up_at = Instant::now() + KILL_TIMEOUT;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut ended = HashSet::new();
    let (mut clean, mut passes) = (0, 0);
    loop {
        let found = kill()?;
        ended.extend(found.killed.iter().copied());
        if !found.killed.is_empty() {
            if Instant::now() > give_up_at {
                return Ok((TreeEnd::LeftAlive { processes: count(found.killed.len()) }, count(ended.len())));
            }
            (clean, passes) = (0, 0);
            std::thread::sleep(POLL_INTERVAL);
            continue;
        }
        passes += 1;
        clean = if found.raced { 0 } else { clean + 1 };
        if clean >= CLEAN_PASSES || passes >= MAX_PASSES {
            return Ok((TreeEnd::SweptByIdentity, count(ended.len())));
        }
    }
}

fn lost_report(locked: &LockedSpool, status: &RunStatus, tree: TreeEnd, ran_until: Option<u64>) -> RunReport {
    let ended_at_ms = now_ms();
    RunReport {
        end: End::SupervisorLost,
        exit: None,
        ended_at_ms,
        duration_ms: ran_until.unwrap_or(ended_at_ms).saturating_sub(status.started_at_ms),
        output_bytes: locked.size(OUTPUT),
        error_bytes: locked.size(ERROR),
        usage: TreeUsage::default(),
        descendants_ended: 0,
        tree,
        sandbox: status.sandbox.clone().map(without_supervisor),
    }
}

/// Returns what locked of a sandbox whose supervisor was killed: nobody moved new paths until now.
fn without_supervisor(mut sandbox: SandboxReport) -> SandboxReport {
    if let SandboxReport::Confined(confined) = &mut sandbox
        && !confined.policy.protected.is_empty()
    {
        let is_locked = |safeguard: &&mut Safeguard| {
            safeguard.name == SafeguardName::ProtectedPaths && safeguard.enforcement == Enforcement::Full
        };
        for safeguard in confined.safeguards.iter_mut().filter(is_locked) {
            safeguard.enforcement = Enforcement::Partial;
            safeguard.why.push_str(" only when the run was recovered, since its supervisor was killed");
        }
    }
    sandbox
}

/// Why a run could not be recovered.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// Nothing is lost_report yet.
    #[error("the run in `{}` has a living supervisor", directory.display())]
    StillRunning {
        /// The spool.
        directory: PathBuf,
    },
    /// No run was ever started there, or all its files were removed.
    #[error("there is no run in `{}`", directory.display())]
    NoRun {
        /// The spool.
        directory: PathBuf,
    },
    /// The spool is gone or not ours.
    #[error("cannot open the spool `{}`", directory.display())]
    Open {
        /// The spool.
        directory: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The survivors cannot be looked for.
    #[error("cannot look for the processes of the run")]
    Sweep(#[source] io::Error),
    /// The survivors are ended, but it could not be written down.
    #[error("cannot write to the spool `{}`", directory.display())]
    Write {
        /// The spool.
        directory: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl RecoverError {
    /// Whether it may pass: the run lives, or the machine lacks something for now.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::StillRunning { .. } => true,
            Self::NoRun { .. } => false,
            Self::Spool(error) => error.is_transient(),
            Self::Open { source, .. } | Self::Sweep(source) | Self::Write { source, .. } => {
                is_resource_exhaustion(source)
            }
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::StillRunning { .. } => "wait for the run, or stop it",
            Self::NoRun { .. } => "check the path; every run has a directory of its own",
            Self::Open { .. } => "check that the directory is there and belongs to you",
            Self::Spool(error) => error.hint(),
            Self::Sweep(_) => "check that /proc is mounted and that files can still be opened",
            Self::Write { .. } => "check the free space and the rights of the directory",
        }
    }
}
