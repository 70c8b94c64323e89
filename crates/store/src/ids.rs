//! Generates the ids of jobs and exchanges in ascending order.

use std::sync::{Mutex, PoisonError};

use model::{ExchangeId, JobId, Timestamp};

use crate::StoreError;

/// Generates ids that ascend within this process, even if the clock is set back.
#[derive(Debug, Default)]
pub struct IdGenerator {
    last: Mutex<(Timestamp, u128)>,
}

impl IdGenerator {
    pub fn next_job_id(&self, now: Timestamp) -> Result<JobId, StoreError> {
        let (at, random) = self.next_parts(now)?;
        Ok(JobId::new(at, random))
    }

    pub fn next_exchange_id(&self, now: Timestamp) -> Result<ExchangeId, StoreError> {
        let (at, random) = self.next_parts(now)?;
        Ok(ExchangeId::new(at, random))
    }

    /// Returns the time and the counter of the next id. Two ids of the same millisecond share the time; the second
    /// has a higher counter.
    fn next_parts(&self, now: Timestamp) -> Result<(Timestamp, [u8; 10]), StoreError> {
        let random = random_bits()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = if now > last.0 {
            (now, random)
        } else {
            // A random increment, so that one id does not reveal the next.
            (last.0, last.1 + 1 + (random & 0xff_ffff))
        };
        let mut bytes = [0; 10];
        bytes.copy_from_slice(&skip_uuid_bits(last.1).to_be_bytes()[6..]);
        Ok((last.0, bytes))
    }
}

/// Spreads a 74-bit counter over the 80 bits of an id, around the 4 version bits and the 2 variant bits that the UUID
/// overwrites. Otherwise ids that differ only in those bits would collide.
fn skip_uuid_bits(counter: u128) -> u128 {
    let (high, low) = ((counter >> 62) & 0xfff, counter & ((1 << 62) - 1));
    (high << 64) | low
}

/// Returns 72 random bits: two fewer than the counter has, so that many ids in one millisecond do not overflow it.
fn random_bits() -> Result<u128, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes[7..]).map_err(|error| StoreError::NoRandomness(Box::new(error)))?;
    Ok(u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_even_if_clock_is_set_back() {
        let ids = IdGenerator::default();
        let moments = [5, 5, 5, 3, 3, 6, 6, 1];
        let made: Vec<JobId> = moments
            .iter()
            .cycle()
            .take(10_000)
            .map(|millis| ids.next_job_id(Timestamp::from_millis(*millis)).unwrap())
            .collect();
        assert!(made.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn counter_bits_survive_uuid_version_and_variant() {
        for bit in 0..74 {
            let bytes = |counter| {
                let mut bytes = [0; 10];
                bytes.copy_from_slice(&skip_uuid_bits(counter).to_be_bytes()[6..]);
                JobId::new(Timestamp::from_millis(1), bytes)
            };
            assert!(bytes(1 << bit) > bytes((1 << bit) - 1), "bit {bit}");
        }
    }
}
