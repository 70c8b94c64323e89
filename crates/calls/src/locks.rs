//! What two runs must not have at the same time: a conversation, and, when the operator says so, a folder.
//!
//! The locks are in memory: one desk runs everything that could collide on this machine.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use model::{AgentKind, JobId, SessionId};
use tokio::sync::OwnedMutexGuard;

/// What is locked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Session(AgentKind, SessionId),
    Folder(PathBuf),
}

/// One lock, and the job that has it: known also to those who wait.
#[derive(Debug, Default)]
struct Slot {
    lock: Arc<tokio::sync::Mutex<()>>,
    holder: Mutex<Option<JobId>>,
}

impl Slot {
    fn holder(&self) -> std::sync::MutexGuard<'_, Option<JobId>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held until it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    key: Key,
    slot: Arc<Slot>,
    _locked: OwnedMutexGuard<()>,
}

impl Guard {
    fn new(key: Key, job: JobId, slot: Arc<Slot>, locked: OwnedMutexGuard<()>) -> Self {
        *slot.holder() = Some(job);
        Self { key, slot, _locked: locked }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before it is unlocked: the next holder has not named itself yet.
        *self.slot.holder() = None;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<HashMap<Key, Weak<Slot>>>);

impl Locks {
    /// Waits until nobody else has it.
    pub async fn take(&self, key: Key, job: JobId) -> Guard {
        let slot = self.slot(&key);
        let locked = Arc::clone(&slot.lock).lock_owned().await;
        Guard::new(key, job, slot, locked)
    }

    /// Takes it if nobody has it.
    pub fn try_take(&self, key: Key, job: JobId) -> Option<Guard> {
        let slot = self.slot(&key);
        let locked = Arc::clone(&slot.lock).try_lock_owned().ok()?;
        Some(Guard::new(key, job, slot, locked))
    }

    /// Returns the job that has it.
    pub fn holder(&self, key: &Key) -> Option<JobId> {
        *self.slot(key).holder()
    }

    fn slot(&self, key: &Key) -> Arc<Slot> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(key).and_then(Weak::upgrade) {
            return slot;
        }
        // What nobody holds or waits for any more need not be remembered.
        slots.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::new(Slot::default());
        slots.insert(key.clone(), Arc::downgrade(&slot));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;

    fn job(number: u64) -> JobId {
        JobId::new(Timestamp::from_millis(number), [0; 10])
    }

    #[tokio::test]
    async fn the_second_waits_for_the_first_and_others_do_not() {
        let locks = Locks::default();
        let (one, other) = (Key::Folder("/a".into()), Key::Folder("/b".into()));
        let first = locks.take(one.clone(), job(1)).await;
        assert!(locks.try_take(one.clone(), job(2)).is_none());
        assert_eq!(locks.holder(&one), Some(job(1)));
        assert!(locks.try_take(other, job(2)).is_some());
        drop(first);
        assert_eq!(locks.holder(&one), None);
        assert!(locks.try_take(one, job(2)).is_some());
        for number in 0..100 {
            drop(locks.try_take(Key::Folder(format!("/{number}").into()), job(3)));
        }
        assert_eq!(locks.0.lock().unwrap().len(), 1, "what nobody has is forgotten");
    }
}
