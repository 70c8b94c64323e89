//! The changes of jobs, as they happen.

use model::{JobId, Placement, StateName};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A job has changed.
    Changed(Change),
    /// Something may have been missed: the watcher was too slow, or the connection was lost. Look at what you care about.
    Missed,
}

/// A change of a job, after it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which job.
    pub job: JobId,
    /// Its state now.
    pub state: StateName,
    /// Its revision now. One that is not greater than the last seen says nothing new.
    pub revision: u64,
    /// Where it can be run. A store that one process owns does not tell: whatever is in it is for that one.
    pub home: Option<Placement>,
}

/// Changes as a stream. Dropping it ends the watch.
///
/// A change is told after it was written and at least once, but for what [`WatchEvent::Missed`] stands for. With `SQLite`, only
/// changes that were made through the same [`crate::Store`] are told: one process owns the file.
#[derive(Debug)]
pub struct Watch {
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// From the writer of this process.
    Here(broadcast::Receiver<Change>),
    /// From a task that asks a server, and ends with this value.
    #[cfg_attr(not(feature = "surreal"), expect(dead_code, reason = "only a server is asked"))]
    Asked { events: mpsc::Receiver<WatchEvent>, _asking: JoinSet<()> },
}

impl Watch {
    pub(crate) fn here(changes: broadcast::Receiver<Change>) -> Self {
        Self { source: Source::Here(changes) }
    }

    #[cfg(feature = "surreal")]
    pub(crate) fn asked(events: mpsc::Receiver<WatchEvent>, asking: JoinSet<()>) -> Self {
        Self { source: Source::Asked { events, _asking: asking } }
    }

    /// The next change; none when the store was closed. Safe to drop and call again.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        match &mut self.source {
            Source::Here(changes) => match changes.recv().await {
                Ok(change) => Some(WatchEvent::Changed(change)),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(WatchEvent::Missed),
                Err(broadcast::error::RecvError::Closed) => None,
            },
            Source::Asked { events, .. } => events.recv().await,
        }
    }
}
