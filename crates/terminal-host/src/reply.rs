//! Replies to the agent.

use serde_json::{Value, json};

/// A request with parameters that make no sense.
pub(crate) const INVALID_PARAMETERS: i64 = -32602;
/// A request that cannot be carried out.
pub(crate) const INTERNAL: i64 = -32603;
/// A request for something that does not exist.
pub(crate) const NOT_FOUND: i64 = -32002;

/// A reply to a request.
pub(crate) struct TerminalReply {
    pub(crate) id: Value,
    pub(crate) body: ReplyBody,
}

/// The content of a reply.
pub(crate) enum ReplyBody {
    Result(Value),
    Error {
        code: i64,
        message: String,
    },
    /// The output of a terminal. It is rendered when the reply is written, so that a waiting reply holds no copy of it.
    Output(Box<dyn FnOnce() -> Value + Send>),
}

impl ReplyBody {
    pub(crate) fn error(code: i64, message: impl Into<String>) -> Self {
        Self::Error { code, message: message.into() }
    }
}

impl TerminalReply {
    /// Renders the reply as a line.
    pub(crate) fn into_line(self) -> Vec<u8> {
        let (name, content) = match self.body {
            ReplyBody::Result(result) => ("result", result),
            ReplyBody::Error { code, message } => ("error", json!({ "code": code, "message": message })),
            ReplyBody::Output(render) => ("result", render()),
        };
        format!("{}\n", json!({ "jsonrpc": "2.0", "id": self.id, name: content })).into_bytes()
    }
}
