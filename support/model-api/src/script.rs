//! Replies of the model: turns as data, and the rule that selects one for a request.
//!
//! Knows no wire format: each vendor's module renders a [`ModelTurn`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::request::ModelRequest;

/// One answer of the model to one request.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelTurn {
    /// A reply of the model.
    Reply(Reply),
    /// An API error with this HTTP status, in the vendor's own error body.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// The `retry-after` header, repeated in the body if the vendor does so.
        retry_after: Option<Duration>,
    },
    /// An overloaded API, with the status of each vendor (529 or 503).
    Overloaded,
    /// No byte is ever sent, not even the status line.
    HangBeforeFirstByte,
}

/// A streamed answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The blocks, in order.
    pub blocks: Vec<Block>,
    /// The pause before each delta.
    pub pace: Duration,
    /// The end of the stream.
    pub ending: Ending,
    /// The reported token counts.
    pub usage: ModelUsage,
}

/// A block of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Reasoning that is not part of the answer.
    Thinking(String),
    /// Text for the user.
    Text(String),
    /// A tool call.
    Call(Call),
}

/// A tool call in neutral form; the vendor's module maps it to the name and input of its CLI.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// A tool by the CLI's own name.
    Tool {
        /// The name.
        name: String,
        /// The input in the CLI's own format.
        input: Value,
    },
    /// The CLI's shell tool.
    Shell {
        /// The command line.
        command: String,
    },
    /// A tool of an MCP server.
    Mcp {
        /// The server's name in the CLI's configuration.
        server: String,
        /// The tool's name on that server.
        tool: String,
        /// The tool's arguments.
        input: Value,
    },
}

/// The end of a [`Reply`] after its last block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The stream is closed as the vendor closes it.
    #[default]
    Complete,
    /// The stream stays open and silent.
    Hang,
    /// The connection is cut in the middle of the stream.
    Cut,
}

/// Token counts of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    /// Tokens read, cached ones included.
    pub input: u64,
    /// The number of cached input tokens.
    pub cached: u64,
    /// Tokens written, reasoning included.
    pub output: u64,
    /// The number of reasoning tokens.
    pub reasoning: u64,
}

impl Default for ModelUsage {
    fn default() -> Self {
        Self { input: 100, cached: 40, output: 20, reasoning: 5 }
    }
}

impl ModelTurn {
    /// Replies with `text`.
    pub fn text(text: impl Into<String>) -> Self {
        Self::blocks(vec![Block::Text(text.into())])
    }

    /// Replies with these blocks.
    pub fn blocks(blocks: Vec<Block>) -> Self {
        Self::Reply(Reply { blocks, ..Reply::default() })
    }

    /// Calls a tool by the CLI's own name.
    pub fn tool(name: impl Into<String>, input: Value) -> Self {
        Self::call(Call::Tool { name: name.into(), input })
    }

    /// Runs a command line with the CLI's shell tool.
    pub fn shell(command: impl Into<String>) -> Self {
        Self::call(Call::Shell { command: command.into() })
    }

    /// Calls a tool.
    pub fn call(call: Call) -> Self {
        Self::blocks(vec![Block::Call(call)])
    }

    /// Fails with an HTTP status.
    pub fn refuse(status: u16) -> Self {
        Self::Refuse { status, retry_after: None }
    }

    /// Fails with 429.
    pub fn rate_limited(retry_after: Option<Duration>) -> Self {
        Self::Refuse { status: 429, retry_after }
    }

    /// Replies with `text`, then keeps the stream open without output.
    pub fn hang_after(text: impl Into<String>) -> Self {
        Self::text(text).ending(Ending::Hang)
    }

    /// Replies with `text`, then cuts the connection.
    pub fn cut_after(text: impl Into<String>) -> Self {
        Self::text(text).ending(Ending::Cut)
    }

    /// Replies with `text` word by word, with a pause before each.
    pub fn slow_text(text: impl Into<String>, pace: Duration) -> Self {
        Self::Reply(Reply { blocks: vec![Block::Text(text.into())], pace, ..Reply::default() })
    }

    fn ending(self, ending: Ending) -> Self {
        match self {
            Self::Reply(reply) => Self::Reply(Reply { ending, ..reply }),
            other => other,
        }
    }
}

type Rule = dyn Fn(&ModelRequest, usize) -> ModelTurn + Send + Sync;

/// Maps requests to turns.
#[derive(Clone)]
pub struct Script(Arc<Rule>);

impl Script {
    /// Answers every request by this turn.
    pub fn always(turn: ModelTurn) -> Self {
        Self::by(move |_, _| turn.clone())
    }

    /// Answers every request by this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::always(ModelTurn::text(text))
    }

    /// Answers the first request by the first turn, and so on; the last turn repeats. An empty list is an empty text.
    pub fn turns(turns: Vec<ModelTurn>) -> Self {
        Self::by(move |_, number| {
            turns.get(number).or(turns.last()).cloned().unwrap_or_else(|| ModelTurn::text(""))
        })
    }

    /// Calls a tool; answers with the text if the conversation ends with a tool result.
    pub fn call_then_text(call: Call, text: impl Into<String>) -> Self {
        let text = text.into();
        Self::by(move |request, _| {
            if request.ends_with_tool_result() {
                ModelTurn::text(text.as_str())
            } else {
                ModelTurn::call(call.clone())
            }
        })
    }

    /// Calls the same tool forever.
    pub fn endless(call: Call) -> Self {
        Self::always(ModelTurn::call(call))
    }

    /// Computes the turn from the request and its number, counted from 0 over the requests that take a turn.
    pub fn by(rule: impl Fn(&ModelRequest, usize) -> ModelTurn + Send + Sync + 'static) -> Self {
        Self(Arc::new(rule))
    }

    pub(crate) fn turn(&self, request: &ModelRequest, number: usize) -> ModelTurn {
        (self.0)(request, number)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").finish_non_exhaustive()
    }
}
