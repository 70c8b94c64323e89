//! The clock of the store: the system's, or one that a test sets.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use model::Timestamp;

/// Returns the current time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Returns the system clock. The clocks of daemons that share a store must agree within a fraction of their
    /// leases.
    pub fn system() -> Self {
        Self(Arc::new(|| {
            let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_millis(0).plus(since_1970)
        }))
    }

    /// Returns the current time.
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

/// A clock that only moves when a test moves it.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock that is stopped at a time.
    pub fn at(moment: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(moment.as_millis())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, span: Duration) {
        let later = self.now().plus(span);
        self.0.store(later.as_millis(), Ordering::SeqCst);
    }

    /// Sets the clock, possibly back.
    pub fn set(&self, moment: Timestamp) {
        self.0.store(moment.as_millis(), Ordering::SeqCst);
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    /// Returns a handle for a store. It follows this clock.
    pub fn clock(&self) -> Clock {
        let source = self.clone();
        Clock(Arc::new(move || source.now()))
    }
}
