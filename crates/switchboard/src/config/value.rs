//! The types of keys, parsed from TOML and from text.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use toml::de::DeValue;

use render::duration;

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Path(PathBuf),
    Count(u64),
    Flag(bool),
    Time(Duration),
    /// Disabled by `off`.
    Off,
    Texts(Vec<String>),
}

/// The type of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    Path,
    Address,
    Choice(&'static [&'static str]),
    Count {
        least: u64,
        most: u64,
        may_be_off: bool,
    },
    Flag,
    Time {
        may_be_off: bool,
    },
    Texts,
    /// Absolute paths, stored as strings; neither `/` nor the home directory or its parents.
    Paths,
}

const OFF: &str = "off";

impl ValueKind {
    /// Parses a TOML value. The error describes the value that was found instead.
    pub fn parse_toml(self, value: &DeValue<'_>, user_home: Option<&Path>) -> Result<Value, String> {
        let found = || describe_value(value);
        match (self, value) {
            (Self::Count { least, most, may_be_off }, _) => match value {
                DeValue::Integer(number) => {
                    let parsed = u64::from_str_radix(number.as_str(), number.radix()).ok();
                    let in_range = parsed.filter(|number| (least..=most).contains(number));
                    in_range.map(Value::Count).ok_or_else(|| format!("`{}`", number.as_str()))
                }
                DeValue::String(text) if may_be_off && text == OFF => Ok(Value::Off),
                _ => Err(found()),
            },
            (Self::Flag, DeValue::Boolean(flag)) => Ok(Value::Flag(*flag)),
            (Self::Texts, DeValue::Array(items)) => {
                let text = |item: &toml::Spanned<DeValue<'_>>| {
                    item.get_ref().as_str().map(str::to_owned).ok_or_else(|| describe_value(item.get_ref()))
                };
                items.iter().map(text).collect::<Result<_, _>>().map(Value::Texts)
            }
            (Self::Paths, DeValue::Array(items)) => {
                let text = |item: &toml::Spanned<DeValue<'_>>| {
                    let text = item.get_ref().as_str().ok_or_else(|| describe_value(item.get_ref()))?;
                    parse_partial_path(text, user_home)
                };
                items.iter().map(text).collect::<Result<_, _>>().map(Value::Texts)
            }
            (Self::Flag | Self::Texts | Self::Paths, _) => Err(found()),
            (_, DeValue::String(text)) => self.parse_text(text, user_home),
            _ => Err(found()),
        }
    }

    /// Parses the text of a variable or an option. Lists are separated by commas.
    pub fn parse_text(self, text: &str, user_home: Option<&Path>) -> Result<Value, String> {
        let found = || format!("`{text}`");
        match self {
            Self::Text if text.trim().is_empty() => Err("an empty string".to_owned()),
            Self::Text => Ok(Value::Text(text.to_owned())),
            Self::Path => parse_path(text, user_home).map(Value::Path).ok_or_else(found),
            Self::Address => {
                text.parse::<SocketAddr>().map(|_| Value::Text(text.to_owned())).map_err(|_| found())
            }
            Self::Choice(known) => {
                let chosen = known.iter().find(|known| text.eq_ignore_ascii_case(known));
                chosen.map(|word| Value::Text((*word).to_owned())).ok_or_else(found)
            }
            Self::Count { may_be_off: true, .. } | Self::Time { may_be_off: true } if text == OFF => {
                Ok(Value::Off)
            }
            Self::Count { least, most, .. } => {
                let inside = text.parse().ok().filter(|number| (least..=most).contains(number));
                inside.map(Value::Count).ok_or_else(found)
            }
            Self::Flag => text.parse().map(Value::Flag).map_err(|_| found()),
            Self::Time { .. } => duration::parse(text).map(Value::Time).map_err(|_| found()),
            Self::Texts => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(Value::Texts(items.map(str::to_owned).collect()))
            }
            Self::Paths => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                items
                    .map(|item| parse_partial_path(item, user_home))
                    .collect::<Result<_, _>>()
                    .map(Value::Texts)
            }
        }
    }
}

/// Parses an absolute path, or one that starts with `~/`.
pub fn parse_path(text: &str, user_home: Option<&Path>) -> Option<PathBuf> {
    let path = match text.strip_prefix("~/") {
        Some(rest) => user_home?.join(rest),
        None => PathBuf::from(text),
    };
    path.is_absolute().then_some(path)
}

/// Parses a path that does not contain the home directory.
fn parse_partial_path(text: &str, user_home: Option<&Path>) -> Result<String, String> {
    let found = || format!("`{text}`");
    let path = parse_path(text, user_home).ok_or_else(found)?;
    let has_dots = path.components().any(|part| part == std::path::Component::ParentDir);
    let is_too_much = path.parent().is_none() || user_home.is_some_and(|home| home.starts_with(&path));
    if has_dots || is_too_much {
        return Err(found());
    }
    path.into_os_string().into_string().map_err(|_| found())
}

fn describe_value(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string `{}`", text.chars().take(100).collect::<String>()),
        DeValue::Boolean(flag) => format!("`{flag}`"),
        DeValue::Integer(number) => format!("the number `{}`", number.as_str()),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
        other => format!("a {}", other.type_str()),
    }
}

/// Describes the type in error messages and in the reference.
impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("a string"),
            Self::Path => f.write_str("a path that starts with `/` or `~/`"),
            Self::Address => f.write_str("an IP address with a port"),
            Self::Choice(known) => write!(f, "one of {}", quoted_words(known)),
            Self::Count { least, most: u64::MAX, may_be_off } => {
                write!(f, "a number of at least {least}{}", or_off(*may_be_off))
            }
            Self::Count { least, most, may_be_off } => {
                write!(f, "a number from {least} to {most}{}", or_off(*may_be_off))
            }
            Self::Flag => f.write_str("`true` or `false`"),
            Self::Time { may_be_off } => write!(f, "a duration such as `\"90s\"`{}", or_off(*may_be_off)),
            Self::Texts => f.write_str("a list of strings"),
            Self::Paths => f.write_str(
                "a list of paths that start with `/` or `~/`; not `/` or the home directory itself",
            ),
        }
    }
}

fn or_off(may_be: bool) -> &'static str {
    if may_be { ", or `\"off\"`" } else { "" }
}

fn quoted_words(words: &[&str]) -> String {
    words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
}

/// Formats the value as TOML.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        match self {
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Path(path) => f.write_str(&quoted(&path.to_string_lossy())),
            Self::Count(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Time(time) => f.write_str(&quoted(&duration::format_exact(*time))),
            Self::Off => f.write_str("\"off\""),
            Self::Texts(items) => {
                let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
                write!(f, "[{}]", items.join(", "))
            }
        }
    }
}

/// Serializes the value as JSON; a duration is a string.
impl Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Path(path) => serializer.serialize_str(&path.to_string_lossy()),
            Self::Count(number) => serializer.serialize_u64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Time(time) => serializer.serialize_str(&duration::format_exact(*time)),
            Self::Off => serializer.serialize_str(OFF),
            Self::Texts(items) => items.serialize(serializer),
        }
    }
}
