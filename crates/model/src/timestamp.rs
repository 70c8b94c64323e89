//! A moment, as every record writes it down.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment in milliseconds since 1970. Made by whoever has a clock; this crate has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last moment that can be told: the id of a job has 48 bits for it (the year 10889).
    pub const MAX: Self = Self((1 << 48) - 1);

    /// That moment, or [`Timestamp::MAX`] when it is later.
    pub fn from_millis(millis: u64) -> Self {
        Self(millis.min(Self::MAX.0))
    }

    /// In milliseconds since 1970.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// That much later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(millis(span)))
    }

    /// That much earlier, and never before 1970.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// How long ago `earlier` was; nothing when a clock was set back in between.
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
    fn no_sum_leaves_the_range_that_an_id_can_hold() {
        assert_eq!(Timestamp::from_millis(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_millis(5).plus(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_millis(5).minus(Duration::from_secs(1)), Timestamp::from_millis(0));
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_negative_time() {
        let (earlier, later) = (Timestamp::from_millis(10), Timestamp::from_millis(25));
        assert_eq!(later.since(earlier), Duration::from_millis(15));
        assert_eq!(earlier.since(later), Duration::ZERO);
    }
}
