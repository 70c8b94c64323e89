//! Ending what a killed supervisor has left, and writing down that it was so.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{
    End, ProcessIdentity, RunId, RunReport, RunState, RunStatus, STATUS_VERSION, TreeEnd, TreeUsage,
};

use crate::os::{self, Survivors};
use crate::program::now_ms;
use crate::spool::{Spool, SpoolError, SpoolLock};

/// How long processes that do not even end on SIGKILL are waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Ends every process that a dead supervisor has left of a run, writes the run's last status and returns its report. A run
/// that has ended already is left as it is; one whose supervisor lives is refused.
///
/// Blocks for as long as the processes take to die, ten seconds at most. Any number of programs may call it at once.
pub fn recover(folder: &Path) -> Result<RunReport, RecoverError> {
    let spool = Spool::at(folder);
    let _lock = become_the_writer(&spool)?;
    let boot_id = os::boot_id().map_err(RecoverError::Sweep)?;
    let status = match look(&spool, &boot_id)? {
        Found::Ended(report) => return Ok(report),
        Found::Lost(status) => status,
    };
    let supervisor = (status.boot_id == boot_id).then_some(status.supervisor);
    let (tree, ended) = sweep(&Survivors::of(status.run_id, supervisor)).map_err(RecoverError::Sweep)?;
    let report = report(&spool, &status, tree, ended);
    let cannot_write = |source| RecoverError::Write { folder: folder.into(), source };
    spool.clear_private().and_then(|()| spool.forget_plan()).map_err(cannot_write)?;
    let slot = spool.reserve_status("status.next").map_err(cannot_write)?;
    slot.publish(&RunStatus { state: RunState::Ended(report.clone()), ..status }).map_err(cannot_write)?;
    Ok(report)
}

/// A status that says "ended" while the files beside it are shorter than it says was written before the machine lost power.
/// What is missing may have been the answer, so the run counts as lost.
pub(crate) fn power_was_lost(spool: &Spool, boot_id: &str, report: &RunReport) -> bool {
    // Without a reboot in between there is nothing a file could have lost; a file that was removed is no loss of power.
    let shorter = |path: PathBuf, bytes: u64| fs::metadata(path).is_ok_and(|file| file.len() < bytes);
    os::boot_id().is_ok_and(|now| now != boot_id)
        && (shorter(spool.output(), report.output_bytes) || shorter(spool.error(), report.error_bytes))
}

enum Found {
    Ended(RunReport),
    Lost(RunStatus),
}

fn look(spool: &Spool, boot_id: &str) -> Result<Found, RecoverError> {
    let Some(status) = spool.status()? else {
        let order = spool.order()?.ok_or_else(|| RecoverError::NoRun { folder: spool.folder().into() })?;
        return Ok(Found::Lost(unannounced(order.run_id, boot_id)));
    };
    match &status.state {
        RunState::Ended(report) if !power_was_lost(spool, &status.boot_id, report) => {
            Ok(Found::Ended(report.clone()))
        }
        RunState::Running { .. } if status.boot_id == boot_id && os::is_alive(status.supervisor) => {
            Err(RecoverError::StillRunning { folder: spool.folder().into() })
        }
        _ => Ok(Found::Lost(status)),
    }
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
        state: RunState::Running { agent: nobody },
    }
}

/// Waits until nobody else writes to the spool: a living supervisor is an error, another recovery is soon done.
fn become_the_writer(spool: &Spool) -> Result<SpoolLock, RecoverError> {
    let patience = Instant::now() + PATIENCE + PATIENCE;
    loop {
        let lock =
            spool.lock().map_err(|source| RecoverError::Open { folder: spool.folder().into(), source })?;
        if let Some(lock) = lock {
            return Ok(lock);
        }
        let alive = match spool.status()? {
            Some(RunStatus { state: RunState::Running { .. }, supervisor, .. }) => os::is_alive(supervisor),
            _ => false,
        };
        if alive || Instant::now() > patience {
            return Err(RecoverError::StillRunning { folder: spool.folder().into() });
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn sweep(survivors: &Survivors) -> io::Result<(TreeEnd, u32)> {
    let give_up_at = Instant::now() + PATIENCE;
    let mut ended = HashSet::new();
    loop {
        let found = survivors.kill()?;
        ended.extend(found.iter().copied());
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        if found.is_empty() {
            return Ok((TreeEnd::SweptByIdentity, count(ended.len())));
        }
        if Instant::now() > give_up_at {
            return Ok((TreeEnd::LeftAlive { processes: count(found.len()) }, count(ended.len())));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn report(spool: &Spool, status: &RunStatus, tree: TreeEnd, descendants_ended: u32) -> RunReport {
    let size = |path: PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let ended_at_ms = now_ms();
    RunReport {
        end: End::SupervisorLost,
        exit: None,
        ended_at_ms,
        duration_ms: ended_at_ms.saturating_sub(status.started_at_ms),
        output_bytes: size(spool.output()),
        error_bytes: size(spool.error()),
        usage: TreeUsage::default(),
        descendants_ended,
        tree,
    }
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
