//! The limits of a run, and the names of its deadlines.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The limits of a run. `None` means no limit.
///
/// Durations are measured on the monotonic clock, which stops during suspend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The timeout until the first byte on stdout or stderr. `None`: the idle timeout applies.
    #[serde(rename = "start_ms", with = "opt_millis")]
    pub start: Option<Duration>,
    /// The timeout between two bytes.
    #[serde(rename = "idle_ms", with = "opt_millis")]
    pub idle: Option<Duration>,
    /// The timeout of the whole run.
    #[serde(rename = "wall_ms", with = "opt_millis")]
    pub wall: Option<Duration>,
    /// The limit of stdout and stderr together.
    pub output_bytes: Option<u64>,
    /// The time between SIGTERM and SIGKILL.
    #[serde(rename = "grace_ms", with = "millis")]
    pub grace: Duration,
}

impl Default for Limits {
    /// One hour, 1 GiB of output, 5 s of grace, no idle timeout.
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

/// The deadline that stopped a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deadline {
    /// No first byte within [`Limits::start`].
    Start,
    /// No byte within [`Limits::idle`] of the last one, or of the start if [`Limits::start`] is `None`.
    Idle,
    /// The run exceeded [`Limits::wall`].
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

impl Deadline {
    /// Describes a run that this deadline stopped, with the timeout if it is known.
    pub fn describe(self, limits: Option<&Limits>) -> String {
        let timeout = limits.and_then(|limits| match self {
            Self::Start => limits.start,
            Self::Idle => limits.idle,
            Self::Wall => limits.wall,
        });
        match (self, timeout.map(format_timeout)) {
            (Self::Start, Some(timeout)) => format!("no output within {timeout} of the start"),
            (Self::Start, None) => "no output after the start".to_owned(),
            (Self::Idle, Some(timeout)) => format!("no output for {timeout}"),
            (Self::Idle, None) => "no output until the idle timeout".to_owned(),
            (Self::Wall, Some(timeout)) => format!("the time limit of {timeout} expired"),
            (Self::Wall, None) => "the time limit expired".to_owned(),
        }
    }
}

/// Formats a timeout in the largest unit that divides it, so that it reads as it was set.
fn format_timeout(timeout: Duration) -> String {
    let millis = whole_millis(timeout);
    match millis {
        0 => "0 ms".to_owned(),
        _ if millis.is_multiple_of(3_600_000) => format!("{} h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{} min", millis / 60_000),
        _ if millis.is_multiple_of(1000) => format!("{} s", millis / 1000),
        _ => format!("{millis} ms"),
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
    fn limits_serialize_in_milliseconds() {
        let limits = Limits { idle: Some(Duration::from_millis(1500)), ..Limits::default() };
        let json = serde_json::to_string(&limits).unwrap();
        assert_eq!(
            json,
            r#"{"start_ms":null,"idle_ms":1500,"wall_ms":3600000,"output_bytes":1073741824,"grace_ms":5000}"#
        );
        assert_eq!(serde_json::from_str::<Limits>(&json).unwrap(), limits);
    }

    #[test]
    fn unknown_limit_is_rejected() {
        let error = serde_json::from_str::<Limits>(r#"{"wal_ms":1000}"#).unwrap_err();
        assert!(error.to_string().contains("wal_ms"), "{error}");
    }
}
