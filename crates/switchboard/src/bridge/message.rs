//! A first look at a line of MCP: what kind of message it is, and nothing more.
//!
//! Lines are passed on byte for byte; the one thing that is ever added is the mark of a tool call. What cannot be read is the
//! server's to complain about.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Stands in `params._meta` of every tool call, with a name for this very request. A server that sees the same name again answers
/// with the same job.
pub const MARK: &str = "switchboard/request";

/// What a line is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Wants an answer.
    Request { id: String, method: String },
    /// Wants none. For a cancellation, the request that is meant.
    Notification { method: String, cancels: Option<String> },
    /// Is one.
    Answer { id: String },
    /// A batch, or nothing that can be read.
    Other,
}

#[derive(Deserialize)]
struct Top<'a> {
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
    #[serde(default, borrow, rename = "_meta", deserialize_with = "also_null")]
    meta: Option<&'a RawValue>,
}

/// What is there, `null` included: a second one beside it would be an error.
fn also_null<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(default, borrow, rename = "switchboard/request", deserialize_with = "also_null")]
    mark: Option<&'a RawValue>,
}

/// The top of a line that is one message. A list would fit into the struct, too.
fn top(line: &[u8]) -> Option<Top<'_>> {
    line.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(line).ok())?
}

/// What kind of message it is.
pub fn look(line: &[u8]) -> Message {
    let Some(top) = top(line) else { return Message::Other };
    if top.id.is_some_and(|id| !can_be_answered(id)) {
        return Message::Other;
    }
    match (top.id.map(id), top.method) {
        (Some(id), Some(method)) => Message::Request { id, method: method.into_owned() },
        (None, Some(method)) => {
            let cancels = (method == "notifications/cancelled")
                .then(|| serde_json::from_str::<Cancelled<'_>>(top.params?.get()).ok())
                .flatten()
                .map(|cancelled| id(cancelled.request_id));
            Message::Notification { method: method.into_owned(), cancels }
        }
        (Some(id), None) => Message::Answer { id },
        (None, None) => Message::Other,
    }
}

/// Whether an answer can bear that id. To one that is neither a text nor a whole number the server answers under none.
fn can_be_answered(id: &RawValue) -> bool {
    id.get().starts_with('"') || id.get().parse::<i64>().is_ok()
}

/// An id as JSON, written in one way only, so that an answer is found however it spells it.
fn id(raw: &RawValue) -> String {
    match serde_json::from_str::<serde_json::Value>(raw.get()) {
        Ok(value) => value.to_string(),
        Err(_) => raw.get().to_owned(),
    }
}

/// Adds the mark to a request whose parameters are an object, unless the host has set one itself.
pub fn mark(line: &mut Vec<u8>, name: &str) {
    if let Some((place, added)) = insertion(line, name) {
        line.splice(place, added.into_bytes());
    }
}

/// Where something is to be put, and what.
fn insertion(line: &[u8], name: &str) -> Option<(std::ops::Range<usize>, String)> {
    let params = top(line)?.params?.get();
    if !params.starts_with('{') {
        return None;
    }
    let Params { meta } = serde_json::from_str(params).ok()?;
    let place = |part: &str| part.as_ptr() as usize - line.as_ptr() as usize;
    let mark = format!("\"{MARK}\":\"{name}\"");
    // An object with something in it wants a comma behind what is put first.
    let comma = |object: &str| if object[1..].trim_start().starts_with('}') { "" } else { "," };
    match meta.map(RawValue::get) {
        Some(meta) if meta.starts_with('{') => {
            let Meta { mark: None } = serde_json::from_str(meta).ok()? else { return None };
            let at = place(meta) + 1;
            Some((at..at, format!("{mark}{}", comma(meta))))
        }
        Some(null @ "null") => {
            let at = place(null);
            Some((at..at + "null".len(), format!("{{{mark}}}")))
        }
        Some(_) => None,
        None => {
            let at = place(params) + 1;
            Some((at..at, format!("\"_meta\":{{{mark}}}{}", comma(params))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(line: &str) -> String {
        let mut bytes = line.as_bytes().to_vec();
        mark(&mut bytes, "7");
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_is_what_it_says_it_is() {
        let request = Message::Request { id: "1".into(), method: "tools/call".into() };
        assert_eq!(look(br#" {"jsonrpc":"2.0", "id": 1, "method":"tools\/call"} "#), request);
        assert_eq!(look(br#"{"id":"\u0061","result":{}}"#), Message::Answer { id: r#""a""#.into() });
        assert_eq!(
            look(br#"{"method":"notifications/cancelled","params":{"requestId":"x","reason":"y"}}"#),
            Message::Notification {
                method: "notifications/cancelled".into(),
                cancels: Some(r#""x""#.into())
            }
        );
        for odd in [
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
            assert_eq!(look(odd), Message::Other, "{odd:?}");
        }
    }

    #[test]
    fn a_mark_is_added_and_all_else_stays_as_it_was() {
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
            assert_eq!(marked(before), after);
            serde_json::from_str::<serde_json::Value>(after).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_marked_stays_as_it_was() {
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
            assert_eq!(marked(line), line);
        }
    }
}
