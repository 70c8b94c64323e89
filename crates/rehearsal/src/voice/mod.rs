//! Formats the agent's actions as events of each vendor.
//!
//! A voice converts actions to lines and exit codes. It writes nothing and decides nothing: `stage` owns the order.

mod acp;
mod app_server;
mod claude;
mod codex;
mod gemini;
mod plain;
mod session;

use serde_json::Value;

pub(crate) use session::{SessionOpening, VoiceSession, new_session_id};

use crate::json::Object;

/// The vendor whose format is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum VoiceVendor {
    #[default]
    Claude,
    Codex,
    Gemini,
    /// Any agent that speaks the Agent Client Protocol.
    Acp,
    Plain,
}

impl VoiceVendor {
    pub(crate) const ALL: [Self; 5] = [Self::Claude, Self::Codex, Self::Gemini, Self::Acp, Self::Plain];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Acp => "acp",
            Self::Plain => "plain",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|vendor| vendor.name() == name)
    }

    /// Returns whether the vendor has a turn limit. Codex has none.
    pub(crate) fn has_turn_limit(self) -> bool {
        self != Self::Codex
    }

    /// Returns the voice for one prompt on stdin.
    pub(crate) fn voice(self, session: VoiceSession) -> Box<dyn Voice> {
        match self {
            Self::Acp => self.live_voice(session, "null".to_owned()),
            Self::Claude => Box::new(claude::ClaudeVoice::new(session)),
            Self::Codex => Box::new(codex::CodexVoice::new(session)),
            Self::Gemini => Box::new(gemini::GeminiVoice::new(session)),
            Self::Plain => Box::new(plain::PlainVoice::new(session)),
        }
    }

    /// Returns the voice for a prompt of a live client, with the id of its request.
    pub(crate) fn live_voice(self, session: VoiceSession, prompt: String) -> Box<dyn Voice> {
        match self {
            Self::Acp => Box::new(acp::AcpVoice::new(session, prompt)),
            Self::Codex => Box::new(app_server::AppServerVoice::new(session)),
            vendor => vendor.voice(session),
        }
    }
}

/// The events of an agent, each appended to `out` as complete lines.
pub(crate) trait Voice {
    /// Starts the session.
    fn open(&mut self, out: &mut String);
    /// Prints a text.
    fn say(&mut self, text: &str, out: &mut String);
    /// Prints a thought.
    fn think(&mut self, text: &str, out: &mut String);
    /// Prints a tool call with its result.
    fn tool(&mut self, call: &ToolCall, out: &mut String);
    /// Prints a denied tool call.
    fn deny(&mut self, tool: &str, out: &mut String);
    /// Prints a request for the permission to use a tool. Only live protocols have it. Without `can_allow` the client can only refuse, where
    /// the protocol has a list of options.
    fn ask(&mut self, _request: &str, _call: &ToolCall, _can_allow: bool, _out: &mut String) {}
    /// Returns another request to the client.
    fn request(&self, id: &str, method: &str) -> String {
        request(true, id, method, "{}")
    }
    /// Returns whether a reply to [`Voice::ask`] allows the tool.
    fn is_allowed(&self, _reply: &Value) -> bool {
        false
    }
    /// Starts a text that is streamed in deltas.
    fn begin_pieces(&mut self, _out: &mut String) {}
    /// Prints a delta.
    fn piece(&mut self, text: &str, out: &mut String);
    /// Ends the deltas; `whole` is the complete text.
    fn end_pieces(&mut self, whole: &str, out: &mut String);
    /// Prints a retry. Returns text for stderr if the vendor has no event for it.
    fn retry_notice(&mut self, status: Option<u16>, out: &mut String) -> Option<String>;
    /// Prints the start or end of a background task. Only claude has such events.
    fn background(&mut self, _change: TaskChange, _task: &str, _out: &mut String) {}
    /// Ends the turn successfully with this text.
    fn finish(&mut self, text: &str, out: &mut String);
    /// Ends the turn with an error.
    fn fail(&mut self, failure: &ScriptedFailure, out: &mut String) -> VendorExit;
    /// Ends the turn at the turn limit.
    fn max_turns(&mut self, out: &mut String) -> VendorExit;
}

/// A change of a background task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskChange {
    Start,
    Completed,
    Failed,
    Stopped,
}

impl TaskChange {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "start" => Self::Start,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "stopped" => Self::Stopped,
            _ => return None,
        })
    }
}

/// The exit of a vendor's program after a failed turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VendorExit {
    pub(crate) code: u8,
    pub(crate) complaint: Option<String>,
}

impl VendorExit {
    fn code(code: u8) -> Self {
        Self { code, complaint: None }
    }

    fn complaining(code: u8, complaint: impl Into<String>) -> Self {
        Self { code, complaint: Some(complaint.into()) }
    }
}

/// A use of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    pub(crate) input: ToolInput,
    pub(crate) result: String,
    pub(crate) failed: bool,
}

/// The input of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolInput {
    /// A JSON object, checked.
    Json(String),
    /// A command for a shell.
    Command(String),
}

impl ToolInput {
    fn as_object(&self) -> String {
        match self {
            Self::Json(object) => object.clone(),
            Self::Command(command) => Object::new().string("command", command).done(),
        }
    }
}

/// An error that ends a turn, with a text that replaces the vendor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptedFailure {
    pub(crate) kind: ScriptedFailureKind,
    pub(crate) text: Option<String>,
}

impl ScriptedFailure {
    fn text_or(&self, vendors: &str) -> String {
        self.text.as_deref().unwrap_or(vendors).to_owned()
    }
}

/// Why a turn failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptedFailureKind {
    Auth,
    RateLimit,
    Overloaded,
    Network,
    Budget,
    SessionNotFound,
    Other,
}

impl ScriptedFailureKind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Auth,
        Self::RateLimit,
        Self::Overloaded,
        Self::Network,
        Self::Budget,
        Self::SessionNotFound,
        Self::Other,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::RateLimit => "rate-limit",
            Self::Overloaded => "overloaded",
            Self::Network => "network",
            Self::Budget => "budget",
            Self::SessionNotFound => "session-not-found",
            Self::Other => "other",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether the failure precedes the session: the real programs print nothing before a missing session.
    pub(crate) fn comes_before_opening(self) -> bool {
        self == Self::SessionNotFound
    }
}

/// Returns a JSON-RPC request.
fn request(has_version: bool, id: &str, method: &str, params: &str) -> String {
    let request = if has_version { Object::new().string("jsonrpc", "2.0") } else { Object::new() };
    request.json("id", id).string("method", method).json("params", params).done()
}

fn line(out: &mut String, event: &str) {
    out.push_str(event);
    out.push('\n');
}
