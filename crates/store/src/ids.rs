//! Makes the ids of jobs and exchanges, so that the order of the ids is the order in which they were made.

use std::sync::{Mutex, PoisonError};

use model::{ExchangeId, JobId, Timestamp};

use crate::StoreError;

/// A source of ids that never go backwards within this process, even when the clock does.
#[derive(Debug, Default)]
pub struct Ids {
    last: Mutex<(Timestamp, u128)>,
}

impl Ids {
    pub fn job(&self, now: Timestamp) -> Result<JobId, StoreError> {
        let (at, random) = self.next(now)?;
        Ok(JobId::new(at, random))
    }

    pub fn exchange(&self, now: Timestamp) -> Result<ExchangeId, StoreError> {
        let (at, random) = self.next(now)?;
        Ok(ExchangeId::new(at, random))
    }

    /// Two ids of one millisecond would be in random order: the second is the first plus a little.
    fn next(&self, now: Timestamp) -> Result<(Timestamp, [u8; 10]), StoreError> {
        let fresh = random()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = if now > last.0 {
            (now, fresh)
        } else {
            // By how much is random too, so that one id does not tell the next.
            (last.0, last.1 + 1 + (fresh & 0xff_ffff))
        };
        let mut bytes = [0; 10];
        bytes.copy_from_slice(&spread(last.1).to_be_bytes()[6..]);
        Ok((last.0, bytes))
    }
}

/// A UUID overwrites 4 bits at the front (version) and 2 in the middle (variant) of these 80 with its own: the counter of 74
/// bits goes around them, or ids that differ only there would be equal.
fn spread(counter: u128) -> u128 {
    let (high, low) = ((counter >> 62) & 0xfff, counter & ((1 << 62) - 1));
    (high << 64) | low
}

/// 72 bits: two less than the counter has, so that a moment with very many ids does not run over.
fn random() -> Result<u128, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes[7..]).map_err(|error| StoreError::NoRandomness(Box::new(error)))?;
    Ok(u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_within_a_millisecond_and_when_the_clock_goes_back() {
        let ids = Ids::default();
        let moments = [5, 5, 5, 3, 3, 6, 6, 1];
        let made: Vec<JobId> = moments
            .iter()
            .cycle()
            .take(10_000)
            .map(|millis| ids.job(Timestamp::from_millis(*millis)).unwrap())
            .collect();
        assert!(made.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn no_bit_of_the_counter_is_lost_under_version_and_variant() {
        for bit in 0..74 {
            let bytes = |counter| {
                let mut bytes = [0; 10];
                bytes.copy_from_slice(&spread(counter).to_be_bytes()[6..]);
                JobId::new(Timestamp::from_millis(1), bytes)
            };
            assert!(bytes(1 << bit) > bytes((1 << bit) - 1), "bit {bit}");
        }
    }
}
