//! The view of a running job.
//!
//! On a terminal, a progress line at the bottom shows the elapsed time, the current activity and the tokens, and the answer streams above
//! it. Elsewhere the view prints plain lines: the answer to stdout, everything else to stderr.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use calls::{Answer, describe_wait};
use indicatif::{ProgressBar, ProgressDrawTarget};
use model::AgentKind;
use serde_json::Value;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::cli::CallArgs;
use crate::closing::ClosingLines;
use crate::{output, progress_row, style};
use render::duration::format_millis;
use render::text::strip_control;
use render::text_deltas::{DeltaMerger, MergedText};
use render::tool_lines::{Timing, ToolLine, ToolLog};

/// The interval at which the elapsed time is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum length of the activity in the progress line.
const MAX_ACTIVITY_CHARS: usize = 60;
/// The maximum number of rows of an unfinished line that are shown: all of them may exceed the screen.
const MAX_PARTIAL_ROWS: usize = 4;
/// The templates of the progress line, alone and below an unfinished line.
const PROGRESS_ALONE: &str = "{spinner} {elapsed} {wide_msg}";
const PROGRESS_BELOW_TEXT: &str = "{prefix}\n{spinner} {elapsed} {wide_msg}";

/// Creates the timer that redraws the elapsed time.
pub fn redraw_timer() -> Interval {
    let mut timer = interval(REDRAW_INTERVAL);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}

/// The output of a followed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// The text of the answer.
    Text,
    /// Every event as a line of JSON; the last line is the answer.
    Events,
    /// Only the answer, as JSON.
    Answer,
}

impl OutputMode {
    /// Returns the mode that the arguments select.
    pub fn from_args(args: &CallArgs) -> Self {
        match (args.json, args.events) {
            (true, _) => Self::Answer,
            (_, true) => Self::Events,
            _ => Self::Text,
        }
    }

    /// Returns whether text deltas are shown as they arrive. Otherwise they are not worth their size, many times that of the answer.
    pub fn is_watched(self) -> bool {
        match self {
            Self::Text => io::stdout().is_terminal(),
            Self::Events => true,
            Self::Answer => false,
        }
    }
}

/// The view of one job.
pub struct View {
    mode: OutputMode,
    agent: AgentKind,
    bar: Option<ProgressBar>,
    /// Is true if stdout and the progress line share the terminal.
    shares_terminal: bool,
    /// The unfinished last line of the answer.
    partial_line: String,
    deltas: DeltaMerger,
    tools: ToolLog,
    activity: String,
    /// Is true if the elapsed time includes a wait.
    has_waited: bool,
    tokens: u64,
    /// The background tasks that are running.
    background: Vec<String>,
}

impl View {
    /// Replaces the directory to which paths are shown relative.
    pub fn set_directory(&mut self, directory: PathBuf) {
        self.tools.set_directory(directory);
    }

    /// Creates the view of a job of `agent` in `directory`.
    pub fn new(mode: OutputMode, agent: AgentKind, directory: PathBuf, timing: Timing) -> Self {
        let live = mode == OutputMode::Text && io::stderr().is_terminal();
        let bar = live.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(progress_row::last(PROGRESS_ALONE));
            bar
        });
        let shares_terminal = live && io::stdout().is_terminal();
        Self {
            mode,
            agent,
            bar,
            shares_terminal,
            partial_line: String::new(),
            deltas: DeltaMerger::default(),
            tools: ToolLog::new(directory, timing),
            activity: "starting".to_owned(),
            has_waited: false,
            tokens: 0,
            background: Vec::new(),
        }
    }

    /// Redraws the progress line.
    pub fn redraw(&self) {
        if let Some(bar) = &self.bar {
            bar.set_message(self.message());
            bar.tick();
        }
    }

    fn message(&self) -> String {
        let activity: String = self.activity.chars().take(MAX_ACTIVITY_CHARS).collect();
        let used = if self.tokens > 0 { format!(" · {} tokens", self.tokens) } else { String::new() };
        strip_control(&format!("{} · {activity}{used}", self.agent))
    }

    /// Shows an event of the agent.
    pub fn show_event(&mut self, event: &Value) {
        match self.mode {
            OutputMode::Events => output::line(&event.to_string()),
            OutputMode::Answer => {}
            OutputMode::Text => self.show_text_event(event),
        }
    }

    fn show_text_event(&mut self, event: &Value) {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        if text("event") == "waiting" {
            return self.show_wait(text("reason"));
        }
        if std::mem::take(&mut self.has_waited)
            && let Some(bar) = &self.bar
        {
            // The wait does not count as run time.
            bar.reset_elapsed();
        }
        match text("event") {
            "text" if !event["within"].is_null() => {}
            "text" => {
                "answering".clone_into(&mut self.activity);
                self.show_answer_text(text("text"), text("part") == "whole");
            }
            "finished" => {
                self.end_message();
                if let Some(wait) = describe_wait(&self.background) {
                    self.aside(&format!("· {wait}"));
                    self.activity = wait;
                }
            }
            "background_tasks" => {
                let running = event["running"].as_array().into_iter().flatten();
                self.background = running.filter_map(Value::as_str).map(strip_control).collect();
            }
            "thinking" => "thinking".clone_into(&mut self.activity),
            "session_started" => {
                // A new run: the open tools of the previous one will not return a result.
                let lost = self.tools.drain(true);
                self.show_tools(lost);
                "started".clone_into(&mut self.activity);
            }
            "tool_use" => {
                self.end_message();
                let announced = self.tools.start(event);
                self.show_tools(announced);
            }
            "permission_denied" => self.tools.refuse(event),
            "tool_result" => {
                let finished = self.tools.finish(event);
                "thinking".clone_into(&mut self.activity);
                self.show_tools(finished);
            }
            "retry" => {
                self.end_message();
                self.aside(&retry_line(event));
            }
            "usage" => {
                let figures = ["input", "output"].iter().filter_map(|name| event[name].as_u64());
                // Reported by the agent, so they may be arbitrary.
                self.tokens = figures.fold(0, u64::saturating_add);
            }
            _ => {}
        }
    }

    /// Prints lines about tool calls, each above the progress line.
    fn show_tools(&mut self, lines: impl IntoIterator<Item = ToolLine>) {
        for line in lines {
            self.end_line();
            self.aside(&line.render(style::stderr_width(), style::is_colored(&io::stderr())));
        }
        if let Some(current) = self.tools.current() {
            self.activity = current;
        }
    }

    /// Nothing of the job runs.
    fn show_wait(&mut self, reason: &str) {
        self.has_waited = true;
        self.activity = strip_control(reason);
        if self.bar.is_none() {
            output::aside(&format!("· {}", self.activity));
        }
    }

    /// Shows text of the answer. Deltas and the full message that repeats them are merged.
    fn show_answer_text(&mut self, text: &str, is_full: bool) {
        if !is_full {
            self.deltas.add(text);
            return self.write(text);
        }
        match self.deltas.merge(text) {
            MergedText::Continues(_) if self.deltas.is_pending() => {}
            MergedText::Continues(rest) => self.write(&format!("{rest}\n")),
            MergedText::New(text) => {
                self.end_line();
                self.write(&format!("{text}\n"));
            }
        }
    }

    /// Ends the current message: later text does not continue it.
    fn end_message(&mut self) {
        self.deltas.clear();
        self.end_line();
    }

    fn end_line(&mut self) {
        if !self.partial_line.is_empty() {
            self.write("\n");
        }
    }

    /// Prints text of the answer. If the progress line shares the terminal, complete lines are printed above it and the unfinished line is
    /// drawn as part of it.
    fn write(&mut self, text: &str) {
        let Some(bar) = self.bar.as_ref().filter(|_| self.shares_terminal) else {
            self.partial_line.push_str(text);
            self.partial_line.drain(..self.partial_line.rfind('\n').map_or(0, |end| end + 1));
            return output::print(text);
        };
        let was_partial = !self.partial_line.is_empty();
        self.partial_line.push_str(text);
        if let Some(end) = self.partial_line.rfind('\n') {
            let rest = self.partial_line.split_off(end + 1);
            let lines = std::mem::replace(&mut self.partial_line, rest);
            bar.suspend(|| output::print(&lines));
        }
        if was_partial == self.partial_line.is_empty() {
            bar.set_style(progress_row::last(if self.partial_line.is_empty() {
                PROGRESS_ALONE
            } else {
                PROGRESS_BELOW_TEXT
            }));
        }
        bar.set_prefix(last_rows(&self.partial_line, style::stdout_width().unwrap_or(80)));
    }

    /// Prints a line to stderr.
    pub fn aside(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::aside(text)),
            None => output::aside(text),
        }
    }

    /// Shows the answer of the job and its closing lines.
    pub fn finish(mut self, answer: &Answer) -> serde_json::Result<()> {
        self.close(answer.status.is_final());
        match self.mode {
            OutputMode::Text => ClosingLines::from_answer(answer).print(),
            OutputMode::Events | OutputMode::Answer => output::line(&serde_json::to_string(answer)?),
        }
        Ok(())
    }

    /// Removes the progress line and prints the tools without a result. `is_over` tells whether the run has ended.
    pub fn close(&mut self, is_over: bool) {
        self.end_line();
        let open = self.tools.drain(is_over);
        self.show_tools(open);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Reports that the job can no longer be followed. The job is not affected.
    pub fn lose_track(&mut self, job: &str) {
        self.close(false);
        output::aside(&format!("lost track of job {job}; follow it with `switchboard logs -f {job}`"));
    }

    /// Reports that this program detaches from a job that continues or is being canceled.
    pub fn detach(&mut self, job: &str, is_cancelled: bool) {
        self.close(false);
        let (state, cancel_hint) = if is_cancelled {
            ("is being stopped", String::new())
        } else {
            ("continues", format!(", cancel it with `switchboard cancel {job}`"))
        };
        output::aside(&format!("job {job} {state}; follow it with `switchboard logs -f {job}`{cancel_hint}"));
        if self.mode != OutputMode::Text {
            output::line(&serde_json::json!({ "status": "running", "job_id": job }).to_string());
        }
    }
}

/// Formats a `retry` event: attempt, delay and cause.
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

/// Returns the end of a line that exceeds the available rows.
fn last_rows(line: &str, width: usize) -> String {
    let max_chars = MAX_PARTIAL_ROWS * width;
    let over = line.chars().count().saturating_sub(max_chars);
    let shown = line.chars().skip(over + usize::from(over > 0));
    let cut = if over > 0 { "…" } else { "" };
    format!("{cut}{}", strip_control(&shown.collect::<String>()))
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
    fn implausible_token_counts_do_not_overflow() {
        let mut view = View::new(OutputMode::Text, AgentKind::Claude, PathBuf::from("/"), Timing::Live);
        view.show_event(&serde_json::json!({ "event": "usage", "input": u64::MAX, "output": u64::MAX }));
        assert_eq!(view.tokens, u64::MAX);
    }

    #[test]
    fn long_line_is_truncated_at_start_and_sanitized() {
        assert_eq!(last_rows("as it \x1b[2Jis", 80), "as it is");
        let shown = last_rows(&format!("{}end", "x".repeat(100)), 10);
        assert!(shown.starts_with("…xx") && shown.ends_with("xend"), "{shown}");
        assert_eq!(shown.chars().count(), MAX_PARTIAL_ROWS * 10);
    }
}
