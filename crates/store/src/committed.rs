//! Committed writes and their flush to disk.
//!
//! A commit survives a crash of the process; only the flush (fsync) makes it survive a power failure, and the flush takes
//! longer than all other work on a call. A caller may therefore continue after the commit with work that can be undone. It
//! waits for the [`FlushTicket`] before it does anything that cannot: starting a process, replying to a client.

use model::JobId;
use tokio::sync::watch;

use crate::error::StoreError;

/// The result of a committed write, which is durable once its flush is done.
#[derive(Debug)]
#[must_use = "the write is not durable yet"]
pub struct Committed<T> {
    /// The result.
    pub value: T,
    /// Resolves once the write is durable.
    pub flush: FlushTicket,
}

impl<T> Committed<T> {
    /// Returns the result of a write that is already durable.
    pub fn already_flushed(value: T) -> Self {
        Self { value, flush: FlushTicket::already_flushed() }
    }

    /// Converts the result and keeps its ticket.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Committed<U> {
        Committed { value: convert(self.value), flush: self.flush }
    }

    /// Waits for the flush and returns the result.
    pub async fn flushed(self) -> Result<T, StoreError> {
        self.flush.flushed().await?;
        Ok(self.value)
    }
}

/// Waits for the flush of a committed write. Clones wait for the same flush.
#[derive(Debug, Clone)]
pub struct FlushTicket {
    job: Option<JobId>,
    /// The location of the store and the state of the flush; `None` if the write is already durable.
    pending: Option<(String, watch::Receiver<FlushState>)>,
}

#[derive(Debug, Clone)]
enum FlushState {
    Pending,
    Flushed,
    /// The flush failed with this error.
    Unconfirmed(String),
}

impl FlushTicket {
    /// Waits until the write is durable. After an error its durability is unknown: a power failure may undo it
    /// ([`StoreError::Unconfirmed`]).
    pub async fn flushed(&self) -> Result<(), StoreError> {
        let Some((location, mut state)) = self.pending.clone() else { return Ok(()) };
        let reason = match state.wait_for(|state| !matches!(state, FlushState::Pending)).await.as_deref() {
            Ok(FlushState::Unconfirmed(reason)) => reason.clone(),
            Ok(_) => return Ok(()),
            // The writer thread panicked.
            Err(_) => "the writer thread exited before the flush".to_owned(),
        };
        Err(StoreError::Unconfirmed { location, job: self.job, source: reason.into() })
    }

    /// Returns a ticket for a write that is already durable.
    pub(crate) fn already_flushed() -> Self {
        Self { job: None, pending: None }
    }

    /// Names the written job in the ticket's error.
    pub(crate) fn for_job(self, job: JobId) -> Self {
        Self { job: Some(job), ..self }
    }
}

/// Reports the result of a flush to its tickets.
#[derive(Debug)]
pub struct FlushNotifier {
    location: String,
    state: watch::Sender<FlushState>,
}

impl FlushNotifier {
    /// Returns a notifier for a pending flush of the store at a location.
    pub fn new(location: String) -> Self {
        Self { location, state: watch::Sender::new(FlushState::Pending) }
    }

    pub fn ticket(&self) -> FlushTicket {
        FlushTicket { job: None, pending: Some((self.location.clone(), self.state.subscribe())) }
    }

    pub fn notify_flushed(self) {
        self.state.send_replace(FlushState::Flushed);
    }

    pub fn notify_unconfirmed(self, reason: String) {
        self.state.send_replace(FlushState::Unconfirmed(reason));
    }
}
