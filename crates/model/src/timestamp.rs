//! The timestamp of all records.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970. Callers pass it in: this crate reads no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The largest timestamp: job ids have 48 bits for it (year 10889).
    pub const MAX: Self = Self((1 << 48) - 1);

    /// Returns the timestamp, at most [`Timestamp::MAX`].
    pub fn from_millis(millis: u64) -> Self {
        Self(millis.min(Self::MAX.0))
    }

    /// Returns the milliseconds since 1970.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// Adds a duration.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(millis(span)))
    }

    /// Subtracts a duration, down to 1970.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// Returns the duration since `earlier`, or zero if the clock was set back.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_arithmetic_saturates_at_id_range() {
        assert_eq!(Timestamp::from_millis(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_millis(5).plus(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_millis(5).minus(Duration::from_secs(1)), Timestamp::from_millis(0));
    }

    #[test]
    fn clock_set_back_yields_zero_duration() {
        let (earlier, later) = (Timestamp::from_millis(10), Timestamp::from_millis(25));
        assert_eq!(later.since(earlier), Duration::from_millis(15));
        assert_eq!(earlier.since(later), Duration::ZERO);
    }
}
