//! What an agent did, as a person reads it: its words, the tools that it used, what else is worth an eye.
//!
//! Owns which of the events are shown and how each looks. The same pieces are in the page that is sent and in what follows live, so
//! a reader who comes late sees what one saw who was there. Where they come from is `calls::Follow`.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use calls::{CallError, Follow, Followed};
use maud::{Markup, html};
use model::{AgentEvent, AgentText, McpServerState, TextPart, ToolOutput, Unreadable};
use tokio::time::{Instant, timeout};

use crate::text::{cut, one_line, visible};
use crate::tool_lines::{argument, label};
use render::text_deltas::{DeltaMerger, MergedText};

/// How much of one text is shown; all of it is in the job's files.
const LONGEST_TEXT: usize = 20_000;
/// How many pieces a page has at most, the newest.
const MOST_PIECES: usize = 400;
/// How much of stderr a page has at most, the end of it.
const LONGEST_STDERR: usize = 64 * 1024;
/// When an agent has told nothing for so long, a page has what there is.
const SILENCE: Duration = Duration::from_millis(40);
/// And after so long in any case: some never fall silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Something to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A further run has begun.
    Run(u32),
    /// Words of the answer; of a sub-agent, when it is one.
    Said { text: String, within: bool },
    /// More of the words before.
    Grown(String),
    /// Reasoning.
    Thought(String),
    /// A tool is used.
    Tool { id: String, name: String, input: String },
    /// A tool has answered.
    Answered { id: String, output: String, is_error: bool, exit_code: Option<i32> },
    /// Something beside the answer.
    Note { kind: &'static str, text: String },
    /// What was written to stderr.
    Stderr(String),
}

/// Makes pieces of what a job's followers are told.
#[derive(Debug, Default)]
pub struct Transcript {
    /// Whether the last thing that was shown is the words that the next piece goes on with.
    growing: bool,
    deltas: DeltaMerger,
    /// How many things were told.
    pub told: u64,
}

impl Transcript {
    /// What is to be shown of it, if anything.
    pub fn take(&mut self, told: &Followed) -> Option<Piece> {
        // Not counted: a watcher that comes back is not told of a wait that is over.
        if matches!(told, Followed::Waiting(_)) {
            return None;
        }
        self.told += 1;
        let was_growing = std::mem::take(&mut self.growing);
        match told {
            Followed::Run(1) | Followed::Ended(_) | Followed::Waiting(_) => None,
            Followed::Run(number) => Some(Piece::Run(*number)),
            Followed::Error(bytes) => {
                self.growing = was_growing;
                Some(Piece::Stderr(String::from_utf8_lossy(bytes).into_owned()))
            }
            Followed::Event(event) => self.event(event, was_growing),
        }
    }

    fn event(&mut self, event: &AgentEvent<'_>, was_growing: bool) -> Option<Piece> {
        match event {
            AgentEvent::Text { text, part: TextPart::Whole, within: Some(_) } => {
                Some(Piece::Said { text: bounded(text), within: true })
            }
            AgentEvent::Text { text, part: TextPart::Whole, within: None } => self.whole(text, was_growing),
            AgentEvent::Text { text, part: TextPart::Partial, within: None } => {
                self.deltas.add(&text.decode());
                self.growing = true;
                Some(grown(bounded(text), was_growing))
            }
            AgentEvent::Thinking { text, part: TextPart::Whole } if !text.is_empty() => {
                Some(Piece::Thought(bounded(text)))
            }
            AgentEvent::ToolUse { id, name, input, .. } => Some(Piece::Tool {
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
                Some(Piece::Answered { id, output, is_error, exit_code })
            }
            event => {
                // Afterwards the agent begins its answer again.
                if matches!(event, AgentEvent::Retry { .. }) {
                    self.deltas.clear();
                }
                let note = note(event);
                self.growing = was_growing && note.is_none();
                note
            }
        }
    }

    /// Words that may have been shown in pieces already.
    fn whole(&mut self, text: &AgentText<'_>, was_growing: bool) -> Option<Piece> {
        match self.deltas.merge(&text.decode()) {
            MergedText::New(_) => Some(Piece::Said { text: bounded(text), within: false }),
            MergedText::Continues("") => {
                self.growing = was_growing && self.deltas.is_pending();
                None
            }
            MergedText::Continues(rest) => Some(grown(bounded_text(rest), was_growing)),
        }
    }
}

/// Words that go on with the last ones where nothing has come between.
fn grown(text: String, was_growing: bool) -> Piece {
    if was_growing { Piece::Grown(text) } else { Piece::Said { text, within: false } }
}

/// What is worth an eye beside the answer.
fn note(event: &AgentEvent<'_>) -> Option<Piece> {
    let (kind, text) = match event {
        AgentEvent::SessionStarted { model, tools, mcp_servers, .. } => {
            ("started", started(model.as_ref(), tools.len(), mcp_servers))
        }
        AgentEvent::Retry { attempt, of, status, reason, .. } => {
            let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
            let tried = attempt.map(|attempt| format!("try {attempt}{of}: ")).unwrap_or_default();
            let status = status.map(|status| format!("{status} ")).unwrap_or_default();
            ("tries again", format!("{tried}{status}{}", bounded(reason)))
        }
        AgentEvent::ModelFallback { to, reason, .. } => {
            let to = to.as_ref().map(|to| format!("{}: ", to.preview(100))).unwrap_or_default();
            ("another model", format!("{to}{}", bounded(reason)))
        }
        AgentEvent::PermissionDenied(denial) => {
            let detail = denial.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
            ("not allowed", bounded_text(&format!("{}{detail}", denial.tool)))
        }
        AgentEvent::BackgroundTasks { running } if running.is_empty() => {
            ("background", "no task is running".to_owned())
        }
        AgentEvent::BackgroundTasks { running } => {
            let tasks: Vec<_> = running.iter().map(|task| task.preview(200)).collect();
            ("background", bounded_text(&tasks.join("; ")))
        }
        AgentEvent::Warning { message } => ("warning", bounded(message)),
        AgentEvent::Unreadable { why: Unreadable::NotJson, line } => ("printed", bounded(line)),
        AgentEvent::Unreadable { why: Unreadable::Oversized { bytes }, line } => {
            ("too long", format!("a line of {bytes} bytes begins: {}", line.preview(200)))
        }
        _ => return None,
    };
    Some(Piece::Note { kind, text })
}

fn started(model: Option<&AgentText<'_>>, tools: usize, servers: &[McpServerState<'_>]) -> String {
    let with = model.map(|model| format!("with {}", model.preview(100)));
    let tools = (tools > 0).then(|| format!("{tools} tools"));
    let server =
        |server: &McpServerState<'_>| format!("{} {}", server.name.preview(60), server.status.preview(40));
    let servers: Vec<String> = servers.iter().map(server).collect();
    let servers = (!servers.is_empty()).then(|| format!("MCP: {}", servers.join(", ")));
    [with, tools, servers].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn bounded(text: &AgentText<'_>) -> String {
    // One more than is shown, so that it is seen that there is more.
    bounded_text(&text.preview(LONGEST_TEXT + 1))
}

fn bounded_text(text: &str) -> String {
    match cut(text, LONGEST_TEXT) {
        (text, 0) => text.to_owned(),
        (head, _) => format!("{head}\n[… the rest is in the raw output]"),
    }
}

/// What a job has told so far.
#[derive(Debug)]
pub struct SoFar {
    /// The newest of it.
    pub pieces: VecDeque<Piece>,
    /// How many pieces before those are left out.
    pub left_out: u64,
    /// The end of stderr.
    pub stderr: String,
    /// How many things were told: what follows goes on from there.
    pub told: u64,
    /// Whether there was more than can be read while somebody waits for a page.
    pub unfinished: bool,
}

/// Reads what a job has told by now.
pub async fn so_far(follow: &mut Follow) -> Result<SoFar, CallError> {
    let mut transcript = Transcript::default();
    let mut so_far =
        SoFar { pieces: VecDeque::new(), left_out: 0, stderr: String::new(), told: 0, unfinished: false };
    let give_up_at = Instant::now() + PATIENCE;
    loop {
        if Instant::now() > give_up_at {
            so_far.unfinished = true;
            break;
        }
        let Ok(told) = timeout(SILENCE, follow.next()).await else { break };
        let Some(told) = told? else { break };
        if let Some(piece) = transcript.take(&told) {
            so_far.add(piece);
        }
    }
    so_far.told = transcript.told;
    Ok(so_far)
}

impl SoFar {
    fn add(&mut self, piece: Piece) {
        match (piece, self.pieces.back_mut()) {
            (Piece::Stderr(text), _) => {
                self.stderr.push_str(&text);
                let over = self.stderr.len().saturating_sub(LONGEST_STDERR);
                self.stderr.drain(..self.stderr.ceil_char_boundary(over));
            }
            (Piece::Grown(more), Some(Piece::Said { text, .. })) if text.len() < LONGEST_TEXT => {
                text.push_str(&more);
            }
            (Piece::Grown(_), Some(Piece::Said { .. })) => {}
            (piece, _) => self.pieces.push_back(piece),
        }
        if self.pieces.len() > MOST_PIECES {
            self.pieces.pop_front();
            self.left_out += 1;
        }
    }

    /// As a page has it: what a tool answered is with the tool.
    pub fn render(&self) -> Markup {
        let mut answers: HashMap<&str, Vec<&Piece>> = HashMap::new();
        for piece in &self.pieces {
            if let Piece::Answered { id, .. } = piece {
                answers.entry(id).or_default().push(piece);
            }
        }
        let mut shown: Vec<Markup> = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Tool { id, .. } => {
                    let answers = answers.remove(id.as_str()).unwrap_or_default();
                    shown.push(tool(piece, &answers));
                }
                Piece::Answered { id, .. } if !answers.contains_key(id.as_str()) => {}
                piece => shown.push(render(piece)),
            }
        }
        html! { @for piece in shown { (piece) } }
    }
}

/// How a piece looks. What a tool answered is put where it belongs by a script.
pub fn render(piece: &Piece) -> Markup {
    match piece {
        Piece::Run(number) => html! { li.turn { span { "Run " (number) } } },
        Piece::Said { text, within: false } => html! { li.said { div.text { (visible(text)) } } },
        Piece::Said { text, within: true } => {
            html! { li.said.within { span.who { "Sub-agent" } div.text { (visible(text)) } } }
        }
        Piece::Grown(text) => html! { (visible(text)) },
        Piece::Thought(text) => {
            html! { li.thought { details { summary { span.who { "Thought" } " " (one_line(text, 80)) } div.text { (visible(text)) } } } }
        }
        Piece::Tool { .. } => tool(piece, &[]),
        Piece::Answered { output, .. } => html! {
            div.answered {
                span.who { (failure(piece).unwrap_or_else(|| "Answered".to_owned())) }
                @if output.is_empty() { p.nothing { "nothing" } } @else { pre tabindex="0" { (visible(output)) } }
            }
        },
        Piece::Note { kind, text } => {
            html! { li.note { span.who { (kind) } " " span.text { (visible(text)) } } }
        }
        Piece::Stderr(text) => html! { (visible(text)) },
    }
}

fn tool(piece: &Piece, answers: &[&Piece]) -> Markup {
    let Piece::Tool { id, name, input } = piece else { return html! {} };
    let failure = answers.iter().find_map(|answer| failure(answer));
    html! {
        li.tool {
            details data-tool=(id) {
                summary {
                    span.who { "Tool" } " " strong { (label(name)) } " " span.gist { (gist(name, input)) }
                    @if let Some(failure) = failure { " " span.failure { "✗ " (failure) } }
                }
                pre tabindex="0" { (visible(&indented(input))) }
                @for answer in answers { (render(answer)) }
            }
        }
    }
}

/// Returns how a tool failed, in short.
pub fn failure(piece: &Piece) -> Option<String> {
    match piece {
        Piece::Answered { is_error: true, exit_code: Some(code), .. } => Some(format!("exit {code}")),
        Piece::Answered { is_error: true, .. } => Some("failed".to_owned()),
        _ => None,
    }
}

/// Returns the argument of a tool in one line, as the terminal shows it.
fn gist(name: &str, input: &str) -> String {
    match serde_json::from_str(input) {
        Ok(value) => one_line(&argument(name, &value, Path::new("")), 100),
        Err(_) => one_line(input, 100),
    }
}

fn indented(input: &str) -> String {
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

    fn read(told: &[Followed]) -> SoFar {
        let mut transcript = Transcript::default();
        let mut so_far =
            SoFar { pieces: VecDeque::new(), left_out: 0, stderr: String::new(), told: 0, unfinished: false };
        told.iter().filter_map(|told| transcript.take(told)).for_each(|piece| so_far.add(piece));
        so_far
    }

    #[test]
    fn words_are_shown_once_whether_they_come_in_pieces_as_a_whole_or_as_both() {
        let told =
            [text("a ", TextPart::Partial), text("b", TextPart::Partial), text("a b", TextPart::Whole)];
        let said = |text: &str| Piece::Said { text: text.to_owned(), within: false };
        for told in [&told[..], &told[..2], &told[2..]] {
            assert_eq!(read(told).pieces, [said("a b")], "{told:?}");
        }
        let next = [told[0].clone(), told[1].clone(), told[2].clone(), text("c", TextPart::Partial)];
        assert_eq!(read(&next).pieces, [said("a b"), said("c")], "the next words stand for themselves");
    }

    #[test]
    fn words_that_were_begun_again_are_shown_again() {
        let said = |text: &str| Piece::Said { text: text.to_owned(), within: false };
        let told = [text("Half an ans", TextPart::Partial), text("Another answer", TextPart::Whole)];
        assert_eq!(read(&told).pieces, [said("Half an ans"), said("Another answer")]);
    }

    #[test]
    fn what_a_tool_answered_is_inside_the_tool_and_nothing_is_markup() {
        let input = RawJson::from_bytes(br#"{"command":"<img src=x onerror=alert(1)>"}"#);
        let told = [
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
        let shown = read(&told).render().into_string();
        let tool = &shown[..shown.find("between").unwrap()];
        assert!(tool.contains("✗ exit 3") && tool.contains("&lt;/pre&gt;&lt;script&gt;"), "{shown}");
        for markup in ["<script", "<img", "<b>"] {
            assert!(!shown.contains(markup), "{shown}");
        }
    }

    #[test]
    fn a_long_story_keeps_its_end() {
        let many: Vec<Followed> = (0..MOST_PIECES + 5).map(|_| text("x", TextPart::Whole)).collect();
        let so_far = read(&many);
        assert_eq!((so_far.pieces.len(), so_far.left_out), (MOST_PIECES, 5));
    }
}
