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
pub struct Written<T> {
    /// What was written.
    pub value: T,
    /// Tells when the disk has it.
    pub on_disk: OnDisk,
}

impl<T> Written<T> {
    /// What is on the disk already.
    pub fn and_kept(value: T) -> Self {
        Self { value, on_disk: OnDisk::there() }
    }

    /// The same, as its user sees it.
    pub fn map<U>(self, as_seen: impl FnOnce(T) -> U) -> Written<U> {
        Written { value: as_seen(self.value), on_disk: self.on_disk }
    }

    /// Waits until the disk has it.
    pub async fn kept(self) -> Result<T, StoreError> {
        self.on_disk.reached().await?;
        Ok(self.value)
    }
}

/// Whether the disk has what was written. Copies tell the same.
#[derive(Debug, Clone)]
pub struct OnDisk {
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

impl OnDisk {
    /// Waits until the disk has it. After an error nobody knows: a power cut may take it back ([`StoreError::Unconfirmed`]).
    pub async fn reached(&self) -> Result<(), StoreError> {
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
pub struct OnTheWay {
    place: String,
    arrival: watch::Sender<Arrival>,
}

impl OnTheWay {
    /// To the disk of that store.
    pub fn new(place: String) -> Self {
        Self { place, arrival: watch::Sender::new(Arrival::Awaited) }
    }

    pub fn on_disk(&self) -> OnDisk {
        OnDisk { job: None, arrival: Some((self.place.clone(), self.arrival.subscribe())) }
    }

    pub fn arrived(self) {
        self.arrival.send_replace(Arrival::There);
    }

    pub fn was_not_confirmed(self, reason: String) {
        self.arrival.send_replace(Arrival::Doubtful(reason));
    }
}
