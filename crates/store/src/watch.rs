//! Change notifications.

use model::{JobId, Placement, StateName};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

/// An event of a [`ChangeStream`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A job has changed.
    Changed(JobChange),
    /// Events may have been dropped: the watcher was too slow, or the connection was lost. Poll the jobs of interest.
    Missed,
}

/// A committed change of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobChange {
    /// The job.
    pub job: JobId,
    /// Its new state.
    pub state: StateName,
    /// Its new revision. An event whose revision is not greater than the last one is a duplicate.
    pub revision: u64,
    /// The home of the job. Absent in a store that one process owns: all its jobs are for that process.
    pub home: Option<Placement>,
}

/// A stream of changes. Dropping it stops the watch.
///
/// Changes are delivered after the commit and at least once, except for those behind a [`WatchEvent::Missed`]. With
/// `SQLite`, only changes through the same [`crate::Store`] are delivered: one process owns the file.
#[derive(Debug)]
pub struct ChangeStream {
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Changes from the writer of this process.
    Local(broadcast::Receiver<JobChange>),
    /// Events from a task that queries a server; it is aborted when this value is dropped.
    #[cfg_attr(not(feature = "surreal"), expect(dead_code, reason = "only a server needs it"))]
    Remote { events: mpsc::Receiver<WatchEvent>, _task: JoinSet<()> },
}

impl ChangeStream {
    pub(crate) fn local(changes: broadcast::Receiver<JobChange>) -> Self {
        Self { source: Source::Local(changes) }
    }

    #[cfg(feature = "surreal")]
    pub(crate) fn remote(events: mpsc::Receiver<WatchEvent>, task: JoinSet<()>) -> Self {
        Self { source: Source::Remote { events, _task: task } }
    }

    /// Returns the next event, or `None` after the store was closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        match &mut self.source {
            Source::Local(changes) => match changes.recv().await {
                Ok(change) => Some(WatchEvent::Changed(change)),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(WatchEvent::Missed),
                Err(broadcast::error::RecvError::Closed) => None,
            },
            Source::Remote { events, .. } => events.recv().await,
        }
    }
}
