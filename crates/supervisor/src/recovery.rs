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
use crate::guard::Guard;
use crate::locked_spool::LockedSpool;
use crate::os::{self, Former, Found, ProcessHandle, Survivors};
use crate::spool::Spool;
use crate::spool_files::{ERROR, OUTPUT};

/// How long processes that do not even end on SIGKILL are waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a supervisor that has just been killed may still hold its folder.
const DYING: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How many looks in a row must find nothing. A process that forks and ends between the reading of the table and the reading
/// of its environment hides from one look, and its child from the same one; hardly from three.
const CLEAN_LOOKS: u32 = 3;
/// How many looks a machine on which processes come and go all the time gets for that.
const LOOKS: u32 = 40;

/// Ends every process that a dead supervisor has left of a run, writes the run's last status and returns its report. A run
/// that has ended already is left as it is, unless some of its processes could not be ended then; one whose supervisor lives
/// is refused.
///
/// Blocks for as long as the processes take to die, some ten seconds at most. Any number of programs may call it at once.
pub fn recover(folder: &Path) -> Result<RunReport, RecoverError> {
    recover_run(folder, false, &End::SupervisorLost)
}

/// Ends a run whose status cannot be read, so that its supervisor and processes are only known by the open directory that the
/// supervisor has as its stdin. It is asked first; one that still holds the directory after ten seconds is killed with its tree.
///
/// Blocks for as long as that takes.
pub fn end_unreadable(folder: &Path) -> io::Result<()> {
    let give_up_at = Instant::now() + PATIENCE;
    let supervisors = os::find_whose_stdin_is(folder)?;
    for (supervisor, _) in &supervisors {
        supervisor.terminate()?;
    }
    for (supervisor, identity) in supervisors {
        while os::is_alive(identity)? {
            if Instant::now() > give_up_at {
                kill_with_tree(&supervisor, identity)?;
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    Ok(())
}

/// Kills the supervisor of a folder, which is only known by the open directory that it has as its stdin, with its tree.
pub(crate) fn kill_supervisor(folder: &Path) -> io::Result<()> {
    for (supervisor, identity) in os::find_whose_stdin_is(folder)? {
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
pub(crate) fn recover_run(folder: &Path, seen_to_die: bool, end: &End) -> Result<RunReport, RecoverError> {
    // Whoever holds the folder is its writer, so nobody else is: neither a supervisor nor another recovery.
    let held = become_the_writer(&Spool::at(folder))?;
    let boot_id = os::boot_id().map_err(RecoverError::Sweep)?;
    let status = match held.status()? {
        Some(status) => status,
        None => match held.order()? {
            Some(order) => unannounced(order.run_id, boot_id),
            None => return Err(RecoverError::NoRun { folder: folder.into() }),
        },
    };
    let former = Former { identity: status.supervisor, seen_to_die };
    let former = (status.boot_id == boot_id && former.identity.pid > 0).then_some(former);
    let report = match &status.state {
        RunState::Ended(report) if is_final(&Spool::at(folder), &status.boot_id, report) => {
            return Ok(report.clone());
        }
        RunState::Ended(report) if matches!(report.tree, TreeEnd::LeftAlive { .. }) => {
            let survivors = Survivors::of(status.run_id, former);
            let (tree, _) = sweep(|| survivors.kill()).map_err(RecoverError::Sweep)?;
            RunReport { tree, ..report.clone() }
        }
        _ => {
            let survivors = Survivors::of(status.run_id, former);
            let (tree, ended) = sweep(|| survivors.kill()).map_err(RecoverError::Sweep)?;
            // In this boot its processes may have gone on until now. In an earlier one nothing did after its last word.
            let ran_until = if status.boot_id == boot_id { None } else { held.last_written() };
            let end = end.clone();
            RunReport { end, descendants_ended: ended, ..lost(&held, &status, tree, ran_until) }
        }
    };
    let mut report = report;
    // Only now: a process that was left could have created them again.
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    if let Some(guard) = Guard::left_behind(&held, &folder, status.run_id).map_err(RecoverError::Sweep)? {
        let quarantined = guard.sweep(&held);
        if let Some(SandboxReport::Confined(confined)) = &mut report.sandbox {
            // Beside those of killed runs that it had recovered itself.
            confined.quarantined.retain(|entry| !quarantined.contains(entry));
            confined.quarantined.extend(quarantined);
        }
    }
    write_down(&held, status, &report).map_err(|source| RecoverError::Write { folder, source })?;
    Ok(report)
}

fn write_down(held: &LockedSpool, status: RunStatus, report: &RunReport) -> io::Result<()> {
    held.clear_private()?;
    held.forget_plan()?;
    held.clear_first_status()?;
    held.forget_quarantine()?;
    held.reserve_status(StatusDurability::PowerLoss)?
        .publish(&RunStatus { state: RunState::Ended(report.clone()), ..status })?;
    Ok(())
}

/// Whether nothing about a run can change any more.
///
/// Not so when some of its processes could not be ended; nor when its status says "ended" while the files beside it are
/// shorter than it says: then it was written before the machine lost power, what is missing may have been the answer, and the
/// run counts as lost.
pub(crate) fn is_final(spool: &Spool, boot_id: &str, report: &RunReport) -> bool {
    let same_boot = os::boot_id().is_ok_and(|now| now == boot_id);
    // A file that was removed is no loss of power.
    let is_whole = |path: PathBuf, bytes: u64| fs::metadata(path).map_or(true, |file| file.len() >= bytes);
    let whole = is_whole(spool.output(), report.output_bytes) && is_whole(spool.error(), report.error_bytes);
    (same_boot || whole) && !matches!(report.tree, TreeEnd::LeftAlive { .. })
}

/// The supervisor was killed before its first word; the agent may have been started all the same.
fn unannounced(run_id: RunId, boot_id: &str) -> RunStatus {
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
fn become_the_writer(spool: &Spool) -> Result<LockedSpool, RecoverError> {
    let begun = Instant::now();
    loop {
        let open = |source| RecoverError::Open { folder: spool.folder().into(), source };
        if let Some(held) = LockedSpool::take(spool.folder()).map_err(open)? {
            return Ok(held);
        }
        let alive = match spool.status()? {
            Some(RunStatus { state: RunState::Running { .. }, supervisor, .. }) => {
                os::is_alive(supervisor).map_err(RecoverError::Sweep)?
            }
            _ => false,
        };
        let patience = if alive { DYING } else { PATIENCE + PATIENCE };
        if begun.elapsed() > patience {
            return Err(RecoverError::StillRunning { folder: spool.folder().into() });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Kills what is found until nothing is found any more; says how sure that is, and how many there were.
pub(crate) fn sweep(kill: impl Fn() -> io::Result<Found>) -> io::Result<(TreeEnd, u32)> {
    let give_up_at = Instant::now() + PATIENCE;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut ended = HashSet::new();
    let (mut clean, mut looks) = (0, 0);
    loop {
        let found = kill()?;
        ended.extend(found.killed.iter().copied());
        if !found.killed.is_empty() {
            if Instant::now() > give_up_at {
                return Ok((TreeEnd::LeftAlive { processes: count(found.killed.len()) }, count(ended.len())));
            }
            (clean, looks) = (0, 0);
            std::thread::sleep(LOOK_AGAIN);
            continue;
        }
        looks += 1;
        clean = if found.torn { 0 } else { clean + 1 };
        if clean >= CLEAN_LOOKS || looks >= LOOKS {
            return Ok((TreeEnd::SweptByIdentity, count(ended.len())));
        }
    }
}

fn lost(held: &LockedSpool, status: &RunStatus, tree: TreeEnd, ran_until: Option<u64>) -> RunReport {
    let ended_at_ms = now_ms();
    RunReport {
        end: End::SupervisorLost,
        exit: None,
        ended_at_ms,
        duration_ms: ran_until.unwrap_or(ended_at_ms).saturating_sub(status.started_at_ms),
        output_bytes: held.size(OUTPUT),
        error_bytes: held.size(ERROR),
        usage: TreeUsage::default(),
        descendants_ended: 0,
        tree,
        sandbox: status.sandbox.clone().map(without_supervisor),
    }
}

/// Returns what held of a sandbox whose supervisor was killed: nobody moved new paths until now.
fn without_supervisor(mut sandbox: SandboxReport) -> SandboxReport {
    if let SandboxReport::Confined(confined) = &mut sandbox
        && !confined.policy.protected.is_empty()
    {
        let is_held = |safeguard: &&mut Safeguard| {
            safeguard.name == SafeguardName::ProtectedPaths && safeguard.enforcement == Enforcement::Full
        };
        for safeguard in confined.safeguards.iter_mut().filter(is_held) {
            safeguard.enforcement = Enforcement::Partial;
            safeguard.why.push_str(" only when the run was recovered, since its supervisor was killed");
        }
    }
    sandbox
}

/// Why a run could not be recovered.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// Nothing is lost yet.
    #[error("the run in `{}` has a living supervisor", folder.display())]
    StillRunning {
        /// The spool.
        folder: PathBuf,
    },
    /// No run was ever started there, or all its files were removed.
    #[error("there is no run in `{}`", folder.display())]
    NoRun {
        /// The spool.
        folder: PathBuf,
    },
    /// The spool is gone or not ours.
    #[error("cannot open the spool `{}`", folder.display())]
    Open {
        /// The spool.
        folder: PathBuf,
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
    #[error("cannot write to the spool `{}`", folder.display())]
    Write {
        /// The spool.
        folder: PathBuf,
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
            Self::NoRun { .. } => "check the path; every run has a folder of its own",
            Self::Open { .. } => "check that the folder is there and belongs to you",
            Self::Spool(error) => error.hint(),
            Self::Sweep(_) => "check that /proc is mounted and that files can still be opened",
            Self::Write { .. } => "check the free space and the rights of the folder",
        }
    }
}
