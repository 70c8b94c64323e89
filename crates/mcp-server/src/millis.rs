//! A duration in the arguments of a tool: milliseconds, or a number with a unit.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};

use render::duration;

/// Milliseconds, written as `600000`, `"600000"` or `"10m"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Millis(pub u64);

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MillisVisitor)
    }
}

struct MillisVisitor;

impl Visitor<'_> for MillisVisitor {
    type Value = Millis;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("milliseconds or a duration such as \"10m\"")
    }

    fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Millis, E> {
        Ok(Millis(millis))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Millis, E> {
        let text = text.trim();
        if let Ok(millis) = text.parse() {
            return Ok(Millis(millis));
        }
        let duration = duration::parse(text).map_err(E::custom)?;
        Ok(Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl JsonSchema for Millis {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Millis".into()
    }

    /// Lists the number first: hosts without support for type unions use the first type.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+(ms|s|m|h|d)?$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_and_durations_are_parsed_as_milliseconds() {
        for (given, millis) in [
            (json!(600_000), 600_000),
            (json!("600000"), 600_000),
            (json!("10m"), 600_000),
            (json!("90s"), 90_000),
            (json!(0), 0),
        ] {
            assert_eq!(serde_json::from_value::<Millis>(given).unwrap(), Millis(millis));
        }
        for given in [json!(-1), json!(0.5), json!("soon"), json!("1.5h"), json!(true), json!(["1s"])] {
            assert!(serde_json::from_value::<Millis>(given.clone()).is_err(), "{given}");
        }
    }
}
