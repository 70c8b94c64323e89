//! The time that the store goes by: the machine's, or one that a test turns by hand.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use model::Timestamp;

/// Tells the time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The machine's own. Daemons that share a store are expected to agree within a fraction of their leases.
    pub fn system() -> Self {
        Self(Arc::new(|| {
            let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_millis(0).plus(since_1970)
        }))
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// A clock that moves only when it is told to.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that stands at that moment.
    pub fn at(moment: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(moment.as_millis())))
    }

    /// Lets that much time pass.
    pub fn advance(&self, span: Duration) {
        let later = self.now().plus(span);
        self.0.store(later.as_millis(), Ordering::SeqCst);
    }

    /// Sets it, be it back.
    pub fn set(&self, moment: Timestamp) {
        self.0.store(moment.as_millis(), Ordering::SeqCst);
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    /// The clock as a store takes it. It moves with this one.
    pub fn clock(&self) -> Clock {
        let own = self.clone();
        Clock(Arc::new(move || own.now()))
    }
}
