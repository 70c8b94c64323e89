//! Speaks an agent's protocol: parses its stdout to events, in one pass and in bounded memory, and writes its stdin.
//!
//! Owns lines and events, and the messages to the agent. Collects the [`Summary`] from which [`crate::judge`] derives the outcome.
//!
//! A driver is a pure state machine without I/O and clock: its state follows from the bytes that were sent to the agent and those that it
//! has printed. So another process continues a conversation from the two files of the run ([`Driver::replay_input`]).

mod acp;
mod app_server;
mod background;
mod claude;
mod codex_exec;
mod gemini;
mod json;
mod json_rpc;
mod lines;
mod message_context;
mod outbox;
mod plain;
mod refused_paths;
mod spec;
mod summary;

use std::time::Duration;

use model::{AgentEvent, AgentText, RawJson, ToolOutput, Unreadable};

use acp::Acp;
pub use acp::{AcpImage, AcpServer, AcpSession, AcpSpec, ModelErrorReport, PermissionRule, UsageReport};
use app_server::AppServer;
pub use app_server::{AppServerSpec, AppServerThread};
pub use background::TaskTracker;
use json::Reader;
use lines::{Line, Lines};
use memchr::memchr2;
use outbox::Outbox;
use plain::Plain;
pub use plain::{AnswerRule, PlainSpec};
pub use refused_paths::{RefusedErrno, RefusedPath, RefusedPaths};
pub use spec::DriverSpec;
pub(crate) use summary::without_last_word;
pub use summary::{ExitRule, ReportedError, ReportedErrorCode, ReportedResult, Summary};

/// The message for an agent that gets no reply from its model's API and reports no reason.
pub(crate) const UNREACHABLE: &str = "the model's API cannot be reached";

/// The memory limits of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseLimits {
    /// The longest parsed line; a longer one becomes [`Unreadable::Oversized`].
    pub line_bytes: usize,
    /// The longest stored answer; a longer one is cut in the middle.
    pub text_bytes: usize,
}

impl Default for ParseLimits {
    /// 8 MiB per line, 1 MiB of text.
    fn default() -> Self {
        Self { line_bytes: 8 << 20, text_bytes: 1 << 20 }
    }
}

/// Converses with one agent. Its output is fed in chunks of any size.
///
/// The events do not depend on the chunk boundaries. A line within a chunk is parsed in place; only a line across two chunks is
/// copied.
///
/// ```
/// use agents::{Driver, DriverSpec, ParseLimits};
/// use model::AgentEvent;
///
/// let mut driver = Driver::new(&DriverSpec::CodexExec, ParseLimits::default());
/// let mut texts = Vec::new();
/// let mut on_event = |event: AgentEvent<'_>| {
///     if let AgentEvent::Text { text, .. } = event {
///         texts.push(text.to_string());
///     }
/// };
/// driver.feed(br#"{"type":"item.completed","item":{"id":"1","type":"agent_me"#, &mut on_event);
/// driver.feed(b"ssage\",\"text\":\"hello\"}}\n", &mut on_event);
/// let summary = driver.finish(&mut on_event);
/// assert_eq!(texts, ["hello"]);
/// assert_eq!(summary.text(), "hello");
/// ```
#[derive(Debug)]
pub struct Driver {
    lines: Lines,
    conversation: Conversation,
}

impl Driver {
    /// Starts a conversation. [`Driver::unsent`] are its first bytes.
    pub fn new(spec: &DriverSpec, limits: ParseLimits) -> Self {
        let mut summary = Summary::new(limits.text_bytes);
        let mut outbox = Outbox::default();
        let protocol = match spec {
            DriverSpec::Claude => Protocol::Claude { is_live: false },
            DriverSpec::ClaudeLive => Protocol::Claude { is_live: true },
            DriverSpec::CodexExec => Protocol::CodexExec,
            DriverSpec::CodexAppServer(spec) => {
                Protocol::AppServer(Box::new(AppServer::start(spec, &mut summary, &mut outbox)))
            }
            DriverSpec::Gemini => Protocol::Gemini,
            DriverSpec::Acp(spec) => Protocol::Acp(Box::new(Acp::start(spec, &mut summary, &mut outbox))),
            DriverSpec::Plain(spec) => Protocol::Plain(Box::new(Plain::new(spec))),
        };
        let lines = Lines::new(limits.line_bytes);
        Self { lines, conversation: Conversation { protocol, summary, outbox } }
    }

    /// Continues a conversation whose first bytes were sent. All of them, in chunks of any size, must precede the output.
    pub fn replay_input(&mut self, bytes: &[u8]) {
        self.conversation.outbox.replay(bytes);
    }

    /// Parses a chunk and emits the events of each complete line. [`Driver::unsent`] then has the replies.
    pub fn feed(&mut self, bytes: &[u8], on_event: &mut impl FnMut(AgentEvent<'_>)) {
        let conversation = &mut self.conversation;
        if let Protocol::Plain(plain) = &mut conversation.protocol {
            return plain.feed(bytes, &mut conversation.summary, on_event);
        }
        self.lines.feed(bytes, &mut |line| conversation.line(line, on_event));
    }

    /// Returns the silence of the agent after which [`Driver::on_silence`] is to be called.
    pub fn awaits_silence(&self) -> Option<Duration> {
        match &self.conversation.protocol {
            Protocol::Acp(acp) => acp.awaits_silence(),
            _ => None,
        }
    }

    /// Continues after a silence.
    pub fn on_silence(&mut self) {
        if let Protocol::Acp(acp) = &mut self.conversation.protocol {
            acp.on_silence(&mut self.conversation.outbox);
        }
    }

    /// Parses a last line without a newline and returns the summary.
    pub fn finish(mut self, on_event: &mut impl FnMut(AgentEvent<'_>)) -> Summary {
        let conversation = &mut self.conversation;
        self.lines.finish(&mut |line| conversation.line(line, on_event));
        if let Protocol::Plain(plain) = &mut conversation.protocol {
            plain.finish(&mut conversation.summary, on_event);
        }
        self.conversation.summary
    }

    /// Returns the bytes that are to be written to the agent's stdin.
    pub fn unsent(&self) -> &[u8] {
        self.conversation.outbox.unsent()
    }

    /// Removes the first of the unsent bytes, which were written.
    pub fn mark_sent(&mut self, count: usize) {
        self.conversation.outbox.mark_sent(count);
    }

    /// Returns whether the agent's stdin is to be closed once nothing is unsent.
    pub fn closes_input(&self) -> bool {
        self.conversation.outbox.is_closed()
    }

    /// Returns the summary so far.
    pub fn summary(&self) -> &Summary {
        &self.conversation.summary
    }

    /// Returns the bytes in memory, without the unsent ones. At most twice [`ParseLimits::line_bytes`] (a line and a structured answer from
    /// it), six times [`ParseLimits::text_bytes`], and a megabyte for short texts.
    pub fn held_bytes(&self) -> usize {
        let held = self.lines.held_bytes() + self.conversation.summary.held_bytes();
        match &self.conversation.protocol {
            Protocol::Plain(plain) => held + plain.held_bytes(),
            _ => held,
        }
    }
}

#[derive(Debug)]
enum Protocol {
    Claude { is_live: bool },
    CodexExec,
    AppServer(Box<AppServer>),
    Gemini,
    Acp(Box<Acp>),
    Plain(Box<Plain>),
}

/// Everything about a conversation but the line that is being received.
#[derive(Debug)]
struct Conversation {
    protocol: Protocol,
    summary: Summary,
    outbox: Outbox,
}

impl Conversation {
    fn line(&mut self, line: Line<'_>, on_event: &mut impl FnMut(AgentEvent<'_>)) {
        let bytes = match line {
            Line::Whole(bytes) => bytes.trim_ascii(),
            Line::Oversized { head, bytes } => {
                self.summary.count_oversized();
                self.lose(head, "the line exceeds the limit");
                let why = Unreadable::Oversized { bytes };
                return on_event(AgentEvent::Unreadable { why, line: AgentText::from_bytes(head) });
            }
        };
        if bytes.is_empty() {
            return;
        }
        self.summary.count_line();
        let Self { protocol, summary, outbox } = self;
        let read = match protocol {
            Protocol::Claude { is_live } => {
                let read = claude::read(bytes, summary, on_event);
                if *is_live && summary.has_answered() {
                    outbox.close();
                }
                read
            }
            Protocol::CodexExec => codex_exec::read(bytes, summary, on_event),
            Protocol::AppServer(server) => server.read(bytes, summary, outbox, on_event),
            Protocol::Gemini => gemini::read(bytes, summary, on_event),
            Protocol::Acp(acp) => acp.read(bytes, summary, outbox, on_event),
            // Not read by lines.
            Protocol::Plain(_) => Ok(()),
        };
        if read.is_err() {
            let line = AgentText::from_bytes(bytes);
            self.summary.add_stray(&line);
            self.lose(bytes, "it is not JSON");
            on_event(AgentEvent::Unreadable { why: Unreadable::NotJson, line });
        }
    }

    /// Records the possible loss of an unreadable line, judged by its readable part.
    fn lose(&mut self, line: &[u8], why: &str) {
        // A stray print, not a damaged event.
        if memchr2(b'{', b'}', line).is_none() {
            return;
        }
        let lost = match &self.protocol {
            Protocol::Claude { .. } => claude::lost(line),
            Protocol::CodexExec => codex_exec::lost(line),
            Protocol::AppServer(server) => server.lost(line, &mut self.outbox),
            Protocol::Gemini => gemini::lost(line),
            Protocol::Acp(acp) => acp.lost(line, &mut self.outbox),
            Protocol::Plain(_) => Lost::Other,
        };
        match lost {
            Lost::LastWord => self.summary.reported = Some(ReportedResult::Unreadable(why.to_owned())),
            Lost::ReplyOrText => {
                self.summary.mark_text_lost();
                self.summary.reported = Some(ReportedResult::Unreadable(why.to_owned()));
            }
            Lost::PerhapsText => self.summary.mark_text_lost(),
            Lost::Other => {}
        }
    }
}

/// The kind of an unreadable line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The agent's result, or the start of a turn.
    LastWord,
    /// A reply, which may be the end of the turn, or a part of the answer. A later reply proves only that it was not the former.
    ReplyOrText,
    /// Possibly a part of the answer.
    PerhapsText,
    /// Irrelevant to the answer.
    Other,
}

/// Returns the event of a line with an unknown type.
fn unknown<'a>(kind: Option<&'a [u8]>, line: &'a [u8]) -> AgentEvent<'a> {
    AgentEvent::Unknown { kind: kind.map(AgentText::from_bytes), raw: RawJson::from_bytes(line) }
}

/// Parses the exit code in the text at the start of a tool's output.
fn exit_code_after(prefix: &str, output: &ToolOutput<'_>) -> Option<i32> {
    let ToolOutput::Text(text) = output else { return None };
    // Longer than any prefix with its code; the rest may be megabytes.
    let head = text.preview(60);
    head.strip_prefix(prefix)?.lines().next()?.trim().parse().ok()
}

/// Returns the first of the named text parameters of a tool, cut to the limit.
fn parameter(input: &RawJson<'_>, names: &[&[u8]]) -> Option<String> {
    let input = input.text();
    let mut found = None;
    let read = Reader::new(input.as_bytes()).object_if(|key, value| {
        if names.contains(&key) && found.is_none() {
            found = value.text()?.as_ref().map(summary::name);
            return Ok(());
        }
        value.skip()
    });
    read.ok().and(found)
}
