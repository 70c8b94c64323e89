//! The name of one run, which no other process on the machine can guess.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

/// The unguessable name of one run.
///
/// It stands in the environment of the agent ([`RunId::VARIABLE`]) and is inherited by everything the agent starts, so the
/// survivors of a killed supervisor can be told from every other process by identity and not by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(Uuid);

impl RunId {
    /// The environment variable of the agent that carries the id.
    pub const VARIABLE: &'static str = "SWITCHBOARD_RUN_ID";

    /// Makes an id of 16 bytes, which the caller took from a secure source of randomness.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(Builder::from_random_bytes(bytes).into_uuid())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is not a run id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a run id (a UUID is expected)")]
pub struct BadRunId(String);

impl FromStr for RunId {
    type Err = BadRunId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self).map_err(|_| BadRunId(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_from_its_text() {
        let id = RunId::from_random([7; 16]);
        assert_eq!(id.to_string().parse::<RunId>(), Ok(id));
    }

    #[test]
    fn what_is_no_uuid_is_refused_by_name() {
        let error = "claude".parse::<RunId>().unwrap_err();
        assert_eq!(error.to_string(), "`claude` is not a run id (a UUID is expected)");
    }
}
