//! What the model says: turns as data, and the rule that picks one for a request.
//!
//! Knows no wire format: each vendor's module renders a [`Turn`] in its own shape.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::request::ModelRequest;

/// One answer of the model to one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// The model answers.
    Reply(Reply),
    /// The API refuses with this HTTP status, in the vendor's own error body.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// Sent as the `retry-after` header, and in the body where the vendor puts it there too.
        retry_after: Option<Duration>,
    },
    /// The API is overloaded, said with the status each vendor uses for it (529 or 503).
    Overloaded,
    /// Nothing is ever sent, not even the status line.
    HangBeforeFirstByte,
}

/// A streamed answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// What the answer is made of, in order.
    pub blocks: Vec<Block>,
    /// The pause before each piece of the stream.
    pub pace: Duration,
    /// What happens after the last block.
    pub ending: Ending,
    /// The tokens the answer claims to have used.
    pub usage: Usage,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// Reasoning that is not part of the answer.
    Thinking(String),
    /// Text for the user.
    Text(String),
    /// A tool the model wants to have run.
    Call(Call),
}

/// A tool call, in the words of the test; the vendor's module finds the name and the input its CLI expects.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// A tool by the CLI's own name for it.
    Tool {
        /// The name.
        name: String,
        /// The input, as the CLI expects it.
        input: Value,
    },
    /// The CLI's shell tool.
    Shell {
        /// The command line.
        command: String,
    },
    /// A tool of an MCP server that was passed to the CLI.
    Mcp {
        /// The server's name in the CLI's configuration.
        server: String,
        /// The tool's name on that server.
        tool: String,
        /// The tool's arguments.
        input: Value,
    },
}

/// What happens after the last block of a [`Reply`].
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
pub struct Usage {
    /// Tokens read, cached ones included.
    pub input: u64,
    /// How many of the tokens read came from the cache.
    pub cached: u64,
    /// Tokens written, reasoning included.
    pub output: u64,
    /// How many of the tokens written were reasoning.
    pub reasoning: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self { input: 100, cached: 40, output: 20, reasoning: 5 }
    }
}

impl Turn {
    /// Says `text`.
    pub fn text(text: impl Into<String>) -> Self {
        Self::blocks(vec![Block::Text(text.into())])
    }

    /// Says these blocks, in this order.
    pub fn blocks(blocks: Vec<Block>) -> Self {
        Self::Reply(Reply { blocks, ..Reply::default() })
    }

    /// Calls a tool by the CLI's own name for it.
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

    /// Refuses with an HTTP status.
    pub fn refuse(status: u16) -> Self {
        Self::Refuse { status, retry_after: None }
    }

    /// Refuses with 429.
    pub fn rate_limited(retry_after: Option<Duration>) -> Self {
        Self::Refuse { status: 429, retry_after }
    }

    /// Says `text`, then keeps the stream open in silence.
    pub fn hang_after(text: impl Into<String>) -> Self {
        Self::text(text).ending(Ending::Hang)
    }

    /// Says `text`, then cuts the connection.
    pub fn cut_after(text: impl Into<String>) -> Self {
        Self::text(text).ending(Ending::Cut)
    }

    /// Says `text` word by word, with a pause before each piece.
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

type Rule = dyn Fn(&ModelRequest, usize) -> Turn + Send + Sync;

/// Which turn answers which request.
#[derive(Clone)]
pub struct Script(Arc<Rule>);

impl Script {
    /// Every request is answered by this turn.
    pub fn always(turn: Turn) -> Self {
        Self::by(move |_, _| turn.clone())
    }

    /// Every request is answered by this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::always(Turn::text(text))
    }

    /// The first request gets the first turn, and so on; the last turn repeats. An empty list is an empty text.
    pub fn turns(turns: Vec<Turn>) -> Self {
        Self::by(move |_, number| {
            turns.get(number).or(turns.last()).cloned().unwrap_or_else(|| Turn::text(""))
        })
    }

    /// A tool call; and, whenever the conversation ends with a tool's result, the text.
    pub fn call_then_text(call: Call, text: impl Into<String>) -> Self {
        let text = text.into();
        Self::by(move |request, _| {
            if request.ends_with_tool_result() { Turn::text(text.as_str()) } else { Turn::call(call.clone()) }
        })
    }

    /// The same tool call for ever.
    pub fn endless(call: Call) -> Self {
        Self::always(Turn::call(call))
    }

    /// The turn is a function of the request and of its number, counted from 0 over the requests that take a
    /// turn.
    pub fn by(rule: impl Fn(&ModelRequest, usize) -> Turn + Send + Sync + 'static) -> Self {
        Self(Arc::new(rule))
    }

    pub(crate) fn turn(&self, request: &ModelRequest, number: usize) -> Turn {
        (self.0)(request, number)
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").finish_non_exhaustive()
    }
}
