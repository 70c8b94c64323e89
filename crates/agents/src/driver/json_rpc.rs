//! JSON-RPC messages, one per line: those of the agent as slices of the line, and ours.

use memchr::memmem;
use model::AgentText;
use serde::Serialize;
use serde_json::Value;

use super::json::{Read, Reader};

/// The error for a request that we do not know.
const METHOD_NOT_FOUND: i64 = -32601;

/// A message of the agent.
#[derive(Debug, Default)]
pub(super) struct RpcMessage<'a> {
    /// The JSON of the id. A request has an id and a method, a reply only an id, a notification only a method.
    pub(super) id: Option<&'a [u8]>,
    pub(super) method: Option<&'a [u8]>,
    pub(super) params: Option<&'a [u8]>,
    pub(super) result: Option<&'a [u8]>,
    pub(super) error: Option<&'a [u8]>,
}

impl<'a> RpcMessage<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Read<Self> {
        let mut message = Self::default();
        message.read(line)?;
        Ok(message)
    }

    /// Parses the message in a line. A text before it, such as a banner without a line feed, is skipped.
    pub(super) fn find(line: &'a [u8]) -> Read<(Self, &'a [u8])> {
        match (Self::parse(line), memmem::find(line, b"{\"")) {
            (Err(_), Some(start)) if start > 0 => Ok((Self::parse(&line[start..])?, &line[start..])),
            (message, _) => Ok((message?, line)),
        }
    }

    /// Returns whether an unreadable line is a damaged message, rather than a text.
    pub(super) fn is_damaged(line: &[u8]) -> bool {
        line.starts_with(b"{")
    }

    /// Parses the readable start of a damaged line.
    pub(super) fn parse_start(line: &'a [u8]) -> Self {
        let mut message = Self::default();
        let _ = message.read(line);
        message
    }

    fn read(&mut self, line: &'a [u8]) -> Read<()> {
        let mut reader = Reader::new(line);
        reader.object(|key, value| {
            match key {
                b"id" => self.id = Some(value.raw()?).filter(|id| *id != b"null"),
                b"method" => self.method = value.plain_string()?,
                b"params" => self.params = Some(value.raw()?),
                b"result" => self.result = Some(value.raw()?),
                b"error" => self.error = Some(value.raw()?).filter(|error| *error != b"null"),
                _ => value.skip()?,
            }
            Ok(())
        })?;
        reader.end()
    }

    /// Returns the result of a request. A missing one is `null`.
    pub(super) fn outcome(&self) -> Result<Value, RpcError> {
        match self.error {
            Some(error) => Err(RpcError::parse(error)),
            None => Ok(self.result.and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or_default()),
        }
    }

    /// Returns the number of our request that the message replies to.
    pub(super) fn replies_to(&self) -> Option<u64> {
        let id = self.id.filter(|_| self.method.is_none())?;
        str::from_utf8(id).ok()?.trim_matches('"').parse().ok()
    }
}

/// An error in place of a result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    /// Further details, as JSON or text.
    pub(super) data: Option<String>,
}

impl RpcError {
    pub(super) fn parse(raw: &[u8]) -> Self {
        let mut error = Self::default();
        let _ = Reader::new(raw).object_if(|key, value| {
            match key {
                b"code" => error.code = value.integer()?.unwrap_or_default(),
                b"message" => {
                    error.message = value.text()?.map(|text| text.decode().into_owned()).unwrap_or_default();
                }
                b"data" => error.data = Some(detail(value)?).filter(|data| data != "null"),
                _ => value.skip()?,
            }
            Ok(())
        });
        error
    }

    /// Returns the message with the details that it does not repeat, on one line.
    pub(super) fn describe(&self) -> String {
        let message =
            if self.message.is_empty() { format!("error {}", self.code) } else { self.message.clone() };
        match &self.data {
            Some(data) if !data.is_empty() && !message.contains(data.as_str()) => {
                format!("{message}: {data}")
            }
            _ => message,
        }
    }
}

/// Reads the details of an error: a text, the text in an object, or JSON.
fn detail(value: &mut Reader<'_>) -> Read<String> {
    let raw = value.raw()?;
    let mut found = None;
    let _ = Reader::new(raw).object_if(|key, value| {
        match key {
            b"details" | b"message" | b"error" if found.is_none() => found = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    });
    let text = found.or_else(|| Reader::new(raw).text().ok().flatten());
    Ok(text.unwrap_or_else(|| AgentText::from_bytes(raw)).decode().into_owned())
}

/// The dialect of our messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// JSON-RPC 2.0.
    Standard,
    /// Without the version, as `codex app-server` has it.
    Bare,
}

impl Dialect {
    fn version(self) -> Option<&'static str> {
        (self == Self::Standard).then_some("2.0")
    }

    pub(super) fn request(self, id: u64, method: &str, params: &Value) -> Vec<u8> {
        line(&Outgoing {
            id: Some(Value::from(id)),
            method: Some(method),
            params: Some(params),
            ..Outgoing::new(self)
        })
    }

    pub(super) fn notification(self, method: &str, params: Option<&Value>) -> Vec<u8> {
        line(&Outgoing { method: Some(method), params, ..Outgoing::new(self) })
    }

    pub(super) fn result(self, id: &[u8], result: &Value) -> Vec<u8> {
        line(&Outgoing { id: Some(parse_id(id)), result: Some(result), ..Outgoing::new(self) })
    }

    pub(super) fn method_not_found(self, id: &[u8], message: &str) -> Vec<u8> {
        let error = serde_json::json!({ "code": METHOD_NOT_FOUND, "message": message });
        line(&Outgoing { id: Some(parse_id(id)), error: Some(&error), ..Outgoing::new(self) })
    }
}

/// A message of ours. Its identity comes first (see [`super::outbox`]).
#[derive(Serialize)]
struct Outgoing<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jsonrpc: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Value>,
}

impl Outgoing<'_> {
    fn new(dialect: Dialect) -> Self {
        let (id, method, params, result, error) = (None, None, None, None, None);
        Self { id, method, jsonrpc: dialect.version(), params, result, error }
    }
}

fn parse_id(raw: &[u8]) -> Value {
    serde_json::from_slice(raw).unwrap_or_default()
}

fn line(message: &Outgoing<'_>) -> Vec<u8> {
    // Cannot fail: the values are JSON already.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_start_with_their_identity() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let params = json!({"a": 1});
        assert_eq!(
            text(Dialect::Standard.request(3, "session/new", &params)),
            "{\"id\":3,\"method\":\"session/new\",\"jsonrpc\":\"2.0\",\"params\":{\"a\":1}}\n"
        );
        assert_eq!(text(Dialect::Bare.result(b"\"x\"", &params)), "{\"id\":\"x\",\"result\":{\"a\":1}}\n");
        assert_eq!(text(Dialect::Bare.notification("initialized", None)), "{\"method\":\"initialized\"}\n");
    }

    #[test]
    fn reply_is_told_from_request() {
        let reply = RpcMessage::parse(br#"{"jsonrpc":"2.0","id":3,"result":{}}"#).unwrap();
        assert_eq!((reply.replies_to(), reply.result), (Some(3), Some(b"{}".as_slice())));
        let request = RpcMessage::parse(br#"{"id":3,"method":"fs/read_text_file","params":{}}"#).unwrap();
        assert_eq!((request.replies_to(), request.id), (None, Some(b"3".as_slice())));
        assert_eq!(RpcMessage::parse_start(br#"{"id":100,"result":{"stopRea"#).replies_to(), Some(100));
    }

    #[test]
    fn message_is_found_behind_a_text() {
        let line = br#"loading {x} {"id":3,"result":{}}"#;
        let (message, rest) = RpcMessage::find(line).unwrap();
        assert_eq!((message.replies_to(), rest), (Some(3), &line[12..]));
        assert!(RpcMessage::find(b"loading {x}").is_err() && RpcMessage::find(b"").is_err());
    }

    #[test]
    fn error_details_are_described_once() {
        let describe = |raw: &str| RpcError::parse(raw.as_bytes()).describe();
        assert_eq!(
            describe(r#"{"code":-32603,"message":"Internal error","data":{"details":"no key"}}"#),
            "Internal error: no key"
        );
        assert_eq!(describe(r#"{"code":-32603,"message":"no key","data":"no key"}"#), "no key");
        assert_eq!(describe(r#"{"code":-32000,"message":"a","data":{"n":1}}"#), r#"a: {"n":1}"#);
        assert_eq!(describe(r#"{"code":-32000}"#), "error -32000");
    }
}
