//! From the bytes of an agent's stdout to events, in one pass and in bounded memory.
//!
//! Owns the lines and the events. Judges nothing: what a run came to is [`crate::judge`]'s, from the [`Summary`] that is
//! gathered here on the way.

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
pub use summary::{ReportedError, ReportedErrorCode, ReportedResult, Summary};

/// The trouble of an agent that gets no answer from the API of its model, where its own words say nothing.
pub(crate) const UNREACHABLE: &str = "the model's API cannot be reached";

/// How much a parser may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseLimits {
    /// The longest line that is read; a longer one becomes [`Unreadable::Oversized`].
    pub line_bytes: usize,
    /// The longest final text that is kept; of a longer one the head and the tail are.
    pub text_bytes: usize,
}

impl Default for ParseLimits {
    /// 8 MiB a line, 1 MiB of text.
    fn default() -> Self {
        Self { line_bytes: 8 << 20, text_bytes: 1 << 20 }
    }
}

/// Reads one agent's stream, fed in pieces of any size.
///
/// The events do not depend on how the bytes are cut into pieces. A whole line inside a piece is read where it stands;
/// only a line that is spread over two is copied.
///
/// ```
/// use agents::{ParseLimits, Parser};
/// use model::{AgentEvent, AgentKind};
///
/// let mut parser = Parser::new(AgentKind::Codex, ParseLimits::default());
/// let mut words = Vec::new();
/// let mut keep = |event: AgentEvent<'_>| {
///     if let AgentEvent::Text { text, .. } = event {
///         words.push(text.to_string());
///     }
/// };
/// parser.feed(br#"{"type":"item.completed","item":{"id":"1","type":"agent_me"#, &mut keep);
/// parser.feed(b"ssage\",\"text\":\"hello\"}}\n", &mut keep);
/// let summary = parser.finish(&mut keep);
/// assert_eq!(words, ["hello"]);
/// assert_eq!(summary.text(), "hello");
/// ```
#[derive(Debug)]
pub struct Parser {
    lines: Lines,
    reading: Reading,
}

impl Parser {
    /// A parser for an agent's stream, from its first byte. Our own agent speaks claude's.
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

    /// Reads on, and tells every event of every line that is complete.
    pub fn feed(&mut self, bytes: &[u8], on_event: &mut impl FnMut(AgentEvent<'_>)) {
        let reading = &mut self.reading;
        self.lines.feed(bytes, &mut |line| reading.line(line, on_event));
    }

    /// Reads a last line that has no newline, and hands over what was gathered.
    pub fn finish(mut self, on_event: &mut impl FnMut(AgentEvent<'_>)) -> Summary {
        let reading = &mut self.reading;
        self.lines.finish(&mut |line| reading.line(line, on_event));
        self.reading.summary
    }

    /// What was gathered so far.
    pub fn summary(&self) -> &Summary {
        &self.reading.summary
    }

    /// How many bytes are held right now, of lines and of texts. At most twice [`ParseLimits::line_bytes`] (a line, and a
    /// structured answer out of one), six times [`ParseLimits::text_bytes`], and a megabyte for all that is short.
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
                self.summary.saw_oversized();
                self.lose(head, "it is over the limit of a line");
                let why = Unreadable::Oversized { bytes };
                return on_event(AgentEvent::Unreadable { why, line: AgentText::from_bytes(head) });
            }
        };
        if bytes.is_empty() {
            return;
        }
        self.summary.saw_line();
        let read = match self.format {
            Format::Claude => claude::read(bytes, &mut self.summary, on_event),
            Format::Codex => codex::read(bytes, &mut self.summary, on_event),
            Format::Gemini => gemini::read(bytes, &mut self.summary, on_event),
        };
        if read.is_err() {
            let line = AgentText::from_bytes(bytes);
            self.summary.saw_stray(&line);
            self.lose(bytes, "it is not JSON");
            on_event(AgentEvent::Unreadable { why: Unreadable::NotJson, line });
        }
    }

    /// Notes what a line that cannot be read may have been, by as much of it as can be.
    fn lose(&mut self, line: &[u8], why: &str) {
        // A print of somebody else, no event that was damaged.
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
            Lost::PerhapsText => self.summary.lost_text(),
            Lost::Other => {}
        }
    }
}

/// What a line that cannot be read was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// The agent's word that it is done, or that it begins anew.
    LastWord,
    /// The answer or a piece of it, for all that is known.
    PerhapsText,
    /// Something that the answer does not depend on.
    Other,
}

/// A line whose type is not known.
fn unknown<'a>(kind: Option<&'a [u8]>, line: &'a [u8]) -> AgentEvent<'a> {
    AgentEvent::Unknown { kind: kind.map(AgentText::from_bytes), raw: RawJson::from_bytes(line) }
}

/// Parses the exit code that an agent reports in words at the start of a tool's output.
fn exit_code_after(prefix: &str, output: &ToolOutput<'_>) -> Option<i32> {
    let ToolOutput::Text(text) = output else { return None };
    // Longer than any prefix and code together; the rest of the output may be megabytes.
    let head = text.preview(60);
    head.strip_prefix(prefix)?.lines().next()?.trim().parse().ok()
}

/// Returns a parameter of a tool that is a text, by the first of its names, as far as it is kept.
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
