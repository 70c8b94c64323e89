//! Locks on the resources that two runs must not use at the same time: sessions and, if configured, directories.
//!
//! The locks are in memory: one service runs all jobs of a machine that could collide.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use model::{AgentKind, JobId, SessionId};
use tokio::sync::OwnedMutexGuard;

/// A lockable resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum LockKey {
    Session(AgentKind, SessionId),
    Directory(PathBuf),
}

impl LockKey {
    /// Returns the key of a directory, however its path is spelled.
    pub fn directory(path: &Path) -> Self {
        Self::Directory(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
    }
}

/// One lock and its holder, which waiters can read.
#[derive(Debug, Default)]
struct LockEntry {
    lock: Arc<tokio::sync::Mutex<()>>,
    holder: Mutex<Option<JobId>>,
}

impl LockEntry {
    fn holder(&self) -> MutexGuard<'_, Option<JobId>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A held lock, until this is dropped.
#[derive(Debug)]
pub(crate) struct LockGuard {
    key: LockKey,
    entry: Arc<LockEntry>,
    _locked: OwnedMutexGuard<()>,
}

impl LockGuard {
    fn new(key: LockKey, job: JobId, entry: Arc<LockEntry>, locked: OwnedMutexGuard<()>) -> Self {
        *entry.holder() = Some(job);
        Self { key, entry, _locked: locked }
    }

    pub fn key(&self) -> &LockKey {
        &self.key
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // Before the mutex is unlocked: afterwards the next holder may have registered itself.
        *self.entry.holder() = None;
    }
}

/// The locks of all active jobs.
#[derive(Debug, Default)]
pub(crate) struct ResourceLocks(Mutex<HashMap<LockKey, Weak<LockEntry>>>);

impl ResourceLocks {
    /// Waits for a lock.
    pub async fn acquire(&self, key: LockKey, job: JobId) -> LockGuard {
        let entry = self.entry(&key);
        let locked = Arc::clone(&entry.lock).lock_owned().await;
        LockGuard::new(key, job, entry, locked)
    }

    /// Acquires a lock if it is free.
    pub fn try_acquire(&self, key: LockKey, job: JobId) -> Option<LockGuard> {
        let entry = self.entry(&key);
        let locked = Arc::clone(&entry.lock).try_lock_owned().ok()?;
        Some(LockGuard::new(key, job, entry, locked))
    }

    /// Returns the job that holds a lock.
    pub fn holder(&self, key: &LockKey) -> Option<JobId> {
        *self.entry(key).holder()
    }

    fn entry(&self, key: &LockKey) -> Arc<LockEntry> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(key).and_then(Weak::upgrade) {
            return entry;
        }
        entries.retain(|_, entry| entry.strong_count() > 0);
        let entry = Arc::new(LockEntry::default());
        entries.insert(key.clone(), Arc::downgrade(&entry));
        entry
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
    async fn lock_excludes_only_holders_of_the_same_key() {
        let locks = ResourceLocks::default();
        let (one, other) = (LockKey::Directory("/a".into()), LockKey::Directory("/b".into()));
        let first = locks.acquire(one.clone(), job(1)).await;
        assert!(locks.try_acquire(one.clone(), job(2)).is_none());
        assert_eq!(locks.holder(&one), Some(job(1)));
        assert!(locks.try_acquire(other, job(2)).is_some());
        drop(first);
        assert_eq!(locks.holder(&one), None);
        assert!(locks.try_acquire(one, job(2)).is_some());
    }

    #[test]
    fn released_locks_are_forgotten() {
        let locks = ResourceLocks::default();
        for number in 0..100 {
            drop(locks.try_acquire(LockKey::Directory(format!("/{number}").into()), job(3)));
        }
        assert_eq!(locks.0.lock().unwrap().len(), 1);
    }
}
