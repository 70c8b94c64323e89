//! What a run may spend before it is ended, and the names of the waits that end it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a run may spend. A limit that is `None` never ends a run.
///
/// Times are measured on the monotonic clock, which stands still while the machine sleeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How long the agent may stay silent before its first byte on either stream; without it, as long as between two.
    #[serde(rename = "start_ms", with = "opt_millis")]
    pub start: Option<Duration>,
    /// How long it may stay silent between two bytes.
    #[serde(rename = "idle_ms", with = "opt_millis")]
    pub idle: Option<Duration>,
    /// How long it may take in all.
    #[serde(rename = "wall_ms", with = "opt_millis")]
    pub wall: Option<Duration>,
    /// How many bytes it may print on both streams together.
    pub output_bytes: Option<u64>,
    /// How long a process that was asked to end (SIGTERM) has before it is made to (SIGKILL).
    #[serde(rename = "grace_ms", with = "millis")]
    pub grace: Duration,
}

impl Default for Limits {
    /// An hour, 1 GiB of output, 5 s of grace; silence alone ends nothing.
    fn default() -> Self {
        Self {
            start: None,
            idle: None,
            wall: Some(Duration::from_hours(1)),
            output_bytes: Some(1 << 30),
            grace: Duration::from_secs(5),
        }
    }
}

/// The name of the wait that ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// No byte came at all for [`Limits::start`].
    Start,
    /// No byte came for [`Limits::idle`] after the last one, or after the start where that has no limit of its own.
    Idle,
    /// The run took longer than [`Limits::wall`].
    Wall,
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Idle => "idle",
            Self::Wall => "wall",
        })
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

mod millis {
    use super::{Duration, whole_millis};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(whole_millis(*value))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

mod opt_millis {
    use super::{Duration, whole_millis};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "the signature serde's `with` asks for")]
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(whole_millis).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_in_milliseconds_and_read_back() {
        let limits = Limits { idle: Some(Duration::from_millis(1500)), ..Limits::default() };
        let json = serde_json::to_string(&limits).unwrap();
        assert_eq!(
            json,
            r#"{"start_ms":null,"idle_ms":1500,"wall_ms":3600000,"output_bytes":1073741824,"grace_ms":5000}"#
        );
        assert_eq!(serde_json::from_str::<Limits>(&json).unwrap(), limits);
    }

    #[test]
    fn a_misspelt_limit_is_refused_instead_of_being_no_limit() {
        let error = serde_json::from_str::<Limits>(r#"{"wal_ms":1000}"#).unwrap_err();
        assert!(error.to_string().contains("wal_ms"), "{error}");
    }
}
