//! Limits on the requests, long messages and waits that clients can keep open.
//!
//! A connection is read only while it has a free slot. A request occupies a slot from before it is read until its response is written.
//! If a client does not read its responses, the server stops reading its requests, and the client's writes block. A request that waits
//! for a job releases its slot, so that cancellations and pings behind it are still read. Each client has a few reserved slots and waits
//! that a flood from other clients cannot use up.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::message_errors::MAX_MESSAGE_BYTES;

/// Maximum number of concurrent requests of one connection.
const CONNECTION_SLOTS: usize = 16;
/// Slots reserved for each connection.
const OWN_SLOTS: usize = 4;
/// Slots shared by all connections, beyond the reserved ones.
const SHARED_SLOTS: usize = 256;
/// Waits reserved for each client.
pub(crate) const OWN_WAITS: usize = 8;
/// Default number of waits shared by all clients, beyond the reserved ones.
const SHARED_WAITS: usize = 1024;
/// Messages up to this size need no memory reservation.
const SHORT_BYTES: usize = 64 * 1024;
/// Memory for longer messages, shared by all clients.
const LONG_BYTES: usize = 8 * MAX_MESSAGE_BYTES;
/// Bytes per permit: an acquire is limited to `u32::MAX` permits.
const UNIT: usize = 1024;

/// The limits that all clients of a daemon share.
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
    /// Creates the limits with this number of shared waits.
    pub fn new(max_waits: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(SHARED_SLOTS)),
            long_messages: Arc::new(Semaphore::new(LONG_BYTES / UNIT)),
            waits: Arc::new(Semaphore::new(max_waits)),
            max_waits,
        }
    }

    /// Returns the number of shared waits, for error messages.
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
        let permits = Mutex::new(self.acquire_permits().await);
        RequestSlot(Arc::new(AcquiredSlot { slots: self.clone(), permits }))
    }

    async fn acquire_permits(&self) -> SlotPermits {
        // The semaphores are never closed, so `acquire_owned` never fails.
        let connection = Arc::clone(&self.connection).acquire_owned().await.ok();
        let slot = tokio::select! {
            biased; // reserved slots first
            own = Arc::clone(&self.own).acquire_owned() => own,
            shared = Arc::clone(&self.capacity.slots).acquire_owned() => shared,
        };
        SlotPermits { _connection: connection, _slot: slot.ok(), message: None }
    }
}

/// The slot of one request. Clones share it; dropping the last one releases it.
#[derive(Debug, Clone)]
pub(crate) struct RequestSlot(Arc<AcquiredSlot>);

#[derive(Debug)]
struct AcquiredSlot {
    slots: ConnectionSlots,
    permits: Mutex<SlotPermits>,
}

#[derive(Debug, Default)]
struct SlotPermits {
    _connection: Option<OwnedSemaphorePermit>,
    _slot: Option<OwnedSemaphorePermit>,
    message: Option<MessageMemory>,
}

impl RequestSlot {
    /// Keeps the message's memory reserved while the slot is held.
    pub fn hold_message(&self, message: MessageMemory) {
        self.permits().message = Some(message);
    }

    /// Releases the slot while the request waits for a job.
    pub fn release(&self) {
        *self.permits() = SlotPermits::default();
    }

    /// Acquires a slot again, before the response is built.
    pub async fn reacquire(&self) {
        let permits = self.0.slots.acquire_permits().await;
        *self.permits() = permits;
    }

    fn permits(&self) -> std::sync::MutexGuard<'_, SlotPermits> {
        self.0.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory reserved for one message.
#[derive(Debug)]
pub(crate) struct MessageMemory {
    capacity: Arc<RequestCapacity>,
    reserved: Option<OwnedSemaphorePermit>,
}

impl MessageMemory {
    pub fn new(capacity: Arc<RequestCapacity>) -> Self {
        Self { capacity, reserved: None }
    }

    /// Reserves memory for a message of this length. Returns false if the shared memory is used up.
    pub fn try_grow_to(&mut self, length: usize) -> bool {
        let units = length.saturating_sub(SHORT_BYTES).div_ceil(UNIT);
        let reserved = self.reserved.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Ok(missing @ 1..) = u32::try_from(units.saturating_sub(reserved)) else {
            return units <= reserved;
        };
        let Ok(more) = Arc::clone(&self.capacity.long_messages).try_acquire_many_owned(missing) else {
            return false;
        };
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            none => *none = Some(more),
        }
        true
    }

    /// Returns whether the message uses shared memory.
    pub fn is_long(&self) -> bool {
        self.reserved.is_some()
    }
}

/// Admits the waits of one client.
#[derive(Debug)]
pub(crate) struct ClientWaits {
    capacity: Arc<RequestCapacity>,
    own: Arc<Semaphore>,
}

impl ClientWaits {
    pub fn new(capacity: Arc<RequestCapacity>) -> Self {
        Self { capacity, own: Arc::new(Semaphore::new(OWN_WAITS)) }
    }

    /// Admits another wait, unless the limits are reached.
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
    fn flood_leaves_reserved_slots_of_other_connections() {
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
    fn waiting_request_releases_its_slot() {
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
    fn flood_leaves_reserved_waits_of_other_clients() {
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
    fn long_messages_share_one_memory_limit() {
        let capacity = Arc::new(RequestCapacity::default());
        let message = || MessageMemory::new(Arc::clone(&capacity));
        let mut held = Vec::new();
        for _ in 0..LONG_BYTES / MAX_MESSAGE_BYTES {
            let mut long = message();
            assert!(long.try_grow_to(MAX_MESSAGE_BYTES / 2) && long.try_grow_to(MAX_MESSAGE_BYTES));
            held.push(long);
        }
        let mut other = message();
        assert!(other.try_grow_to(SHORT_BYTES) && !other.is_long());
        assert!(!other.try_grow_to(MAX_MESSAGE_BYTES));
        held.pop();
        assert!(other.try_grow_to(MAX_MESSAGE_BYTES));
    }
}
