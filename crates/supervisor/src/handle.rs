//! A handle on one run, for its starter and for any other program of the same user.
//!
//! Knows a run only by its spool and its supervisor's process, so both kinds of handle are the same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use model::{End, LimitClock, ProcessIdentity, RunId, RunReport, RunState, RunStatus};
use tokio::io::unix::AsyncFd;
use tokio::process::Child;
use tokio::time::{sleep, sleep_until};

use crate::error::{SpoolError, is_resource_exhaustion};
use crate::os::{self, DeadSupervisor, ProcessHandle, ProcessInfo, Survivors};
use crate::readiness::register_readable;
use crate::recovery::{RunRecoveryError, is_final, kill_with_tree, recover_run, sweep};
use crate::spool::Spool;
use crate::status_pipe::StatusPipe;
use crate::watchdog::{Measure, Observed, Watchdog};

/// The time from the preparation of a run to the first status of its supervisor.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A run.
///
/// Dropping the handle does not affect the run, which continues and can be found by [`attach`]. With
/// [`Run::stop_on_drop`], dropping the last handle requests a stop. Neither leaves a file or a zombie in this program:
/// the runtime reaps the supervisor. Clones share one handle.
#[derive(Debug, Clone)]
pub struct Run(Arc<RunHandle>);

#[derive(Debug)]
struct RunHandle {
    spool: Spool,
    id: RunId,
    /// The supervisor's identity, if it is of this boot.
    identity: Option<ProcessIdentity>,
    /// `None` if the supervisor had already exited.
    supervisor: Option<AsyncFd<ProcessHandle>>,
    /// Only in the program that started the supervisor.
    pipe: Option<StatusPipe>,
    /// Only in the parent of the supervisor, which must reap it.
    child: Mutex<Option<Child>>,
    /// Enforces the limits if the supervisor does not.
    watchdog: Mutex<Watchdog>,
    /// The outcome of a run whose supervisor this program has killed.
    forced_end: OnceLock<End>,
    /// Set once the end has been reported. The supervisor may take a moment to exit, but there is nothing left to stop.
    ended: AtomicBool,
    stop_on_drop: AtomicBool,
}

/// The result of a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReply {
    /// SIGTERM was sent to the supervisor. The run ends as [`model::End::Stopped`], or with the outcome it was already
    /// ending with.
    Requested,
    /// The supervisor had exited; the run keeps its outcome.
    AlreadyEnded,
}

/// Attaches to a run, running or ended, from any process of the same user.
///
/// Must be called within a tokio runtime with I/O enabled.
pub async fn attach(directory: &Path) -> Result<Run, AttachError> {
    let spool = Spool::at(std::path::absolute(directory).map_err(AttachError::Directory)?);
    let give_up_at = Instant::now() + STATUS_TIMEOUT;
    loop {
        // Checked before the status is read: a supervisor that exits in between has written one.
        let is_locked = match spool.is_locked() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(AttachError::NoRun { spool });
            }
            is_locked => is_locked.map_err(AttachError::Directory)?,
        };
        if let Some(status) = spool.status()? {
            return Run::from_status(spool, &status, None, None);
        }
        match spool.manifest()? {
            // Prepared, but its starter has died: no supervisor will execute it.
            Some(manifest) if !is_locked => {
                return Ok(Run(Arc::new(RunHandle::new(spool, manifest.run_id, None))));
            }
            None if !is_locked => return Err(AttachError::NoRun { spool }),
            // Locked without a status: the starter or the supervisor is about to write.
            _ if Instant::now() > give_up_at => {
                // It may be suspended before its first status; a retry then finds the status.
                os::resume_supervisor(spool.directory());
                return Err(AttachError::NoStatus { spool });
            }
            _ => sleep(POLL_INTERVAL).await,
        }
    }
}

impl Run {
    /// Creates a handle from a status. Only the starter has a pipe, and only the parent of the supervisor a child.
    pub(crate) fn from_status(
        spool: Spool,
        status: &RunStatus,
        pipe: Option<StatusPipe>,
        child: Option<Child>,
    ) -> Result<Self, AttachError> {
        let mut handle = RunHandle::new(spool, status.run_id, status.limits.as_ref());
        let this_boot = os::boot_id().map_err(AttachError::Watch)? == status.boot_id;
        handle.identity = this_boot.then_some(status.supervisor);
        let process = handle.identity.map(ProcessHandle::open).transpose().map_err(AttachError::Watch)?;
        handle.supervisor =
            process.flatten().map(register_readable).transpose().map_err(AttachError::Watch)?;
        handle.pipe = pipe;
        handle.child = Mutex::new(child);
        Ok(Self(Arc::new(handle)))
    }

    /// Returns the id of the run.
    pub fn id(&self) -> RunId {
        self.0.id
    }

    /// Returns the supervisor's process, or `None` if it is of an earlier boot.
    pub fn supervisor(&self) -> Option<ProcessIdentity> {
        self.0.identity
    }

    /// Lists the current processes of the run except the supervisor. Empty once the run has ended.
    pub fn processes(&self) -> io::Result<Vec<ProcessInfo>> {
        self.0.identity.map_or_else(|| Ok(Vec::new()), os::processes_below)
    }

    /// Returns the spool of the run.
    pub fn spool(&self) -> &Spool {
        &self.0.spool
    }

    /// Requests a stop when the last handle is dropped.
    #[must_use]
    pub fn stop_on_drop(self) -> Self {
        self.0.stop_on_drop.store(true, Ordering::Relaxed);
        self
    }

    /// Requests a stop: SIGTERM to every process of the tree, SIGKILL after the plan's grace period. Returns
    /// immediately and is idempotent. A run that has ended keeps its outcome.
    pub fn stop(&self) -> io::Result<StopReply> {
        self.0.stop()
    }

    /// Waits for the end of the run.
    ///
    /// If the supervisor was killed, this kills the surviving processes (see [`crate::recover`]) and reports
    /// [`model::End::SupervisorLost`]. If the spool was deleted as well, it kills them and returns an error. Safe to
    /// call repeatedly and concurrently; dropping the future has no effect.
    ///
    /// Enforces the limits and a stop request while the supervisor is suspended.
    pub async fn wait(&self) -> Result<RunReport, WaitError> {
        let mut supervised = pin!(self.wait_for_supervisor());
        let report = loop {
            tokio::select! {
                biased;
                report = &mut supervised => break report?,
                () = self.0.sleep_until_check() => self.enforce_limits().await?,
            }
        };
        if let Some(report) = report {
            return Ok(report);
        }
        let handle = Arc::clone(&self.0);
        // Recovery reads all of /proc several times.
        let recovered = tokio::task::spawn_blocking(move || handle.recover()).await;
        Ok(recovered.map_err(|error| WaitError::Watch(io::Error::other(error)))??)
    }

    /// Waits until the supervisor has reported the end or has exited. Returns `None` if it left no final report.
    async fn wait_for_supervisor(&self) -> Result<Option<RunReport>, WaitError> {
        if let Some(pipe) = &self.0.pipe {
            pipe.wait_closed().await.map_err(WaitError::Watch)?;
            // The final report is there. The process itself is about to exit and needs no waiting.
            if let Some(report) = self.final_report()? {
                self.reap();
                return Ok(Some(report));
            }
        }
        if let Some(supervisor) = &self.0.supervisor {
            // A pidfd stays readable after the exit.
            supervisor.readable().await.map_err(WaitError::Watch)?.retain_ready();
        }
        self.reap();
        Ok(self.final_report()?)
    }

    async fn enforce_limits(&self) -> Result<(), WaitError> {
        let Some(end) = self.0.check_limits() else { return Ok(()) };
        let handle = Arc::clone(&self.0);
        let killed = tokio::task::spawn_blocking(move || handle.kill(end)).await;
        killed.map_err(io::Error::other).and_then(|killed| killed).map_err(WaitError::Watch)
    }

    /// Returns the supervisor's report, if it is final.
    fn final_report(&self) -> Result<Option<RunReport>, SpoolError> {
        let Some(RunStatus { state: RunState::Ended(report), boot_id, .. }) = self.spool().status()? else {
            return Ok(None);
        };
        let is_final = is_final(self.spool(), &boot_id, &report);
        self.0.ended.fetch_or(is_final, Ordering::Relaxed);
        Ok(is_final.then_some(report))
    }

    fn reap(&self) {
        let mut child = self.0.child.lock().unwrap_or_else(PoisonError::into_inner);
        // A supervisor that has not exited yet is reaped by the runtime after the last handle is dropped.
        if child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            *child = None;
        }
    }
}

impl RunHandle {
    /// Creates a handle on a run without a supervisor.
    fn new(spool: Spool, id: RunId, limits: Option<&LimitClock>) -> Self {
        Self {
            spool,
            id,
            identity: None,
            supervisor: None,
            pipe: None,
            child: Mutex::new(None),
            watchdog: Mutex::new(Watchdog::new(limits, os::monotonic_ms(), Instant::now())),
            forced_end: OnceLock::new(),
            ended: AtomicBool::new(false),
            stop_on_drop: AtomicBool::new(false),
        }
    }

    fn watchdog(&self) -> MutexGuard<'_, Watchdog> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sleep_until_check(&self) {
        let next_check = self.watchdog().next_check();
        sleep_until(next_check.into()).await;
    }

    /// Checks the limits if a check is due, and continues an overdue supervisor. Returns the outcome of a run that must
    /// be killed.
    fn check_limits(&self) -> Option<End> {
        let (supervisor, identity) = (self.supervisor.as_ref()?, self.identity?);
        let size = |path: PathBuf| fs::metadata(path).map_or(0, |file| file.len());
        let printed = size(self.spool.output()) + size(self.spool.error());
        // Without a free descriptor (EMFILE), the next check decides.
        let suspended = os::is_suspended(identity.pid).unwrap_or(false);
        let mut watchdog = self.watchdog();
        let now = Instant::now();
        if now < watchdog.next_check() {
            return None;
        }
        match watchdog.check(Observed { printed, suspended }, now) {
            Measure::Wait => None,
            Measure::Continue => {
                // It may have exited meanwhile.
                let _ = supervisor.get_ref().resume();
                None
            }
            Measure::Kill(end) => Some(end),
        }
    }

    /// Kills the supervisor and its process tree.
    fn kill(&self, end: End) -> io::Result<()> {
        let (Some(supervisor), Some(identity)) = (&self.supervisor, self.identity) else { return Ok(()) };
        // Another waiter or an earlier check may have set it already.
        let _ = self.forced_end.set(end);
        kill_with_tree(supervisor.get_ref(), identity)
    }

    fn stop(&self) -> io::Result<StopReply> {
        self.watchdog().request_stop(Instant::now());
        match &self.supervisor {
            Some(supervisor)
                if !self.ended.load(Ordering::Relaxed) && supervisor.get_ref().terminate()? =>
            {
                Ok(StopReply::Requested)
            }
            _ => Ok(StopReply::AlreadyEnded),
        }
    }

    fn recover(&self) -> Result<RunReport, RunRecoveryError> {
        let observed_exit = self.supervisor.is_some();
        let end = self.forced_end.get().cloned().unwrap_or(End::SupervisorLost);
        let recovered = recover_run(self.spool.directory(), observed_exit, &end);
        if let Err(RunRecoveryError::Open { .. } | RunRecoveryError::NoRun { .. }) = &recovered {
            // The spool is gone, but the run id and the supervisor are known from memory.
            let dead = self.identity.map(|identity| DeadSupervisor { identity, observed_exit });
            let survivors = Survivors::new(self.id, dead);
            sweep(|| survivors.kill()).map_err(RunRecoveryError::Sweep)?;
        }
        recovered
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if self.stop_on_drop.load(Ordering::Relaxed) {
            // A supervisor that cannot be signaled has exited.
            let _ = self.stop();
        }
    }
}

/// An error of attaching to a run.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The directory contains no run.
    #[error("there is no run in `{}`", spool.directory().display())]
    NoRun {
        /// The examined directory.
        spool: Spool,
    },
    /// The directory is locked, but there is no status.
    #[error("the supervisor of `{}` has not written a status", spool.directory().display())]
    NoStatus {
        /// The examined directory.
        spool: Spool,
    },
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The directory cannot be opened.
    #[error("cannot open the spool")]
    Directory(#[source] io::Error),
    /// The supervisor's process cannot be watched.
    #[error("cannot watch the supervisor")]
    Watch(#[source] io::Error),
}

impl AttachError {
    /// Returns whether a retry may succeed: the supervisor is late, or the machine ran out of a resource.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoRun { .. } => false,
            Self::NoStatus { .. } | Self::Watch(_) => true,
            Self::Spool(error) => error.is_transient(),
            Self::Directory(error) => is_resource_exhaustion(error),
        }
    }

    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoRun { .. } => "check the path of the run",
            Self::NoStatus { .. } => "the machine may be overloaded; try again",
            Self::Spool(error) => error.hint(),
            Self::Directory(_) => "check that the directory exists and belongs to you",
            Self::Watch(_) => "check that /proc is mounted and that files can still be opened",
        }
    }
}

/// An error of waiting for a run.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The supervisor left no report, and the recovery failed.
    #[error(transparent)]
    Recover(#[from] RunRecoveryError),
    /// The supervisor's process cannot be watched.
    #[error("cannot watch the run")]
    Watch(#[source] io::Error),
    /// A message to the agent cannot be appended to its input.
    #[error("cannot write to the agent")]
    Input(#[source] io::Error),
}

impl WaitError {
    /// Returns whether the error is local and a retry may succeed. The state of the run is then unknown.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Spool(error) => error.is_transient(),
            Self::Recover(error) => error.is_transient(),
            Self::Watch(_) | Self::Input(_) => true,
        }
    }

    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Spool(error) => error.hint(),
            Self::Recover(error) => error.hint(),
            Self::Watch(_) => "check that /proc is mounted and that files can still be opened",
            Self::Input(_) => "check the free disk space and the permissions of the state directory",
        }
    }
}
