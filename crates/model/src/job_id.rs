//! Ids of jobs and exchanges: version 7 UUIDs, which sort by creation time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

use crate::Timestamp;

/// A malformed id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not {what}", given.escape_debug())]
pub struct BadJobId {
    what: &'static str,
    given: String,
}

impl BadJobId {
    fn new(what: &'static str, given: &str) -> Self {
        Self { what, given: given.chars().take(64).collect() }
    }

    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        "pass a job id such as 01a1dde2-642d-7027-95b7-67d9f29d1836, or at least its first four characters"
    }
}

macro_rules! time_ordered_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Returns an id from a timestamp and random bytes. Ids with equal timestamps sort by the bytes, most significant
            /// first.
            pub fn new(at: Timestamp, random: [u8; 10]) -> Self {
                Self(Builder::from_unix_timestamp_millis(at.as_millis(), &random).into_uuid())
            }

            /// Returns the UUID.
            pub fn as_uuid(self) -> Uuid {
                self.0
            }

            /// Returns the id with this UUID, of any version.
            pub fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = BadJobId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(text).map(Self).map_err(|_| BadJobId::new($what, text))
            }
        }
    };
}

time_ordered_id! {
    /// The id of a job.
    JobId, "a job id"
}

time_ordered_id! {
    /// The id of an exchange.
    ExchangeId, "an exchange id"
}

impl JobId {
    /// Returns the lowest id with this timestamp, for range queries by time.
    pub fn first_of(at: Timestamp) -> Self {
        Self::new(at, [0; 10])
    }
}

/// A prefix of a job id, as users type it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobIdPrefix {
    first: Uuid,
    last: Uuid,
}

impl JobIdPrefix {
    const MIN_DIGITS: usize = 4;

    /// Returns the first and the last id with this prefix, inclusive.
    pub fn range(&self) -> (JobId, JobId) {
        (JobId(self.first), JobId(self.last))
    }
}

impl FromStr for JobIdPrefix {
    type Err = BadJobId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadJobId::new("the beginning of a job id", text);
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        if !(Self::MIN_DIGITS..=32).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_hexdigit())
        {
            return Err(bad());
        }
        let filled = |with: &str| Uuid::parse_str(&format!("{digits}{}", with.repeat(32 - digits.len())));
        Ok(Self { first: filled("0").map_err(|_| bad())?, last: filled("f").map_err(|_| bad())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_then_by_bytes() {
        let at = |millis, random| JobId::new(Timestamp::from_millis(millis), [random; 10]);
        assert!(at(1, 255) < at(2, 0));
        assert!(at(2, 0) < at(2, 1));
        assert!(at(2, 0).to_string() < at(2, 1).to_string(), "as text, too");
        assert_eq!(at(7, 9).as_uuid().get_version_num(), 7);
    }

    #[test]
    fn id_round_trips_through_text() {
        let id = JobId::new(Timestamp::from_millis(1_700_000_000_000), [3; 10]);
        assert_eq!(id.to_string().parse(), Ok(id));
        let error = "job\n1".parse::<JobId>().unwrap_err();
        assert_eq!(error.to_string(), "`job\\n1` is not a job id");
    }

    #[test]
    fn prefix_range_contains_exactly_matching_ids() {
        let id: JobId = "01a1dde2-642d-7027-95b7-67d9f29d1836".parse().unwrap();
        for text in ["01a1", "01a1dde2-6", "01A1DDE2-642d-7027", "01a1dde2-642d-7027-95b7-67d9f29d1836"] {
            let (first, last) = text.parse::<JobIdPrefix>().unwrap().range();
            assert!(first <= id && id <= last, "{text}");
        }
        let (first, last) = "01a1dde3".parse::<JobIdPrefix>().unwrap().range();
        assert!(!(first <= id && id <= last));
    }

    #[test]
    fn malformed_id_prefix_is_rejected() {
        for bad in ["", "01a", "zzzz", "%' OR 1", "01a1dde2-642d-7027-95b7-67d9f29d1836aa"] {
            assert!(bad.parse::<JobIdPrefix>().is_err(), "{bad:?}");
        }
    }
}
