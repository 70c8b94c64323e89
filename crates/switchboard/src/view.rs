//! What a person sees of a job while it runs.
//!
//! On a terminal a line at the bottom says how long it takes, what the agent does and what it has used, and the answer grows above
//! it, word by word where the agent sends it so. Anywhere else there are plain lines: the answer on stdout, everything else on stderr.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use calls::{Answer, Problem, describe_wait};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use model::AgentKind;
use serde_json::Value;

use crate::cli::CallArgs;
use crate::closing::Closing;
use crate::echo::NoMark;
use crate::failure::Failure;
use crate::{output, paint};
use render::duration::format_millis;
use render::text::strip_control;
use render::text_deltas::{DeltaMerger, MergedText};
use render::tool_lines::{Timing, ToolLine, ToolLog};

/// How much of what goes on fits beside the time.
const DOING_CHARS: usize = 60;
/// How many rows of a line that has no end yet are shown: all of them could be more than the screen has.
const OPEN_ROWS: usize = 4;
/// The line of progress, alone and below a line that has no end yet. The words are fixed; should they be wrong after all, the
/// plain style does.
const ALONE: &str = "{spinner} {elapsed} {wide_msg}";
const BELOW: &str = "{prefix}\n{spinner} {elapsed} {wide_msg}";

/// What is wanted of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The words of the answer, for a person.
    Words,
    /// Every event as a line of JSON, and the answer as the last.
    Events,
    /// The answer alone, as a JSON object.
    Answer,
}

impl How {
    /// What an order wants.
    pub fn of(order: &CallArgs) -> Self {
        match (order.json, order.events) {
            (true, _) => Self::Answer,
            (_, true) => Self::Events,
            _ => Self::Words,
        }
    }

    /// Whether somebody sees every word as it comes. For nobody else is it worth the room that pieces take: many times the answer.
    pub fn is_watched(self) -> bool {
        match self {
            Self::Words => io::stdout().is_terminal(),
            Self::Events => true,
            Self::Answer => false,
        }
    }
}

/// A job as somebody sees it.
pub struct View {
    how: How,
    agent: AgentKind,
    bar: Option<ProgressBar>,
    _no_mark: Option<NoMark>,
    /// Whether the answer is on the same screen as the line of progress.
    together: bool,
    /// The piece of an answer that has no end of line yet.
    open: String,
    deltas: DeltaMerger,
    tools: ToolLog,
    doing: String,
    /// Whether the time that is shown is that of a wait.
    has_waited: bool,
    tokens: u64,
    /// The background tasks that are running.
    background: Vec<String>,
}

impl View {
    /// Creates the view of a job of `agent` in `directory`.
    pub fn new(how: How, agent: AgentKind, directory: PathBuf, timing: Timing) -> Self {
        let live = how == How::Words && io::stderr().is_terminal();
        let bar = live.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(style(ALONE));
            bar
        });
        let no_mark = bar.as_ref().and_then(|_| NoMark::on_stderr());
        let together = live && io::stdout().is_terminal();
        Self {
            how,
            agent,
            bar,
            _no_mark: no_mark,
            together,
            open: String::new(),
            deltas: DeltaMerger::default(),
            tools: ToolLog::new(directory, timing),
            doing: "starting".to_owned(),
            has_waited: false,
            tokens: 0,
            background: Vec::new(),
        }
    }

    /// Time has passed.
    pub fn tick(&self) {
        if let Some(bar) = &self.bar {
            bar.set_message(self.message());
            bar.tick();
        }
    }

    fn message(&self) -> String {
        let doing: String = self.doing.chars().take(DOING_CHARS).collect();
        let used = if self.tokens > 0 { format!(" · {} tokens", self.tokens) } else { String::new() };
        strip_control(&format!("{} · {doing}{used}", self.agent))
    }

    /// The agent said something.
    pub fn event(&mut self, said: &Value) {
        match self.how {
            How::Events => output::line(&said.to_string()),
            How::Answer => {}
            How::Words => self.show(said),
        }
    }

    fn show(&mut self, said: &Value) {
        let text = |name: &str| said[name].as_str().unwrap_or_default();
        if text("event") == "waiting" {
            return self.wait(text("reason"));
        }
        if std::mem::take(&mut self.has_waited)
            && let Some(bar) = &self.bar
        {
            // The wait is no part of the agent's time.
            bar.reset_elapsed();
        }
        match text("event") {
            "text" if !said["within"].is_null() => {}
            "text" => {
                "answering".clone_into(&mut self.doing);
                self.say(text("text"), text("part") == "whole");
            }
            "finished" => {
                self.break_off();
                if let Some(wait) = describe_wait(&self.background) {
                    self.aside(&format!("· {wait}"));
                    self.doing = wait;
                }
            }
            "background_tasks" => {
                let running = said["running"].as_array().into_iter().flatten();
                self.background = running.filter_map(Value::as_str).map(strip_control).collect();
            }
            "thinking" => "thinking".clone_into(&mut self.doing),
            "session_started" => {
                // Another run: the tools of the one before it have no result any more.
                let lost = self.tools.drain(true);
                self.show_tools(lost);
                "started".clone_into(&mut self.doing);
            }
            "tool_use" => {
                self.break_off();
                let announced = self.tools.start(said);
                self.show_tools(announced);
            }
            "permission_denied" => self.tools.refuse(said),
            "tool_result" => {
                let finished = self.tools.finish(said);
                "thinking".clone_into(&mut self.doing);
                self.show_tools(finished);
            }
            "retry" => {
                self.break_off();
                self.aside(&retry_line(said));
            }
            "usage" => {
                let figures = ["input", "output"].iter().filter_map(|name| said[name].as_u64());
                // The agent's own figures, which need not be true.
                self.tokens = figures.fold(0, u64::saturating_add);
            }
            _ => {}
        }
    }

    /// Prints lines about tool calls, each above the progress line.
    fn show_tools(&mut self, lines: impl IntoIterator<Item = ToolLine>) {
        for line in lines {
            self.end_line();
            self.aside(&line.render(paint::stderr_width(), paint::paints(&io::stderr())));
        }
        if let Some(current) = self.tools.current() {
            self.doing = current;
        }
    }

    /// Nothing of the job runs.
    fn wait(&mut self, reason: &str) {
        self.has_waited = true;
        self.doing = strip_control(reason);
        if self.bar.is_none() {
            output::aside(&format!("· {}", self.doing));
        }
    }

    /// Words of the answer, of which nothing is shown twice.
    fn say(&mut self, words: &str, whole: bool) {
        if !whole {
            self.deltas.add(words);
            return self.words(words);
        }
        match self.deltas.merge(words) {
            MergedText::Continues(_) if self.deltas.is_pending() => {}
            MergedText::Continues(rest) => self.words(&format!("{rest}\n")),
            MergedText::New(words) => {
                self.end_line();
                self.words(&format!("{words}\n"));
            }
        }
    }

    /// Whatever comes next does not go on with the words before.
    fn break_off(&mut self) {
        self.deltas.clear();
        self.end_line();
    }

    fn end_line(&mut self) {
        if !self.open.is_empty() {
            self.words("\n");
        }
    }

    /// Puts words on the screen. Below them may be the line of progress: then whole lines are printed for good above it, and what
    /// has no end yet is drawn together with it.
    fn words(&mut self, words: &str) {
        let Some(bar) = self.bar.as_ref().filter(|_| self.together) else {
            self.open.push_str(words);
            self.open.drain(..self.open.rfind('\n').map_or(0, |end| end + 1));
            return output::piece(words);
        };
        let was_open = !self.open.is_empty();
        self.open.push_str(words);
        if let Some(end) = self.open.rfind('\n') {
            let rest = self.open.split_off(end + 1);
            let lines = std::mem::replace(&mut self.open, rest);
            bar.suspend(|| output::piece(&lines));
        }
        if was_open == self.open.is_empty() {
            bar.set_style(style(if self.open.is_empty() { ALONE } else { BELOW }));
        }
        bar.set_prefix(last_rows(&self.open, paint::width().unwrap_or(80)));
    }

    /// A line beside the answer.
    pub fn aside(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::aside(text)),
            None => output::aside(text),
        }
    }

    /// The job is over.
    pub fn end(mut self, answer: &Answer) -> Result<(), Failure> {
        self.close(answer.status.is_final());
        match self.how {
            How::Words => Closing::from_answer(answer).print(),
            How::Events | How::Answer => output::line(&serde_json::to_string(answer)?),
        }
        Ok(())
    }

    /// Removes the progress line. Tools without a result keep a line, which says whether the run `is_over`.
    pub fn close(&mut self, is_over: bool) {
        self.end_line();
        let open = self.tools.drain(is_over);
        self.show_tools(open);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Nothing more is heard of the job, which is not lost.
    pub fn lose_sight(&mut self, job: &str) {
        self.close(false);
        output::aside(&format!("lost sight of job {job}; `switchboard logs -f {job}` comes back to it"));
    }

    /// The person goes, the job stays, or is being stopped.
    pub fn leave(&mut self, job: &str, cancelled: bool) {
        self.close(false);
        let (what, rest) = if cancelled {
            ("is being stopped", String::new())
        } else {
            ("goes on", format!(", `switchboard cancel {job}` ends it"))
        };
        output::aside(&format!("job {job} {what}; `switchboard logs -f {job}` comes back to it{rest}"));
        if self.how != How::Words {
            output::line(&serde_json::json!({ "status": "running", "job_id": job }).to_string());
        }
    }
}

/// The line about a `retry` event: which attempt, when, and why.
fn retry_line(event: &Value) -> String {
    let number = |name: &str| event[name].as_u64();
    let attempt = match (number("attempt"), number("of")) {
        (Some(attempt), Some(of)) => format!(" {attempt}/{of}"),
        (Some(attempt), None) => format!(" {attempt}"),
        (None, _) => String::new(),
    };
    let delay = number("delay_ms").map(|delay| format!(" in {}", format_millis(delay))).unwrap_or_default();
    let status = number("status").map(|status| format!("HTTP {status}"));
    let reason = event["reason"]
        .as_str()
        .map(strip_control)
        .filter(|reason| !matches!(reason.as_str(), "" | "unknown"));
    let why: Vec<String> = status.into_iter().chain(reason).collect();
    let why = if why.is_empty() { "the model's API cannot be reached".to_owned() } else { why.join(" ") };
    format!("· retry{attempt}{delay}: {why}")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// The end of a line that is too long for the rows there are.
fn last_rows(line: &str, width: usize) -> String {
    let most = OPEN_ROWS * width;
    let over = line.chars().count().saturating_sub(most);
    let shown = line.chars().skip(over + usize::from(over > 0));
    let cut = if over > 0 { "…" } else { "" };
    format!("{cut}{}", strip_control(&shown.collect::<String>()))
}

/// Why a job failed: in words, and as the kind that the documents list.
pub fn because(error: &Problem) -> String {
    let words = strip_control(&error.message);
    if words == error.kind { words } else { format!("{words} ({})", error.kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_line_names_the_attempt_and_the_cause() {
        let told = serde_json::json!({ "attempt": 3, "of": 10, "delay_ms": 4100, "status": 429, "reason": "rate limit" });
        assert_eq!(retry_line(&told), "· retry 3/10 in 4.1 s: HTTP 429 rate limit");
        let silent = serde_json::json!({ "attempt": 1, "of": null, "reason": "unknown" });
        assert_eq!(retry_line(&silent), "· retry 1: the model's API cannot be reached");
    }

    #[test]
    fn implausible_token_counts_are_shown_without_a_panic() {
        let mut view = View::new(How::Words, AgentKind::Claude, PathBuf::from("/"), Timing::Live);
        view.event(&serde_json::json!({ "event": "usage", "input": u64::MAX, "output": u64::MAX }));
        assert_eq!(view.tokens, u64::MAX);
    }

    #[test]
    fn of_a_line_that_fills_the_screen_the_end_is_shown_and_nothing_that_a_terminal_obeys() {
        assert_eq!(last_rows("as it \x1b[2Jis", 80), "as it is");
        let shown = last_rows(&format!("{}end", "x".repeat(100)), 10);
        assert!(shown.starts_with("…xx") && shown.ends_with("xend"), "{shown}");
        assert_eq!(shown.chars().count(), OPEN_ROWS * 10);
    }
}
