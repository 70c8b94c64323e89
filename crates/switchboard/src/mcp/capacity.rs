//! Bounds on what clients make the daemon hold: requests, long messages and waits.
//!
//! A connection is read only while it has a free slot. A request occupies a slot from before it is read until its answer is written,
//! so a client that does not read its answers is no longer read from, and its writes block. A request that waits for a job gives its
//! slot back meanwhile: cancellations and pings behind it are still read. Each client has a few slots and waits of its own, so a flood
//! from elsewhere cannot take them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::MAX_MESSAGE_BYTES;

/// How many requests of one connection are handled at once.
const CONNECTION_SLOTS: usize = 16;
/// How many of them do not depend on other connections.
const OWN_SLOTS: usize = 4;
/// How many requests are handled at once beyond those, in all.
const SHARED_SLOTS: usize = 256;
/// How many waits a client may always have.
pub(crate) const OWN_WAITS: usize = 8;
/// How many waits there may be beyond those, in all, unless the operator sets it.
const SHARED_WAITS: usize = 1024;
/// Up to this size a message counts as short, and its slot covers it.
const SHORT_BYTES: usize = 64 * 1024;
/// How many bytes of longer messages are held, in all.
const LONG_BYTES: usize = 8 * MAX_MESSAGE_BYTES;
/// The unit in which these are counted: a semaphore counts no further than 32 bits.
const UNIT: usize = 1024;

/// What all clients of a daemon share.
#[derive(Debug)]
pub struct RequestCapacity {
    slots: Arc<Semaphore>,
    long_messages: Arc<Semaphore>,
    waits: Arc<Semaphore>,
    max_waits: usize,
}

impl Default for RequestCapacity {
    fn default() -> Self {
        Self::new(SHARED_WAITS)
    }
}

impl RequestCapacity {
    /// Allows that many waits beyond those that each client may always have.
    pub fn new(max_waits: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(SHARED_SLOTS)),
            long_messages: Arc::new(Semaphore::new(LONG_BYTES / UNIT)),
            waits: Arc::new(Semaphore::new(max_waits)),
            max_waits,
        }
    }

    /// Returns how many waits there may be, for the caller whose wait is refused.
    pub(crate) fn max_waits(&self) -> usize {
        self.max_waits
    }
}

/// The slots of one connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSlots {
    capacity: Arc<RequestCapacity>,
    connection: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

impl ConnectionSlots {
    pub fn new(capacity: Arc<RequestCapacity>) -> Self {
        let connection = Arc::new(Semaphore::new(CONNECTION_SLOTS));
        Self { capacity, connection, own: Arc::new(Semaphore::new(OWN_SLOTS)) }
    }

    /// Waits for a free slot.
    pub async fn acquire(&self) -> RequestSlot {
        let permits = Mutex::new(self.permits().await);
        RequestSlot(Arc::new(HeldSlot { slots: self.clone(), permits }))
    }

    async fn permits(&self) -> Permits {
        // The semaphores are never closed, so each gives a permit.
        let connection = Arc::clone(&self.connection).acquire_owned().await.ok();
        let place = tokio::select! {
            biased; // the shared ones are for those who have used up their own
            own = Arc::clone(&self.own).acquire_owned() => own,
            shared = Arc::clone(&self.capacity.slots).acquire_owned() => shared,
        };
        Permits { _connection: connection, _place: place.ok(), message: None }
    }
}

/// The slot of one request. Copies are the same; it is free when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct RequestSlot(Arc<HeldSlot>);

#[derive(Debug)]
struct HeldSlot {
    slots: ConnectionSlots,
    permits: Mutex<Permits>,
}

#[derive(Debug, Default)]
struct Permits {
    _connection: Option<OwnedSemaphorePermit>,
    _place: Option<OwnedSemaphorePermit>,
    message: Option<MessageBytes>,
}

impl RequestSlot {
    /// Keeps the bytes of the message reserved for as long as the slot is held.
    pub fn cover(&self, message: MessageBytes) {
        self.permits().message = Some(message);
    }

    /// Gives the slot to others while the request waits for a job.
    pub fn release(&self) {
        *self.permits() = Permits::default();
    }

    /// Takes a slot again: the answer is about to be made.
    pub async fn reacquire(&self) {
        let permits = self.0.slots.permits().await;
        *self.permits() = permits;
    }

    fn permits(&self) -> std::sync::MutexGuard<'_, Permits> {
        self.0.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory that is reserved for one message.
#[derive(Debug)]
pub(crate) struct MessageBytes {
    capacity: Arc<RequestCapacity>,
    reserved: Option<OwnedSemaphorePermit>,
}

impl MessageBytes {
    pub fn new(capacity: Arc<RequestCapacity>) -> Self {
        Self { capacity, reserved: None }
    }

    /// Reserves memory for a message that has grown to that length. False: the daemon holds too many long messages.
    pub fn grow_to(&mut self, length: usize) -> bool {
        let units = length.saturating_sub(SHORT_BYTES).div_ceil(UNIT);
        let has = self.reserved.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Ok(lacks @ 1..) = u32::try_from(units.saturating_sub(has)) else { return units <= has };
        let Ok(more) = Arc::clone(&self.capacity.long_messages).try_acquire_many_owned(lacks) else {
            return false;
        };
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            none => *none = Some(more),
        }
        true
    }

    /// Whether the message is long enough to use what all clients share.
    pub fn is_long(&self) -> bool {
        self.reserved.is_some()
    }
}

/// The waits of one client.
#[derive(Debug)]
pub(crate) struct ClientWaits {
    capacity: Arc<RequestCapacity>,
    own: Arc<Semaphore>,
}

impl ClientWaits {
    pub fn new(capacity: Arc<RequestCapacity>) -> Self {
        Self { capacity, own: Arc::new(Semaphore::new(OWN_WAITS)) }
    }

    /// Admits one more wait, if there may be one.
    pub fn admit(&self) -> Option<OwnedSemaphorePermit> {
        let own = Arc::clone(&self.own).try_acquire_owned();
        own.or_else(|_| Arc::clone(&self.capacity.waits).try_acquire_owned()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn flood_leaves_the_slots_of_other_connections() {
        let capacity = Arc::new(RequestCapacity::default());
        let flood: Vec<_> = (0..2 * SHARED_SLOTS / CONNECTION_SLOTS)
            .map(|_| ConnectionSlots::new(Arc::clone(&capacity)))
            .flat_map(|slots| std::iter::from_fn(move || slots.acquire().now_or_never()))
            .collect();
        assert!(flood.len() >= SHARED_SLOTS && capacity.slots.available_permits() == 0);
        let other = ConnectionSlots::new(capacity);
        let held: Vec<_> = std::iter::from_fn(|| other.acquire().now_or_never()).collect();
        assert_eq!(held.len(), OWN_SLOTS);
    }

    #[test]
    fn request_that_waits_holds_no_slot() {
        let slots = ConnectionSlots::new(Arc::default());
        let held: Vec<_> = std::iter::from_fn(|| slots.acquire().now_or_never()).collect();
        assert_eq!(held.len(), CONNECTION_SLOTS);
        held[0].release();
        let other = slots.acquire().now_or_never().expect("the slot is free");
        assert!(held[0].reacquire().now_or_never().is_none());
        drop(other);
        assert!(held[0].reacquire().now_or_never().is_some());
    }

    #[test]
    fn flood_leaves_the_waits_of_other_clients() {
        let capacity = Arc::new(RequestCapacity::new(3));
        let (flood, other) = (ClientWaits::new(Arc::clone(&capacity)), ClientWaits::new(capacity));
        let held: Vec<_> = std::iter::from_fn(|| flood.admit()).collect();
        assert_eq!(held.len(), OWN_WAITS + 3);
        let own: Vec<_> = std::iter::from_fn(|| other.admit()).collect();
        assert_eq!(own.len(), OWN_WAITS);
        drop(held);
        assert!(other.admit().is_some());
    }

    #[test]
    fn long_messages_share_one_bound() {
        let capacity = Arc::new(RequestCapacity::default());
        let message = || MessageBytes::new(Arc::clone(&capacity));
        let mut held = Vec::new();
        for _ in 0..LONG_BYTES / MAX_MESSAGE_BYTES {
            let mut long = message();
            assert!(long.grow_to(MAX_MESSAGE_BYTES / 2) && long.grow_to(MAX_MESSAGE_BYTES));
            held.push(long);
        }
        let mut other = message();
        assert!(other.grow_to(SHORT_BYTES) && !other.is_long());
        assert!(!other.grow_to(MAX_MESSAGE_BYTES));
        held.pop();
        assert!(other.grow_to(MAX_MESSAGE_BYTES));
    }
}
