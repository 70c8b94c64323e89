//! Records the requests that a client has cancelled.
//!
//! rmcp ends a request in the same way when its client cancels it and when its connection closes, but only a cancellation may cancel a
//! job. Each connection keeps its most recent cancellations: a handler asks for one as soon as its request ends.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::model::RequestId;
use tokio::sync::Notify;

/// Maximum number of recorded cancellations. Far more than can arrive before a handler looks for its own.
const MAX_RECORDED: usize = 1024;

/// The cancelled requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct CancelledRequests {
    /// Hashes of the request ids: an id may be as long as a message.
    ids: Mutex<VecDeque<u64>>,
    hasher: RandomState,
    changed: Notify,
}

impl CancelledRequests {
    /// Records that the client has cancelled a request.
    pub fn record(&self, request: &RequestId) {
        let mut ids = self.lock();
        if ids.len() == MAX_RECORDED {
            ids.pop_front();
        }
        ids.push_back(self.hasher.hash_one(request));
        drop(ids);
        self.changed.notify_waiters();
    }

    /// Waits until the client has cancelled the request, and removes its record.
    pub async fn wait_for(&self, request: &RequestId) {
        loop {
            // Registered before the check, so that no notification between the two is lost.
            let changed = self.changed.notified();
            if self.remove(request) {
                return;
            }
            changed.await;
        }
    }

    fn remove(&self, request: &RequestId) -> bool {
        let target = self.hasher.hash_one(request);
        let mut ids = self.lock();
        let at = ids.iter().position(|id| *id == target);
        at.and_then(|at| ids.remove(at)).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn cancellation_is_matched_once_and_expires() {
        let cancelled = CancelledRequests::default();
        let is_cancelled = |id: i64| cancelled.wait_for(&RequestId::Number(id)).now_or_never().is_some();
        cancelled.record(&RequestId::Number(1));
        assert!(!is_cancelled(2));
        assert!(cancelled.wait_for(&RequestId::String("1".into())).now_or_never().is_none());
        assert!(is_cancelled(1));
        assert!(!is_cancelled(1), "it was consumed");
        for id in 0..=i64::try_from(MAX_RECORDED).unwrap() {
            cancelled.record(&RequestId::Number(id));
        }
        assert!(!is_cancelled(0) && is_cancelled(1));
    }
}
