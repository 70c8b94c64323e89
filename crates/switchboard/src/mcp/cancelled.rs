//! Which requests their client has cancelled.
//!
//! rmcp ends a request in the same way when its client cancels it and when its connection ends, and only the former may cancel a job.
//! Kept for one connection, and only the newest: who asks does so at the moment at which its request is ended.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::model::RequestId;
use tokio::sync::Notify;

/// How many are kept. Many more than can be cancelled between the end of a request and the question why.
const KEPT: usize = 1024;

/// The requests of one connection that were cancelled.
#[derive(Debug, Default)]
pub(crate) struct Cancelled {
    /// The hashes of their ids: an id may be as long as a message.
    named: Mutex<VecDeque<u64>>,
    hasher: RandomState,
    changed: Notify,
}

impl Cancelled {
    /// Takes down that a client has cancelled a request.
    pub fn name(&self, request: &RequestId) {
        let mut named = self.lock();
        if named.len() == KEPT {
            named.pop_front();
        }
        named.push_back(self.hasher.hash_one(request));
        drop(named);
        self.changed.notify_waiters();
    }

    /// Waits until its client has cancelled that request.
    pub async fn names(&self, request: &RequestId) {
        loop {
            // Before the look: what is named between the two is heard.
            let changed = self.changed.notified();
            if self.take(request) {
                return;
            }
            changed.await;
        }
    }

    fn take(&self, request: &RequestId) -> bool {
        let wanted = self.hasher.hash_one(request);
        let mut named = self.lock();
        let at = named.iter().position(|named| *named == wanted);
        at.and_then(|at| named.remove(at)).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn only_what_was_named_is_cancelled_and_old_names_are_forgotten() {
        let cancelled = Cancelled::default();
        let is_cancelled = |id: i64| cancelled.names(&RequestId::Number(id)).now_or_never().is_some();
        cancelled.name(&RequestId::Number(1));
        assert!(!is_cancelled(2));
        assert!(cancelled.names(&RequestId::String("1".into())).now_or_never().is_none());
        assert!(is_cancelled(1));
        assert!(!is_cancelled(1), "it was told once");
        for id in 0..=i64::try_from(KEPT).unwrap() {
            cancelled.name(&RequestId::Number(id));
        }
        assert!(!is_cancelled(0) && is_cancelled(1));
    }
}
