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
#[must_use = "it is not on the disk yet"]
pub struct Committed<T> {
    /// The result.
    pub value: T,
    /// Resolves once the write is durable.
    pub flush: FlushTicket,
}

impl<T> Committed<T> {
    /// Returns the result of a write that is already durable.
    pub fn already_flushed(value: T) -> Self {
        Self { value, flush: FlushTicket::there() }
    }

    /// Converts the result and keeps its ticket.
    pub fn map<U>(self, as_seen: impl FnOnce(T) -> U) -> Committed<U> {
        Committed { value: as_seen(self.value), flush: self.flush }
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
    arrival: Option<(String, watch::Receiver<Arrival>)>,
}

#[derive(Debug, Clone)]
enum Arrival {
    Awaited,
    There,
    /// The flush failed with this error.
    Doubtful(String),
}

impl FlushTicket {
    /// Waits until the write is durable. After an error its durability is unknown: a power failure may undo it
    /// ([`StoreError::Unconfirmed`]).
    pub async fn flushed(&self) -> Result<(), StoreError> {
        let Some((place, mut arrival)) = self.arrival.clone() else { return Ok(()) };
        let doubt = match arrival.wait_for(|arrival| !matches!(arrival, Arrival::Awaited)).await.as_deref() {
            Ok(Arrival::Doubtful(reason)) => reason.clone(),
            Ok(_) => return Ok(()),
            // The writer thread panicked.
            Err(_) => "the writer has ended before its word".to_owned(),
        };
        Err(StoreError::Unconfirmed { place, job: self.job, source: doubt.into() })
    }

    /// Returns a ticket for a write that is already durable.
    pub(crate) fn there() -> Self {
        Self { job: None, arrival: None }
    }

    pub(crate) fn of(self, job: JobId) -> Self {
        Self { job: Some(job), ..self }
    }
}

/// Reports the result of a flush to its tickets.
#[derive(Debug)]
pub struct FlushNotifier {
    place: String,
    arrival: watch::Sender<Arrival>,
}

impl FlushNotifier {
    /// Returns a notifier for a pending flush of the store at a location.
    pub fn new(place: String) -> Self {
        Self { place, arrival: watch::Sender::new(Arrival::Awaited) }
    }

    pub fn flush(&self) -> FlushTicket {
        FlushTicket { job: None, arrival: Some((self.place.clone(), self.arrival.subscribe())) }
    }

    pub fn arrived(self) {
        self.arrival.send_replace(Arrival::There);
    }

    pub fn was_not_confirmed(self, reason: String) {
        self.arrival.send_replace(Arrival::Doubtful(reason));
    }
}
