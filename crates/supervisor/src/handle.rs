//! A handle on one run, from the program that started it or from any other of the same user.
//!
//! Knows a run only through its spool and its supervisor's process, so both kinds of handle are the same.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use model::{RunId, RunReport, RunState, RunStatus};
use tokio::io::unix::AsyncFd;
use tokio::process::Child;
use tokio::time::sleep;

use crate::events::{Events, Offsets};
use crate::os::{self, ProcessHandle};
use crate::readiness::until_readable;
use crate::recovery::{RecoverError, power_was_lost, recover};
use crate::spool::{Spool, SpoolError};

/// How long a supervisor that has its order may take until its first word.
const FIRST_WORD: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// One run.
///
/// Dropping the handle leaves the run alone: it goes on, and [`attach`] finds it again. With [`Run::stop_on_drop`] the drop
/// asks it to stop. In both cases nothing is left behind in this program: no file, no zombie (the runtime reaps the
/// supervisor).
#[derive(Debug)]
pub struct Run {
    spool: Spool,
    id: RunId,
    /// None when the supervisor was already gone.
    supervisor: Option<AsyncFd<ProcessHandle>>,
    /// Only in the program that started the supervisor, which must therefore reap it.
    child: Mutex<Option<Child>>,
    stop_on_drop: bool,
}

/// What a request to stop found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReply {
    /// The supervisor has been told. The run ends as [`model::End::Stopped`], or as what it was already ending with.
    Requested,
    /// There was nobody to tell any more; the run keeps its outcome.
    AlreadyEnded,
}

/// Finds a run again by its folder, running or ended, from any process of the same user.
///
/// Must be called within a tokio runtime with I/O enabled.
pub async fn attach(folder: &Path) -> Result<Run, AttachError> {
    let spool = Spool::at(std::path::absolute(folder).map_err(AttachError::Folder)?);
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = spool.status()? {
            return Run::watch(spool, &status, None);
        }
        let Some(order) = spool.order()? else { return Err(AttachError::NoRun { spool }) };
        // A supervisor that holds its spool is about to write its first status; one that does not is dead.
        let held = spool.lock().map_err(AttachError::Folder)?.is_none();
        if !held || waited > FIRST_WORD {
            return Ok(Run {
                spool,
                id: order.run_id,
                supervisor: None,
                child: Mutex::new(None),
                stop_on_drop: false,
            });
        }
        sleep(LOOK_AGAIN).await;
        waited += LOOK_AGAIN;
    }
}

impl Run {
    /// The handle of a program that has just started the supervisor.
    pub(crate) fn started(spool: Spool, child: Child) -> Result<Self, AttachError> {
        let Some(status) = spool.status()? else { return Err(AttachError::NoRun { spool }) };
        Self::watch(spool, &status, Some(child))
    }

    fn watch(spool: Spool, status: &RunStatus, child: Option<Child>) -> Result<Self, AttachError> {
        let this_boot = os::boot_id().map_err(AttachError::Watch)? == status.boot_id;
        let process = if this_boot {
            ProcessHandle::open(status.supervisor).map_err(AttachError::Watch)?
        } else {
            None
        };
        let supervisor = process.map(until_readable).transpose().map_err(AttachError::Watch)?;
        Ok(Self { spool, id: status.run_id, supervisor, child: Mutex::new(child), stop_on_drop: false })
    }

    /// The run's own id.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// The folder with the run's files.
    pub fn spool(&self) -> &Spool {
        &self.spool
    }

    /// Makes the drop of this handle a request to stop, for programs whose runs are not to outlive their interest in them.
    #[must_use]
    pub fn stop_on_drop(mut self) -> Self {
        self.stop_on_drop = true;
        self
    }

    /// Asks the run to stop: SIGTERM to every process of the tree, SIGKILL after the plan's grace. Returns at once; may be
    /// called any number of times. A run that has finished keeps its outcome.
    pub fn stop(&self) -> io::Result<StopReply> {
        match &self.supervisor {
            Some(supervisor) if supervisor.get_ref().terminate()? => Ok(StopReply::Requested),
            _ => Ok(StopReply::AlreadyEnded),
        }
    }

    /// Reads along: what the agent has printed and prints, and in the end how it ended.
    pub fn events(&self, from: Offsets) -> io::Result<Events<'_>> {
        Events::of(self, from)
    }

    /// Waits for the end of the run.
    ///
    /// When the supervisor was killed, this ends what it had left (see [`recover`]) and reports
    /// [`model::End::SupervisorLost`]. May be called any number of times, also at the same time; dropping the future changes
    /// nothing.
    pub async fn wait(&self) -> Result<RunReport, WaitError> {
        if let Some(supervisor) = &self.supervisor {
            // Readable once the process has ended, and from then on for ever.
            supervisor.readable().await.map_err(WaitError::Watch)?.retain_ready();
        }
        self.reap();
        if let Some(RunStatus { state: RunState::Ended(report), boot_id, .. }) = self.spool.status()?
            && !power_was_lost(&self.spool, &boot_id, &report)
        {
            return Ok(report);
        }
        let spool = self.spool.clone();
        // Recovery reads all of /proc, some times over.
        let recovered = tokio::task::spawn_blocking(move || recover(spool.folder())).await;
        Ok(recovered.map_err(|error| WaitError::Watch(io::Error::other(error)))??)
    }

    fn reap(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It has ended, so this does not wait.
        if child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
            *child = None;
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.stop_on_drop {
            // One that cannot be told has ended.
            let _ = self.stop();
        }
    }
}

/// Why a run cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No run was ever started there.
    #[error("there is no run in `{}`", spool.folder().display())]
    NoRun {
        /// The folder that was looked at.
        spool: Spool,
    },
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The folder cannot be opened.
    #[error("cannot open the spool")]
    Folder(#[source] io::Error),
    /// The supervisor's process cannot be watched.
    #[error("cannot watch the supervisor")]
    Watch(#[source] io::Error),
}

impl AttachError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoRun { .. } => "check the path; every run has a folder of its own",
            Self::Spool(error) => error.hint(),
            Self::Folder(_) => "check that the folder is there and belongs to you",
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
