//! A handle on one run, from the program that started it or from any other of the same user.
//!
//! Knows a run only through its spool and its supervisor's process, so both kinds of handle are the same.

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
use crate::recovery::{RecoverError, is_final, kill_with_tree, recover_run, sweep};
use crate::spool::Spool;
use crate::status_pipe::StatusPipe;
use crate::watchdog::{Measure, Observed, Watchdog};

/// How long a supervisor that has its order may take until its first word.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// One run.
///
/// Dropping the handle leaves the run alone: it goes on, and [`attach`] finds it again. With [`Run::stop_on_drop`] the drop of
/// the last handle asks it to stop. In both cases nothing is left behind in this program: no file, no zombie (the runtime
/// reaps the supervisor). Clones are the same handle.
#[derive(Debug, Clone)]
pub struct Run(Arc<RunHandle>);

#[derive(Debug)]
struct RunHandle {
    spool: Spool,
    id: RunId,
    /// Who the supervisor is, in this boot.
    identity: Option<ProcessIdentity>,
    /// None when the supervisor was already gone.
    supervisor: Option<AsyncFd<ProcessHandle>>,
    /// Only in the program that started the supervisor.
    pipe: Option<StatusPipe>,
    /// Only in a program whose child the supervisor is, which must therefore reap it.
    child: Mutex<Option<Child>>,
    /// Enforces the limits when the supervisor does not.
    watchdog: Mutex<Watchdog>,
    /// The end of a run whose supervisor this program has killed.
    forced_end: OnceLock<End>,
    /// Whether the end was heard: the supervisor may be there for a moment longer, and there is nothing left to stop.
    ended: AtomicBool,
    stop_on_drop: AtomicBool,
}

/// What a request to stop found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReply {
    /// The supervisor has been told. The run ends as [`model::End::Stopped`], or as what it was already ending with.
    Requested,
    /// There was nobody to tell any more; the run keeps its outcome.
    AlreadyEnded,
}

/// Finds a run again by its directory, running or ended, from any process of the same user.
///
/// Must be called within a tokio runtime with I/O enabled.
pub async fn attach(directory: &Path) -> Result<Run, AttachError> {
    let spool = Spool::at(std::path::absolute(directory).map_err(AttachError::Directory)?);
    let give_up_at = Instant::now() + STATUS_TIMEOUT;
    loop {
        // Asked before the status is looked for: a supervisor that ends in between has written one.
        let is_locked = match spool.is_locked() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(AttachError::NoRun { spool });
            }
            is_locked => is_locked.map_err(AttachError::Directory)?,
        };
        if let Some(status) = spool.status()? {
            return Run::watch(spool, &status, None, None);
        }
        match spool.manifest()? {
            // Nobody will carry the order out any more.
            Some(manifest) if !is_locked => {
                return Ok(Run::new(spool, manifest.run_id, None, None, None, None, None));
            }
            None if !is_locked => return Err(AttachError::NoRun { spool }),
            // Its starter or its supervisor is about to write.
            _ if Instant::now() > give_up_at => {
                // It may have been suspended before its first status; the next attempt finds that one.
                os::resume_supervisor(spool.directory());
                return Err(AttachError::NoStatus { spool });
            }
            _ => sleep(POLL_INTERVAL).await,
        }
    }
}

impl Run {
    fn new(
        spool: Spool,
        id: RunId,
        limits: Option<&LimitClock>,
        identity: Option<ProcessIdentity>,
        supervisor: Option<AsyncFd<ProcessHandle>>,
        pipe: Option<StatusPipe>,
        child: Option<Child>,
    ) -> Self {
        let watchdog = Mutex::new(Watchdog::new(limits, os::monotonic_ms(), Instant::now()));
        let forced_end = OnceLock::new();
        let (child, ended, stop_on_drop) =
            (Mutex::new(child), AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(RunHandle {
            spool,
            id,
            identity,
            supervisor,
            pipe,
            child,
            watchdog,
            forced_end,
            ended,
            stop_on_drop,
        }))
    }

    /// The handle of a program that has just started the supervisor and heard its first word.
    pub(crate) fn started(
        spool: Spool,
        status: &RunStatus,
        pipe: StatusPipe,
        child: Option<Child>,
    ) -> Result<Self, AttachError> {
        Self::watch(spool, status, Some(pipe), child)
    }

    fn watch(
        spool: Spool,
        status: &RunStatus,
        pipe: Option<StatusPipe>,
        child: Option<Child>,
    ) -> Result<Self, AttachError> {
        let this_boot = os::boot_id().map_err(AttachError::Watch)? == status.boot_id;
        let identity = this_boot.then_some(status.supervisor);
        let process = identity.map(ProcessHandle::open).transpose().map_err(AttachError::Watch)?.flatten();
        let supervisor = process.map(register_readable).transpose().map_err(AttachError::Watch)?;
        Ok(Self::new(spool, status.run_id, status.limits.as_ref(), identity, supervisor, pipe, child))
    }

    /// The run's own id.
    pub fn id(&self) -> RunId {
        self.0.id
    }

    /// The supervisor's process; none when it belongs to an earlier boot.
    pub fn supervisor(&self) -> Option<ProcessIdentity> {
        self.0.identity
    }

    /// The processes of the run that can be seen now, the supervisor's own left out; none once it is over.
    pub fn processes(&self) -> io::Result<Vec<ProcessInfo>> {
        self.0.identity.map_or_else(|| Ok(Vec::new()), os::processes_below)
    }

    /// The directory with the run's files.
    pub fn spool(&self) -> &Spool {
        &self.0.spool
    }

    /// Makes the drop of the last handle a request to stop, for programs whose runs are not to outlive their interest in
    /// them.
    #[must_use]
    pub fn stop_on_drop(self) -> Self {
        self.0.stop_on_drop.store(true, Ordering::Relaxed);
        self
    }

    /// Asks the run to stop: SIGTERM to every process of the tree, SIGKILL after the plan's grace. Returns at once; may be
    /// called any number of times. A run that has finished keeps its outcome.
    pub fn stop(&self) -> io::Result<StopReply> {
        self.0.stop()
    }

    /// Waits for the end of the run.
    ///
    /// When the supervisor was killed, this ends what it had left (see [`crate::recover`]) and reports
    /// [`model::End::SupervisorLost`]; when its directory is gone too, it ends what it had left and is an error. May be called
    /// any number of times, also at the same time; dropping the future changes nothing.
    ///
    /// Enforces the limits of the run and a stop request when the supervisor is suspended.
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
        // Recovery reads all of /proc, some times over.
        let recovered = tokio::task::spawn_blocking(move || handle.recover()).await;
        Ok(recovered.map_err(|error| WaitError::Watch(io::Error::other(error)))??)
    }

    /// Waits until the supervisor has reported the end or is gone; none when it has left no report.
    async fn wait_for_supervisor(&self) -> Result<Option<RunReport>, WaitError> {
        if let Some(pipe) = &self.0.pipe {
            pipe.wait_closed().await.map_err(WaitError::Watch)?;
            // Its last word is its report: the process itself is about to end, having nothing left to do.
            if let Some(report) = self.final_report()? {
                self.reap();
                return Ok(Some(report));
            }
        }
        if let Some(supervisor) = &self.0.supervisor {
            // Readable once the process has ended, and from then on for ever.
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

    /// What the supervisor reported, if nothing about it can change any more.
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
        // One that has not ended yet is reaped by the runtime, when the last handle is gone.
        if child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            *child = None;
        }
    }
}

impl RunHandle {
    fn watchdog(&self) -> MutexGuard<'_, Watchdog> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sleep_until_check(&self) {
        let next_check = self.watchdog().next_check();
        sleep_until(next_check.into()).await;
    }

    /// Checks the limits, if it is time, and continues an overdue supervisor. Returns the end of a run that must be killed.
    fn check_limits(&self) -> Option<End> {
        let (supervisor, identity) = (self.supervisor.as_ref()?, self.identity?);
        let size = |path: PathBuf| fs::metadata(path).map_or(0, |file| file.len());
        let printed = size(self.spool.output()) + size(self.spool.error());
        // A machine without a free descriptor gets another check.
        let suspended = os::is_suspended(identity.pid).unwrap_or(false);
        let mut watchdog = self.watchdog();
        let now = Instant::now();
        if now < watchdog.next_check() {
            return None;
        }
        match watchdog.check(Observed { printed, suspended }, now) {
            Measure::Wait => None,
            Measure::Continue => {
                // One that has ended since needs no signal.
                let _ = supervisor.get_ref().resume();
                None
            }
            Measure::Kill(end) => Some(end),
        }
    }

    /// Kills the supervisor and its process tree.
    fn kill(&self, end: End) -> io::Result<()> {
        let (Some(supervisor), Some(identity)) = (&self.supervisor, self.identity) else { return Ok(()) };
        // A second program or an earlier check may have decided the end already.
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

    fn recover(&self) -> Result<RunReport, RecoverError> {
        let observed_exit = self.supervisor.is_some();
        let end = self.forced_end.get().cloned().unwrap_or(End::SupervisorLost);
        let recovered = recover_run(self.spool.directory(), observed_exit, &end);
        if let Err(RecoverError::Open { .. } | RecoverError::NoRun { .. }) = &recovered {
            // The directory is gone; who is to be looked for is known all the same.
            let dead = self.identity.map(|identity| DeadSupervisor { identity, observed_exit });
            let survivors = Survivors::new(self.id, dead);
            sweep(|| survivors.kill()).map_err(RecoverError::Sweep)?;
        }
        recovered
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if self.stop_on_drop.load(Ordering::Relaxed) {
            // One that cannot be told has ended.
            let _ = self.stop();
        }
    }
}

/// Why a run cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No run was ever started there.
    #[error("there is no run in `{}`", spool.directory().display())]
    NoRun {
        /// The directory that was looked at.
        spool: Spool,
    },
    /// Somebody holds the directory and writes nothing.
    #[error("the supervisor of `{}` has not said a word", spool.directory().display())]
    NoStatus {
        /// The directory that was looked at.
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
    /// Whether it may pass: the supervisor is late, or the machine lacks something for now.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoRun { .. } => false,
            Self::NoStatus { .. } | Self::Watch(_) => true,
            Self::Spool(error) => error.is_transient(),
            Self::Directory(error) => is_resource_exhaustion(error),
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoRun { .. } => "check the path; every run has a directory of its own",
            Self::NoStatus { .. } => "the machine may be overloaded; try again",
            Self::Spool(error) => error.hint(),
            Self::Directory(_) => "check that the directory is there and belongs to you",
            Self::Watch(_) => "check that /proc is mounted and that files can still be opened",
        }
    }
}

/// Why the end of a run cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The supervisor left no report, and the recovery could not make one.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The supervisor's process cannot be watched.
    #[error("cannot watch the run")]
    Watch(#[source] io::Error),
}

impl WaitError {
    /// Whether it is trouble of ours that may pass: nothing is known about the run, which may be alive or have ended as it should.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Spool(error) => error.is_transient(),
            Self::Recover(error) => error.is_transient(),
            Self::Watch(_) => true,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Spool(error) => error.hint(),
            Self::Recover(error) => error.hint(),
            Self::Watch(_) => "check that /proc is mounted and that files can still be opened",
        }
    }
}
