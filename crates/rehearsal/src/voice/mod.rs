//! How an agent sounds: the same doings as events in each vendor's shape.
//!
//! A voice turns what the agent does into lines of text and exit codes. It writes nowhere and decides
//! nothing: the order of things is the script's (see `stage`).

mod claude;
mod codex;
mod gemini;
mod plain;
mod session;

pub(crate) use session::{Opening, Session};

/// Whose format is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Vendor {
    #[default]
    Claude,
    Codex,
    Gemini,
    Plain,
}

impl Vendor {
    pub(crate) const ALL: [Self; 4] = [Self::Claude, Self::Codex, Self::Gemini, Self::Plain];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Plain => "plain",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|vendor| vendor.name() == name)
    }

    /// Codex has no turn cap, so it cannot run into one.
    pub(crate) fn has_turn_limit(self) -> bool {
        self != Self::Codex
    }

    pub(crate) fn voice(self, session: Session) -> Box<dyn Voice> {
        match self {
            Self::Claude => Box::new(claude::Claude::new(session)),
            Self::Codex => Box::new(codex::Codex::new(session)),
            Self::Gemini => Box::new(gemini::Gemini::new(session)),
            Self::Plain => Box::new(plain::Plain::new(session)),
        }
    }
}

/// What an agent can say, each as complete lines appended to `out`.
pub(crate) trait Voice {
    /// The session begins.
    fn open(&mut self, out: &mut String);
    /// A text of the agent.
    fn say(&mut self, text: &str, out: &mut String);
    /// A thought of the agent.
    fn think(&mut self, text: &str, out: &mut String);
    /// A tool is used and gives its result.
    fn tool(&mut self, call: &ToolCall, out: &mut String);
    /// A tool is asked for and refused.
    fn deny(&mut self, tool: &str, out: &mut String);
    /// A text that comes in pieces begins.
    fn begin_pieces(&mut self, _out: &mut String) {}
    /// A piece of a text.
    fn piece(&mut self, text: &str, out: &mut String);
    /// All pieces came; `whole` is what they add up to.
    fn end_pieces(&mut self, whole: &str, out: &mut String);
    /// A request is tried again. What is not an event of the vendor is returned, for stderr.
    fn retry_notice(&mut self, status: Option<u16>, out: &mut String) -> Option<String>;
    /// A background task has started or ended. Only claude has events for it.
    fn background(&mut self, _change: TaskChange, _task: &str, _out: &mut String) {}
    /// The turn ends well with this text.
    fn finish(&mut self, text: &str, out: &mut String);
    /// The turn ends with an error.
    fn fail(&mut self, failure: &Failure, out: &mut String) -> Closing;
    /// The turn ends at the turn limit.
    fn max_turns(&mut self, out: &mut String) -> Closing;
}

/// What happens to a background task.
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

/// How a vendor's program ends after a failed turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) code: u8,
    pub(crate) complaint: Option<String>,
}

impl Closing {
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

/// What a tool was given.
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
            Self::Command(command) => crate::json::Object::new().string("command", command).done(),
        }
    }
}

/// An error that ends a turn, with the text to use instead of the vendor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) text: Option<String>,
}

impl Failure {
    fn text_or(&self, vendors: &str) -> String {
        self.text.as_deref().unwrap_or(vendors).to_owned()
    }
}

/// Why a turn failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Auth,
    RateLimit,
    Overloaded,
    Network,
    Budget,
    SessionNotFound,
    Other,
}

impl FailureKind {
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

    /// A session that is not found is not opened either: the real programs say no word before.
    pub(crate) fn comes_before_opening(self) -> bool {
        self == Self::SessionNotFound
    }
}

fn line(out: &mut String, event: &str) {
    out.push_str(event);
    out.push('\n');
}
