//! Classifies MCP messages without parsing them completely.
//!
//! Lines are forwarded byte for byte; only the request key of a tool call is added. The server reports invalid messages.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The field of `params._meta` that contains the request key of a tool call. A server that receives the same key again returns the same
/// job.
pub const REQUEST_KEY_FIELD: &str = "switchboard/request";

/// The kind of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpMessage {
    /// A request.
    Request { id: String, method: String },
    /// A notification. `cancels` is the request that a cancellation names.
    Notification { method: String, cancels: Option<String> },
    /// A reply.
    Reply { id: String },
    /// A batch, or an invalid message.
    Other,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Cancelled<'a> {
    #[serde(borrow, rename = "requestId")]
    request_id: &'a RawValue,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(default, borrow, rename = "_meta", deserialize_with = "present_or_null")]
    meta: Option<&'a RawValue>,
}

/// Deserializes a field that is present, including `null`: a duplicate field would be an error.
fn present_or_null<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(default, borrow, rename = "switchboard/request", deserialize_with = "present_or_null")]
    request_key: Option<&'a RawValue>,
}

/// Parses the envelope of a single message. Arrays are excluded: serde would accept one for the struct.
fn parse_envelope(line: &[u8]) -> Option<Envelope<'_>> {
    line.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(line).ok())?
}

/// Returns the kind of a message.
pub fn classify(line: &[u8]) -> McpMessage {
    let Some(top) = parse_envelope(line) else { return McpMessage::Other };
    if top.id.is_some_and(|id| !is_valid_id(id)) {
        return McpMessage::Other;
    }
    match (top.id.map(normalize_id), top.method) {
        (Some(id), Some(method)) => McpMessage::Request { id, method: method.into_owned() },
        (None, Some(method)) => {
            let cancels = (method == "notifications/cancelled")
                .then(|| serde_json::from_str::<Cancelled<'_>>(top.params?.get()).ok())
                .flatten()
                .map(|cancelled| normalize_id(cancelled.request_id));
            McpMessage::Notification { method: method.into_owned(), cancels }
        }
        (Some(id), None) => McpMessage::Reply { id },
        (None, None) => McpMessage::Other,
    }
}

/// Returns whether an id is a string or an integer. The server replies to others without an id.
fn is_valid_id(id: &RawValue) -> bool {
    id.get().starts_with('"') || id.get().parse::<i64>().is_ok()
}

/// Normalizes an id, so that a reply is matched regardless of its spelling.
fn normalize_id(raw: &RawValue) -> String {
    match serde_json::from_str::<serde_json::Value>(raw.get()) {
        Ok(value) => value.to_string(),
        Err(_) => raw.get().to_owned(),
    }
}

/// Adds the request key to a request whose parameters are an object, unless the host has set one.
pub fn add_request_key(line: &mut Vec<u8>, key: &str) {
    if let Some((range, added)) = find_insertion(line, key) {
        line.splice(range, added.into_bytes());
    }
}

/// Returns the range to replace and the replacement.
fn find_insertion(line: &[u8], key: &str) -> Option<(std::ops::Range<usize>, String)> {
    let params = parse_envelope(line)?.params?.get();
    if !params.starts_with('{') {
        return None;
    }
    let Params { meta } = serde_json::from_str(params).ok()?;
    let offset = |part: &str| part.as_ptr() as usize - line.as_ptr() as usize;
    let field = format!("\"{REQUEST_KEY_FIELD}\":\"{key}\"");
    // The first field of a non-empty object needs a comma after it.
    let comma = |object: &str| if object[1..].trim_start().starts_with('}') { "" } else { "," };
    match meta.map(RawValue::get) {
        Some(meta) if meta.starts_with('{') => {
            let Meta { request_key: None } = serde_json::from_str(meta).ok()? else { return None };
            let at = offset(meta) + 1;
            Some((at..at, format!("{field}{}", comma(meta))))
        }
        Some(null @ "null") => {
            let at = offset(null);
            Some((at..at + "null".len(), format!("{{{field}}}")))
        }
        Some(_) => None,
        None => {
            let at = offset(params) + 1;
            Some((at..at, format!("\"_meta\":{{{field}}}{}", comma(params))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_key(line: &str) -> String {
        let mut bytes = line.as_bytes().to_vec();
        add_request_key(&mut bytes, "7");
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn messages_are_classified() {
        let request = McpMessage::Request { id: "1".into(), method: "tools/call".into() };
        assert_eq!(classify(br#" {"jsonrpc":"2.0", "id": 1, "method":"tools\/call"} "#), request);
        assert_eq!(classify(br#"{"id":"\u0061","result":{}}"#), McpMessage::Reply { id: r#""a""#.into() });
        assert_eq!(
            classify(br#"{"method":"notifications/cancelled","params":{"requestId":"x","reason":"y"}}"#),
            McpMessage::Notification {
                method: "notifications/cancelled".into(),
                cancels: Some(r#""x""#.into())
            }
        );
        for invalid in [
            &b"[]"[..],
            b"[{\"id\":1}]",
            b"",
            b"{",
            b"null",
            b"\xff\xfe",
            b"{\"id\":null}",
            b"{\"id\":1,\"id\":2}",
            b"{\"id\":1.5,\"method\":\"ping\"}",
            b"{\"id\":[1],\"method\":\"ping\"}",
        ] {
            assert_eq!(classify(invalid), McpMessage::Other, "{invalid:?}");
        }
    }

    #[test]
    fn request_key_is_inserted_without_other_changes() {
        for (before, after) in [
            (
                r#"{"params":{"name":"a"},"id":1}"#,
                r#"{"params":{"_meta":{"switchboard/request":"7"},"name":"a"},"id":1}"#,
            ),
            (r#"{"params" : { } }"#, r#"{"params" : {"_meta":{"switchboard/request":"7"} } }"#),
            (
                r#"{"params":{"_meta":{"progressToken":3},"x":"é\ud83d\ude00 "}}"#,
                r#"{"params":{"_meta":{"switchboard/request":"7","progressToken":3},"x":"é\ud83d\ude00 "}}"#,
            ),
            (
                r#"{"params":{"_meta" : null ,"x":1}}"#,
                r#"{"params":{"_meta" : {"switchboard/request":"7"} ,"x":1}}"#,
            ),
            (r#"{"params":{"_meta":{ }}}"#, r#"{"params":{"_meta":{"switchboard/request":"7" }}}"#),
        ] {
            assert_eq!(with_key(before), after);
            serde_json::from_str::<serde_json::Value>(after).unwrap();
        }
    }

    #[test]
    fn message_without_object_params_is_unchanged() {
        for line in [
            r#"{"params":[1]}"#,
            r#"{"params":[{"a":1}]}"#,
            r#"[{"params":{}}]"#,
            r#"{"params":3}"#,
            "{}",
            "not json",
            r#"{"params":{"_meta":[]}}"#,
            r#"{"params":{"_meta":{"switchboard/request":"mine"}}}"#,
            r#"{"params":{"_meta":{"switchboard/request":null}}}"#,
            r#"{"params":{"_meta":{},"_meta":{}}}"#,
        ] {
            assert_eq!(with_key(line), line);
        }
    }
}
