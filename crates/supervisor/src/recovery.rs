//! Recovers runs whose supervisor was killed: kills the survivors and writes the final status.

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

/// The maximum wait for processes to die after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The time a killed supervisor may take until the kernel releases its lock.
const EXIT_GRACE: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The number of consecutive passes that must find no process. A process that forks and exits between the reading of the
/// table and of its environment hides from one pass, and so does its child; hardly from three.
const CLEAN_PASSES: u32 = 3;
/// The maximum number of passes on a machine where processes come and go all the time.
const MAX_PASSES: u32 = 40;

/// Kills all surviving processes of a run whose supervisor is dead, writes the final status and returns the report. An
/// ended run is not touched, unless some of its processes could not be killed. A run with a living supervisor is an
/// error.
///
/// Blocks until the processes are dead, ten seconds at most. Safe to call concurrently from any number of programs.
pub fn recover(directory: &Path) -> Result<RunReport, RunRecoveryError> {
    recover_run(directory, false, &End::SupervisorLost)
}

/// Stops a run with an unreadable status. Its supervisor is identified only by its stdin, which is the open directory.
/// Sends SIGTERM first, and kills a supervisor that is alive after ten seconds with its tree.
///
/// Blocks until the supervisor has exited.
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

/// Kills the supervisor of a directory, identified only by its stdin, with its process tree.
pub(crate) fn kill_supervisor(directory: &Path) -> io::Result<()> {
    for (supervisor, identity) in os::find_supervisors(directory)? {
        kill_with_tree(&supervisor, identity)?;
    }
    Ok(())
}

/// Kills a supervisor and its process tree. The tree first: while its subreaper exists, no process can leave the tree.
/// The recovery finds and reports processes that survive.
pub(crate) fn kill_with_tree(supervisor: &ProcessHandle, identity: ProcessIdentity) -> io::Result<()> {
    supervisor.suspend()?;
    sweep(|| os::kill_below(identity))?;
    supervisor.kill()?;
    Ok(())
}

/// Recovers a run for a program that may have observed the exit of its supervisor, or has killed it for the given
/// reason.
pub(crate) fn recover_run(
    directory: &Path,
    observed_exit: bool,
    end: &End,
) -> Result<RunReport, RunRecoveryError> {
    // The lock excludes supervisors and other recoveries.
    let locked = lock_spool(&Spool::at(directory))?;
    let boot_id = os::boot_id().map_err(RunRecoveryError::Sweep)?;
    let status = match locked.status()? {
        Some(status) => status,
        None => match locked.manifest()? {
            Some(manifest) => placeholder_status(manifest.run_id, boot_id),
            None => return Err(RunRecoveryError::NoRun { directory: directory.into() }),
        },
    };
    let dead = DeadSupervisor { identity: status.supervisor, observed_exit };
    let dead = (status.boot_id == boot_id && dead.identity.pid > 0).then_some(dead);
    let mut report = match &status.state {
        RunState::Ended(report) if is_final(&Spool::at(directory), &status.boot_id, report) => {
            // Its paths were moved before the status was written. A recovery that was killed has left the list.
            locked.remove_quarantine_list().map_err(RunRecoveryError::Sweep)?;
            return Ok(report.clone());
        }
        RunState::Ended(report) if matches!(report.tree, TreeEnd::LeftAlive { .. }) => {
            let survivors = Survivors::new(status.run_id, dead);
            let (tree, _) = sweep(|| survivors.kill()).map_err(RunRecoveryError::Sweep)?;
            RunReport { tree, ..report.clone() }
        }
        _ => {
            let survivors = Survivors::new(status.run_id, dead);
            let (tree, ended) = sweep(|| survivors.kill()).map_err(RunRecoveryError::Sweep)?;
            // In this boot its processes may have run until now; in an earlier one, no longer than their last output.
            let ran_until = if status.boot_id == boot_id { None } else { locked.last_output_ms() };
            let end = end.clone();
            RunReport { end, descendants_ended: ended, ..lost_report(&locked, &status, tree, ran_until) }
        }
    };
    // Only after the kill: a surviving process could create the paths again.
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    if let Some(guard) =
        PathGuard::from_spool(&locked, &directory, status.run_id).map_err(RunRecoveryError::Sweep)?
    {
        let quarantined = guard.sweep(&locked);
        if let Some(SandboxReport::Confined(confined)) = &mut report.sandbox {
            // In addition to those of killed runs that this run had recovered itself.
            confined.quarantined.retain(|entry| !quarantined.contains(entry));
            confined.quarantined.extend(quarantined);
        }
    }
    write_final_status(&locked, status, &report)
        .map_err(|source| RunRecoveryError::Write { directory, source })?;
    Ok(report)
}

fn write_final_status(locked: &LockedSpool, status: RunStatus, report: &RunReport) -> io::Result<()> {
    locked.remove_private_files()?;
    locked.remove_plan()?;
    locked.remove_first_status()?;
    let slot = locked.new_status_slot(StatusDurability::PowerLoss)?;
    let json = slot.publish(&RunStatus { state: RunState::Ended(report.clone()), ..status })?;
    slot.free_reservation(json.len())?;
    // Only now: if this process were killed in between, the next recovery would not report the moved paths.
    if matches!(report.tree, TreeEnd::LeftAlive { .. }) { Ok(()) } else { locked.remove_quarantine_list() }
}

/// Returns whether nothing about a run can change any more.
///
/// False if some of its processes could not be killed. Also false if the files are shorter than an ended status claims:
/// the machine lost power after the status was written, the missing bytes may contain the answer, and the run counts as
/// lost.
pub(crate) fn is_final(spool: &Spool, boot_id: &str, report: &RunReport) -> bool {
    let same_boot = os::boot_id().is_ok_and(|now| now == boot_id);
    // A file that was removed is not a power loss.
    let is_whole = |path: PathBuf, bytes: u64| fs::metadata(path).map_or(true, |file| file.len() >= bytes);
    let whole = is_whole(spool.output(), report.output_bytes) && is_whole(spool.error(), report.error_bytes);
    (same_boot || whole) && !matches!(report.tree, TreeEnd::LeftAlive { .. })
}

/// Returns a status for a run whose supervisor was killed before its first status. The agent may have been started.
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

/// Waits for the lock on the spool. A living supervisor is an error; a dying one and another recovery release the lock
/// soon.
fn lock_spool(spool: &Spool) -> Result<LockedSpool, RunRecoveryError> {
    let started = Instant::now();
    loop {
        let open = |source| RunRecoveryError::Open { directory: spool.directory().into(), source };
        if let Some(locked) = LockedSpool::try_lock(spool.directory()).map_err(open)? {
            return Ok(locked);
        }
        let alive = match spool.status()? {
            Some(RunStatus { state: RunState::Running { .. }, supervisor, .. }) => {
                os::is_alive(supervisor).map_err(RunRecoveryError::Sweep)?
            }
            _ => false,
        };
        let patience = if alive { EXIT_GRACE } else { KILL_TIMEOUT + KILL_TIMEOUT };
        if started.elapsed() > patience {
            return Err(RunRecoveryError::StillRunning { directory: spool.directory().into() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Kills processes until a pass finds none. Returns how certain that is, and the number of killed processes.
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
        was_suspended: false,
        tree,
        sandbox: status.sandbox.clone().map(downgrade_protected_paths),
    }
}

/// Lowers the safeguard of protected paths in the report: no supervisor moved new paths until now.
fn downgrade_protected_paths(mut sandbox: SandboxReport) -> SandboxReport {
    if let SandboxReport::Confined(confined) = &mut sandbox
        && !confined.policy.protected.is_empty()
    {
        let is_enforced = |safeguard: &&mut Safeguard| {
            safeguard.name == SafeguardName::ProtectedPaths && safeguard.enforcement == Enforcement::Full
        };
        for safeguard in confined.safeguards.iter_mut().filter(is_enforced) {
            safeguard.enforcement = Enforcement::Partial;
            safeguard.why.push_str(" only when the run was recovered, since its supervisor was killed");
        }
    }
    sandbox
}

/// An error of the recovery of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunRecoveryError {
    /// The supervisor is alive.
    #[error("the supervisor of the run in `{}` is still running", directory.display())]
    StillRunning {
        /// The spool.
        directory: PathBuf,
    },
    /// There is no run in the directory, or all its files were removed.
    #[error("there is no run in `{}`", directory.display())]
    NoRun {
        /// The spool.
        directory: PathBuf,
    },
    /// The directory is missing or belongs to another user.
    #[error("cannot open the spool `{}`", directory.display())]
    Open {
        /// The spool.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The surviving processes cannot be listed.
    #[error("cannot list the processes of the run")]
    Sweep(#[source] io::Error),
    /// The survivors are dead, but the status could not be written.
    #[error("cannot write to the spool `{}`", directory.display())]
    Write {
        /// The spool.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl RunRecoveryError {
    /// Returns whether a retry may succeed: the run is alive, or the machine ran out of a resource.
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

    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::StillRunning { .. } => "wait for the run, or stop it",
            Self::NoRun { .. } => "check the path of the run",
            Self::Open { .. } => "check that the directory exists and belongs to you",
            Self::Spool(error) => error.hint(),
            Self::Sweep(_) => "check that /proc is mounted and that files can still be opened",
            Self::Write { .. } => "check the free space and the permissions of the directory",
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox::Quarantine;

    use super::*;
    use crate::spool_files::{QUARANTINE, STATUS_NEXT};

    fn lost_run(directory: &Path) -> (LockedSpool, RunStatus, RunReport) {
        let locked = LockedSpool::try_lock(directory).unwrap().unwrap();
        locked.write_quarantine(&Quarantine::default()).unwrap();
        let run_id = "6d1a4e11-92ce-45e3-b38e-099146f2ae85".parse().unwrap();
        let status = placeholder_status(run_id, os::boot_id().unwrap());
        let report = lost_report(&locked, &status, TreeEnd::SweptByIdentity, None);
        (locked, status, report)
    }

    #[test]
    fn quarantine_list_outlives_an_unwritten_status() {
        let directory = tempfile::tempdir().unwrap();
        let (locked, status, report) = lost_run(directory.path());
        let list = directory.path().join(QUARANTINE);
        fs::create_dir(directory.path().join(STATUS_NEXT)).unwrap();
        assert!(write_final_status(&locked, status.clone(), &report).is_err() && list.exists());
        fs::remove_dir(directory.path().join(STATUS_NEXT)).unwrap();
        write_final_status(&locked, status, &report).unwrap();
        assert!(!list.exists());
    }

    #[test]
    fn quarantine_list_of_an_ended_run_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (locked, status, report) = lost_run(directory.path());
        write_final_status(&locked, status, &report).unwrap();
        locked.write_quarantine(&Quarantine::default()).unwrap();
        drop(locked);
        assert_eq!(recover(directory.path()).unwrap(), report);
        assert!(!directory.path().join(QUARANTINE).exists());
    }
}
