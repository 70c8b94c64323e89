//! The id of a run, which no other process can guess.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

/// The random id of a run.
///
/// Every process of the run inherits it in its environment ([`RunId::VARIABLE`]), so the survivors of a killed supervisor are
/// identified by id and not by process name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(Uuid);

impl RunId {
    /// The environment variable with the id.
    pub const VARIABLE: &'static str = "SWITCHBOARD_RUN_ID";

    /// Returns the id with these bytes. They must come from a cryptographic random source.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(Builder::from_random_bytes(bytes).into_uuid())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A malformed run id.
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
    fn id_round_trips_through_text() {
        let id = RunId::from_random([7; 16]);
        assert_eq!(id.to_string().parse::<RunId>(), Ok(id));
    }

    #[test]
    fn malformed_run_id_is_rejected() {
        let error = "claude".parse::<RunId>().unwrap_err();
        assert_eq!(error.to_string(), "`claude` is not a run id (a UUID is expected)");
    }
}
