//! The transcript of a job: the agent's text, its tool calls, and notes.
//!
//! Owns the selection of events and their rendering. The page and the live stream use the same entries, so that both show the same
//! transcript. The events come from `calls::Follow`.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use calls::{CallError, Follow, Followed};
use maud::{Markup, html};
use model::{AgentEvent, AgentText, McpServerState, TextPart, ToolOutput, Unreadable};
use render::text::{sanitize, to_one_line, truncate};
use render::text_deltas::{DeltaMerger, MergedText};
use render::tool_lines::{argument, label};
use tokio::time::{Instant, timeout};

/// Maximum number of characters per text. The job's files contain the rest.
const MAX_TEXT_CHARS: usize = 20_000;
/// Maximum number of entries of a page. The oldest are dropped.
const MAX_ENTRIES: usize = 400;
/// Maximum size of the shown end of stderr.
const MAX_STDERR_BYTES: usize = 64 * 1024;
/// A page is complete when no event arrives for this long.
const IDLE_TIMEOUT: Duration = Duration::from_millis(40);
/// Maximum time to read events for a page.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// An entry of the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TranscriptEntry {
    /// Start of another run.
    Run(u32),
    /// Text of the agent or of a sub-agent.
    Text { text: String, is_subagent: bool },
    /// Continuation of the previous text.
    Continued(String),
    /// Reasoning.
    Thinking(String),
    /// A tool call.
    ToolCall { id: String, name: String, input: String },
    /// The result of a tool call.
    ToolResult { id: String, output: String, is_error: bool, exit_code: Option<i32> },
    /// An event beside the answer.
    Note { kind: &'static str, text: String },
    /// Output on stderr.
    Stderr(String),
}

/// Converts followed events to entries.
#[derive(Debug, Default)]
pub(crate) struct JobTranscript {
    /// Is true if the last entry is a text that the next delta continues.
    is_open: bool,
    deltas: DeltaMerger,
    /// Number of events so far.
    pub seen: u64,
}

impl JobTranscript {
    /// Adds an event and returns its entry, if it has one.
    pub fn add(&mut self, followed: &Followed) -> Option<TranscriptEntry> {
        // Not counted: a reconnecting client does not receive past waits again.
        if matches!(followed, Followed::Waiting(_)) {
            return None;
        }
        self.seen += 1;
        let was_open = std::mem::take(&mut self.is_open);
        match followed {
            Followed::Run(1) | Followed::Ended(_) | Followed::Waiting(_) => None,
            Followed::Run(number) => Some(TranscriptEntry::Run(*number)),
            Followed::Error(bytes) => {
                self.is_open = was_open;
                Some(TranscriptEntry::Stderr(String::from_utf8_lossy(bytes).into_owned()))
            }
            Followed::Event(event) => self.event(event, was_open),
        }
    }

    fn event(&mut self, event: &AgentEvent<'_>, was_open: bool) -> Option<TranscriptEntry> {
        match event {
            AgentEvent::Text { text, part: TextPart::Whole, within: Some(_) } => {
                Some(TranscriptEntry::Text { text: bounded(text), is_subagent: true })
            }
            AgentEvent::Text { text, part: TextPart::Whole, within: None } => self.full_text(text, was_open),
            AgentEvent::Text { text, part: TextPart::Partial, within: None } => {
                self.deltas.add(&text.decode());
                self.is_open = true;
                Some(continue_text(bounded(text), was_open))
            }
            AgentEvent::Thinking { text, part: TextPart::Whole } if !text.is_empty() => {
                Some(TranscriptEntry::Thinking(bounded(text)))
            }
            AgentEvent::ToolUse { id, name, input, .. } => Some(TranscriptEntry::ToolCall {
                id: id.decode().into_owned(),
                name: name.preview(100),
                input: bounded_text(&input.text()),
            }),
            AgentEvent::ToolResult { id, output, is_error, exit_code, .. } => {
                let output = match output {
                    ToolOutput::Text(text) => bounded(text),
                    ToolOutput::Json(json) => bounded_text(&json.text()),
                    ToolOutput::Nothing => String::new(),
                };
                let (id, is_error, exit_code) = (id.decode().into_owned(), *is_error, *exit_code);
                Some(TranscriptEntry::ToolResult { id, output, is_error, exit_code })
            }
            event => {
                // The agent restarts its answer.
                if matches!(event, AgentEvent::Retry { .. }) {
                    self.deltas.clear();
                }
                let note = note(event);
                self.is_open = was_open && note.is_none();
                note
            }
        }
    }

    /// Handles a full text, whose deltas may have been shown already.
    fn full_text(&mut self, text: &AgentText<'_>, was_open: bool) -> Option<TranscriptEntry> {
        match self.deltas.merge(&text.decode()) {
            MergedText::New(_) => Some(TranscriptEntry::Text { text: bounded(text), is_subagent: false }),
            MergedText::Continues("") => {
                self.is_open = was_open && self.deltas.is_pending();
                None
            }
            MergedText::Continues(rest) => Some(continue_text(bounded_text(rest), was_open)),
        }
    }
}

/// Returns a continuation, or a new text if another entry came in between.
fn continue_text(text: String, was_open: bool) -> TranscriptEntry {
    if was_open {
        TranscriptEntry::Continued(text)
    } else {
        TranscriptEntry::Text { text, is_subagent: false }
    }
}

/// Returns the note for an event beside the answer.
fn note(event: &AgentEvent<'_>) -> Option<TranscriptEntry> {
    let (kind, text) = match event {
        AgentEvent::SessionStarted { model, tools, mcp_servers, .. } => {
            ("started", describe_start(model.as_ref(), tools.len(), mcp_servers))
        }
        AgentEvent::Retry { attempt, of, status, reason, .. } => {
            let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
            let tried = attempt.map(|attempt| format!("attempt {attempt}{of}: ")).unwrap_or_default();
            let status = status.map(|status| format!("{status} ")).unwrap_or_default();
            ("retry", format!("{tried}{status}{}", bounded(reason)))
        }
        AgentEvent::ModelFallback { to, reason, .. } => {
            let to = to.as_ref().map(|to| format!("{}: ", to.preview(100))).unwrap_or_default();
            ("model fallback", format!("{to}{}", bounded(reason)))
        }
        AgentEvent::PermissionDenied(denial) => {
            let detail = denial.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
            ("denied", bounded_text(&format!("{}{detail}", denial.tool)))
        }
        AgentEvent::BackgroundTasks { running } if running.is_empty() => {
            ("background", "no running task".to_owned())
        }
        AgentEvent::BackgroundTasks { running } => {
            let tasks: Vec<_> = running.iter().map(|task| task.preview(200)).collect();
            ("background", bounded_text(&tasks.join("; ")))
        }
        AgentEvent::Warning { message } => ("warning", bounded(message)),
        AgentEvent::Unreadable { why: Unreadable::NotJson, line } => ("printed", bounded(line)),
        AgentEvent::Unreadable { why: Unreadable::Oversized { bytes }, line } => {
            ("too long", format!("a line of {bytes} bytes starts with: {}", line.preview(200)))
        }
        _ => return None,
    };
    Some(TranscriptEntry::Note { kind, text })
}

fn describe_start(model: Option<&AgentText<'_>>, tools: usize, servers: &[McpServerState<'_>]) -> String {
    let with = model.map(|model| format!("with {}", model.preview(100)));
    let tools = (tools > 0).then(|| format!("{tools} tools"));
    let server =
        |server: &McpServerState<'_>| format!("{} {}", server.name.preview(60), server.status.preview(40));
    let servers: Vec<String> = servers.iter().map(server).collect();
    let servers = (!servers.is_empty()).then(|| format!("MCP: {}", servers.join(", ")));
    [with, tools, servers].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn bounded(text: &AgentText<'_>) -> String {
    // One character more than is shown, to detect the cut.
    bounded_text(&text.preview(MAX_TEXT_CHARS + 1))
}

fn bounded_text(text: &str) -> String {
    match truncate(text, MAX_TEXT_CHARS) {
        (text, 0) => text.to_owned(),
        (head, _) => format!("{head}\n[… the rest is in the raw output]"),
    }
}

/// The transcript of a job so far.
#[derive(Debug, Default)]
pub(crate) struct TranscriptSnapshot {
    /// The newest entries.
    pub entries: VecDeque<TranscriptEntry>,
    /// Number of omitted older entries.
    pub omitted: u64,
    /// The end of stderr.
    pub stderr: String,
    /// Number of events. The live stream continues after them.
    pub seen: u64,
    /// Is true if the time limit was reached before the last event.
    pub is_incomplete: bool,
}

/// Reads the events of a job so far.
pub(crate) async fn read_snapshot(follow: &mut Follow) -> Result<TranscriptSnapshot, CallError> {
    let mut transcript = JobTranscript::default();
    let mut snapshot = TranscriptSnapshot::default();
    let deadline = Instant::now() + READ_TIMEOUT;
    loop {
        if Instant::now() > deadline {
            snapshot.is_incomplete = true;
            break;
        }
        let Ok(followed) = timeout(IDLE_TIMEOUT, follow.next()).await else { break };
        let Some(followed) = followed? else { break };
        if let Some(entry) = transcript.add(&followed) {
            snapshot.push(entry);
        }
    }
    snapshot.seen = transcript.seen;
    Ok(snapshot)
}

impl TranscriptSnapshot {
    fn push(&mut self, entry: TranscriptEntry) {
        match (entry, self.entries.back_mut()) {
            (TranscriptEntry::Stderr(text), _) => {
                self.stderr.push_str(&text);
                let over = self.stderr.len().saturating_sub(MAX_STDERR_BYTES);
                self.stderr.drain(..self.stderr.ceil_char_boundary(over));
            }
            (TranscriptEntry::Continued(more), Some(TranscriptEntry::Text { text, .. }))
                if text.len() < MAX_TEXT_CHARS =>
            {
                text.push_str(&more);
            }
            (TranscriptEntry::Continued(_), Some(TranscriptEntry::Text { .. })) => {}
            (entry, _) => self.entries.push_back(entry),
        }
        if self.entries.len() > MAX_ENTRIES {
            self.entries.pop_front();
            self.omitted += 1;
        }
    }

    /// Renders the entries for a page, each tool result inside its tool call.
    pub fn render(&self) -> Markup {
        let mut results: HashMap<&str, Vec<&TranscriptEntry>> = HashMap::new();
        for entry in &self.entries {
            if let TranscriptEntry::ToolResult { id, .. } = entry {
                results.entry(id).or_default().push(entry);
            }
        }
        let mut shown: Vec<Markup> = Vec::new();
        for entry in &self.entries {
            match entry {
                TranscriptEntry::ToolCall { id, .. } => {
                    let results = results.remove(id.as_str()).unwrap_or_default();
                    shown.push(render_tool_call(entry, &results));
                }
                TranscriptEntry::ToolResult { id, .. } if !results.contains_key(id.as_str()) => {}
                entry => shown.push(render_entry(entry)),
            }
        }
        html! { @for entry in shown { (entry) } }
    }
}

/// Renders an entry. In the live stream, the script moves a tool result into its tool call.
pub(crate) fn render_entry(entry: &TranscriptEntry) -> Markup {
    match entry {
        TranscriptEntry::Run(number) => html! { li.turn { span { "Run " (number) } } },
        TranscriptEntry::Text { text, is_subagent: false } => {
            html! { li.said { div.text { (sanitize(text)) } } }
        }
        TranscriptEntry::Text { text, is_subagent: true } => {
            html! { li.said.within { span.who { "Sub-agent" } div.text { (sanitize(text)) } } }
        }
        TranscriptEntry::Continued(text) => html! { (sanitize(text)) },
        TranscriptEntry::Thinking(text) => {
            html! { li.thought { details { summary { span.who { "Thought" } " " (to_one_line(text, 80)) } div.text { (sanitize(text)) } } } }
        }
        TranscriptEntry::ToolCall { .. } => render_tool_call(entry, &[]),
        TranscriptEntry::ToolResult { output, .. } => html! {
            div.answered {
                span.who { (failure(entry).unwrap_or_else(|| "Result".to_owned())) }
                @if output.is_empty() { p.nothing { "no output" } } @else { pre tabindex="0" { (sanitize(output)) } }
            }
        },
        TranscriptEntry::Note { kind, text } => {
            html! { li.note { span.who { (kind) } " " span.text { (sanitize(text)) } } }
        }
        TranscriptEntry::Stderr(text) => html! { (sanitize(text)) },
    }
}

fn render_tool_call(entry: &TranscriptEntry, results: &[&TranscriptEntry]) -> Markup {
    let TranscriptEntry::ToolCall { id, name, input } = entry else { return html! {} };
    let failure = results.iter().find_map(|result| failure(result));
    html! {
        li.tool {
            details data-tool=(id) {
                summary {
                    span.who { "Tool" } " " strong { (label(name)) } " " span.gist { (main_argument(name, input)) }
                    @if let Some(failure) = failure { " " span.failure { "✗ " (failure) } }
                }
                pre tabindex="0" { (sanitize(&pretty_json(input))) }
                @for result in results { (render_entry(result)) }
            }
        }
    }
}

/// Returns a short description of a tool's failure.
pub(crate) fn failure(entry: &TranscriptEntry) -> Option<String> {
    match entry {
        TranscriptEntry::ToolResult { is_error: true, exit_code: Some(code), .. } => {
            Some(format!("exit {code}"))
        }
        TranscriptEntry::ToolResult { is_error: true, .. } => Some("failed".to_owned()),
        _ => None,
    }
}

/// Returns the main argument of a tool in one line, as in the terminal.
fn main_argument(name: &str, input: &str) -> String {
    match serde_json::from_str(input) {
        Ok(value) => to_one_line(&argument(name, &value, Path::new("")), 100),
        Err(_) => to_one_line(input, 100),
    }
}

fn pretty_json(input: &str) -> String {
    let value: Result<serde_json::Value, _> = serde_json::from_str(input);
    value.and_then(|value| serde_json::to_string_pretty(&value)).unwrap_or_else(|_| input.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::RawJson;

    fn event(event: AgentEvent<'static>) -> Followed {
        Followed::Event(Box::new(event))
    }

    fn text(text: &'static str, part: TextPart) -> Followed {
        event(AgentEvent::Text { text: text.into(), part, within: None })
    }

    fn snapshot(events: &[Followed]) -> TranscriptSnapshot {
        let mut transcript = JobTranscript::default();
        let mut snapshot = TranscriptSnapshot::default();
        events.iter().filter_map(|event| transcript.add(event)).for_each(|entry| snapshot.push(entry));
        snapshot
    }

    #[test]
    fn text_is_shown_once_with_or_without_deltas() {
        let events =
            [text("a ", TextPart::Partial), text("b", TextPart::Partial), text("a b", TextPart::Whole)];
        let said = |text: &str| TranscriptEntry::Text { text: text.to_owned(), is_subagent: false };
        for events in [&events[..], &events[..2], &events[2..]] {
            assert_eq!(snapshot(events).entries, [said("a b")], "{events:?}");
        }
        let next = [events[0].clone(), events[1].clone(), events[2].clone(), text("c", TextPart::Partial)];
        assert_eq!(snapshot(&next).entries, [said("a b"), said("c")], "the next text is a new entry");
    }

    #[test]
    fn restarted_text_is_shown_again() {
        let said = |text: &str| TranscriptEntry::Text { text: text.to_owned(), is_subagent: false };
        let events = [text("Half an ans", TextPart::Partial), text("Another answer", TextPart::Whole)];
        assert_eq!(snapshot(&events).entries, [said("Half an ans"), said("Another answer")]);
    }

    #[test]
    fn tool_result_is_escaped_inside_its_call() {
        let input = RawJson::from_bytes(br#"{"command":"<img src=x onerror=alert(1)>"}"#);
        let events = [
            event(AgentEvent::ToolUse { id: "1".into(), name: "<b>Bash</b>".into(), input, within: None }),
            text("between", TextPart::Whole),
            event(AgentEvent::ToolResult {
                id: "1".into(),
                output: ToolOutput::Text("</pre><script>alert(1)</script>".into()),
                is_error: true,
                exit_code: Some(3),
                in_background: false,
            }),
        ];
        let shown = snapshot(&events).render().into_string();
        let tool = &shown[..shown.find("between").unwrap()];
        assert!(tool.contains("✗ exit 3") && tool.contains("&lt;/pre&gt;&lt;script&gt;"), "{shown}");
        for markup in ["<script", "<img", "<b>"] {
            assert!(!shown.contains(markup), "{shown}");
        }
    }

    #[test]
    fn long_transcript_keeps_its_end() {
        let many: Vec<Followed> = (0..MAX_ENTRIES + 5).map(|_| text("x", TextPart::Whole)).collect();
        let snapshot = snapshot(&many);
        assert_eq!((snapshot.entries.len(), snapshot.omitted), (MAX_ENTRIES, 5));
    }
}
