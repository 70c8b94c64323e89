//! What was written and is on its way to the disk.
//!
//! A disk takes longer to confirm than everything else that a call needs, and much can be made ready meanwhile. So whoever is
//! told "written" may go on with what can be taken back, and waits here before it does what cannot.

use model::JobId;
use tokio::sync::watch;

use crate::error::StoreError;

/// Something that was written: it survives the end of this process, and a power cut once the disk has it.
#[derive(Debug)]
#[must_use = "it is not on the disk yet"]
pub struct Committed<T> {
    /// What was written.
    pub value: T,
    /// Tells when the disk has it.
    pub flush: FlushTicket,
}

impl<T> Committed<T> {
    /// What is on the disk already.
    pub fn already_flushed(value: T) -> Self {
        Self { value, flush: FlushTicket::there() }
    }

    /// The same, as its user sees it.
    pub fn map<U>(self, as_seen: impl FnOnce(T) -> U) -> Committed<U> {
        Committed { value: as_seen(self.value), flush: self.flush }
    }

    /// Waits until the disk has it.
    pub async fn flushed(self) -> Result<T, StoreError> {
        self.flush.flushed().await?;
        Ok(self.value)
    }
}

/// Whether the disk has what was written. Copies tell the same.
#[derive(Debug, Clone)]
pub struct FlushTicket {
    job: Option<JobId>,
    /// In which store it is awaited; none when there is nothing to wait for.
    arrival: Option<(String, watch::Receiver<Arrival>)>,
}

/// How far it has come.
#[derive(Debug, Clone)]
enum Arrival {
    Awaited,
    There,
    /// The disk did not confirm it, for this reason.
    Doubtful(String),
}

impl FlushTicket {
    /// Waits until the disk has it. After an error nobody knows: a power cut may take it back ([`StoreError::Unconfirmed`]).
    pub async fn flushed(&self) -> Result<(), StoreError> {
        let Some((place, mut arrival)) = self.arrival.clone() else { return Ok(()) };
        let doubt = match arrival.wait_for(|arrival| !matches!(arrival, Arrival::Awaited)).await.as_deref() {
            Ok(Arrival::Doubtful(reason)) => reason.clone(),
            Ok(_) => return Ok(()),
            // As in a panic.
            Err(_) => "the writer has ended before its word".to_owned(),
        };
        Err(StoreError::Unconfirmed { place, job: self.job, source: doubt.into() })
    }

    /// It is there.
    pub(crate) fn there() -> Self {
        Self { job: None, arrival: None }
    }

    pub(crate) fn of(self, job: JobId) -> Self {
        Self { job: Some(job), ..self }
    }
}

/// The writer's end.
#[derive(Debug)]
pub struct FlushNotifier {
    place: String,
    arrival: watch::Sender<Arrival>,
}

impl FlushNotifier {
    /// To the disk of that store.
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
