//! Parses an agent's stdout to events, in one pass and in bounded memory.
//!
//! Owns lines and events. Collects the [`Summary`] from which [`crate::judge`] derives the outcome.

mod background;
mod claude;
mod codex;
mod gemini;
mod json;
mod lines;
mod refused_paths;
mod summary;

use model::{AgentEvent, AgentKind, AgentText, RawJson, ToolOutput, Unreadable};

pub use background::TaskTracker;
use json::Reader;
use lines::{Line, Lines};
use memchr::memchr2;
pub use refused_paths::{RefusedErrno, RefusedPath, RefusedPaths};
pub(crate) use summary::without_last_word;
pub use summary::{ReportedError, ReportedErrorCode, ReportedResult, Summary};

/// The message for an agent that gets no reply from its model's API and reports no reason.
pub(crate) const UNREACHABLE: &str = "the model's API cannot be reached";

/// The memory limits of a parser.
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

/// Parses one agent's stream, fed in chunks of any size.
///
/// The events do not depend on the chunk boundaries. A line within a chunk is parsed in place; only a line across two chunks is
/// copied.
///
/// ```
/// use agents::{ParseLimits, Parser};
/// use model::{AgentEvent, AgentKind};
///
/// let mut parser = Parser::new(AgentKind::Codex, ParseLimits::default());
/// let mut texts = Vec::new();
/// let mut on_event = |event: AgentEvent<'_>| {
///     if let AgentEvent::Text { text, .. } = event {
///         texts.push(text.to_string());
///     }
/// };
/// parser.feed(br#"{"type":"item.completed","item":{"id":"1","type":"agent_me"#, &mut on_event);
/// parser.feed(b"ssage\",\"text\":\"hello\"}}\n", &mut on_event);
/// let summary = parser.finish(&mut on_event);
/// assert_eq!(texts, ["hello"]);
/// assert_eq!(summary.text(), "hello");
/// ```
#[derive(Debug)]
pub struct Parser {
    lines: Lines,
    reading: Reading,
}

impl Parser {
    /// Returns a parser for the stream of an agent. The rehearsal agent uses claude's format.
    pub fn new(kind: AgentKind, limits: ParseLimits) -> Self {
        let format = match kind {
            AgentKind::Claude | AgentKind::Rehearsal => Format::Claude,
            AgentKind::Codex => Format::Codex,
            AgentKind::Gemini => Format::Gemini,
        };
        Self {
            lines: Lines::new(limits.line_bytes),
            reading: Reading { format, summary: Summary::new(limits.text_bytes) },
        }
    }

    /// Parses a chunk and emits the events of each complete line.
    pub fn feed(&mut self, bytes: &[u8], on_event: &mut impl FnMut(AgentEvent<'_>)) {
        let reading = &mut self.reading;
        self.lines.feed(bytes, &mut |line| reading.line(line, on_event));
    }

    /// Parses a last line without a newline and returns the summary.
    pub fn finish(mut self, on_event: &mut impl FnMut(AgentEvent<'_>)) -> Summary {
        let reading = &mut self.reading;
        self.lines.finish(&mut |line| reading.line(line, on_event));
        self.reading.summary
    }

    /// Returns the summary so far.
    pub fn summary(&self) -> &Summary {
        &self.reading.summary
    }

    /// Returns the bytes in memory. At most twice [`ParseLimits::line_bytes`] (a line and a structured answer from it), six times
    /// [`ParseLimits::text_bytes`], and a megabyte for short texts.
    pub fn held_bytes(&self) -> usize {
        self.lines.held_bytes() + self.reading.summary.held_bytes()
    }
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Claude,
    Codex,
    Gemini,
}

#[derive(Debug)]
struct Reading {
    format: Format,
    summary: Summary,
}

impl Reading {
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
        let read = match self.format {
            Format::Claude => claude::read(bytes, &mut self.summary, on_event),
            Format::Codex => codex::read(bytes, &mut self.summary, on_event),
            Format::Gemini => gemini::read(bytes, &mut self.summary, on_event),
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
        let lost = match self.format {
            Format::Claude => claude::lost(line),
            Format::Codex => codex::lost(line),
            Format::Gemini => gemini::lost(line),
        };
        match lost {
            Lost::LastWord => self.summary.reported = Some(ReportedResult::Unreadable(why.to_owned())),
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
