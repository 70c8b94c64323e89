//! What a person sees of a job while it runs.
//!
//! On a terminal a line at the bottom says how long it takes, what the agent does and what it has used, and the answer grows above
//! it. Anywhere else there are plain lines: the answer on stdout, everything else on stderr.

use std::io::{self, IsTerminal};

use calls::{Answer, Processes, Standing};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use model::AgentKind;
use serde_json::Value;

use crate::failure::Failure;
use crate::{output, paint};

/// How much of what goes on fits beside the time.
const DOING_CHARS: usize = 60;

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

/// Whether an agent sends its answer in parts and never as a whole. Of the others the whole is shown, and no part twice.
pub fn answers_in_parts(agent: AgentKind) -> bool {
    agent == AgentKind::Gemini
}

/// A job as somebody sees it.
pub struct View {
    how: How,
    agent: AgentKind,
    bar: Option<ProgressBar>,
    /// The piece of an answer that has no end of line yet.
    open: String,
    doing: String,
    tokens: u64,
}

impl View {
    /// Begins to watch.
    pub fn new(how: How, agent: AgentKind) -> Self {
        let live = how == How::Words && io::stderr().is_terminal();
        let bar = live.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            // The words are fixed; should they be wrong after all, the plain style does.
            let style = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar
        });
        Self { how, agent, bar, open: String::new(), doing: "waiting for its turn".to_owned(), tokens: 0 }
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
        format!("{} · {doing}{used}", self.agent)
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
        match text("event") {
            "text" if !said["within"].is_null() => {}
            "text" if text("part") == "whole" => {
                "answering".clone_into(&mut self.doing);
                self.words(&format!("{}\n", text("text")));
            }
            "text" if answers_in_parts(self.agent) => self.words(text("text")),
            "finished" if answers_in_parts(self.agent) && !self.open.is_empty() => self.words("\n"),
            "thinking" => "thinking".clone_into(&mut self.doing),
            "session_started" => "started".clone_into(&mut self.doing),
            "tool_use" => {
                self.doing = format!("using {}", paint::clean(text("name")));
                if self.bar.is_none() {
                    output::aside(&format!("· {}", paint::clean(text("name"))));
                }
            }
            "tool_result" => "reading what the tool answered".clone_into(&mut self.doing),
            "retry" => self.aside(&format!("· trying again: {}", paint::clean(text("reason")))),
            "usage" => {
                self.tokens = ["input", "output"].iter().filter_map(|name| said[name].as_u64()).sum();
            }
            _ => {}
        }
    }

    /// Words of the answer. Below them is the line of progress, so on a terminal they come by whole lines.
    fn words(&mut self, words: &str) {
        let Some(bar) = &self.bar else {
            words.rsplit('\n').next().unwrap_or_default().clone_into(&mut self.open);
            return output::piece(&paint::for_stdout(words));
        };
        self.open.push_str(words);
        let Some(end) = self.open.rfind('\n') else { return };
        let rest = self.open.split_off(end + 1);
        let lines = std::mem::replace(&mut self.open, rest);
        bar.suspend(|| output::piece(&paint::for_stdout(&lines)));
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
        if !self.open.is_empty() {
            self.words("\n");
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        match self.how {
            How::Words => summary(answer),
            How::Events | How::Answer => output::line(&serde_json::to_string(answer)?),
        }
        Ok(())
    }

    /// The person goes, the job stays, or is being stopped.
    pub fn leave(&self, job: &str, cancelled: bool) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
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

/// Says how a job went, and what is left of it.
pub fn summary(answer: &Answer) {
    let duration = paint::span(answer.duration_ms);
    let status = paint::standing(answer.status, &io::stderr());
    output::aside(&format!("\n{status} after {duration}{}{}", used(answer), left_over(answer)));
    if let Some(error) = &answer.error {
        output::aside(&format!(
            "  because: {} ({})\n  hint: {}",
            paint::clean(&error.message),
            error.kind,
            error.hint
        ));
    }
    if let Some(sandbox) = &answer.sandbox {
        output::aside(&sandbox.told());
    }
    if let Some(session) = &answer.session_id {
        output::aside(&format!("session: {}", paint::clean(session)));
    }
    output::aside(&format!("job: {}", answer.job_id));
}

fn used(answer: &Answer) -> String {
    let tokens = answer.usage.map(|usage| format!("; {} tokens", usage.input_tokens + usage.output_tokens));
    let cost = answer.cost_usd.map(|cost| format!("; {}", paint::dollars(cost)));
    format!("{}{}", tokens.unwrap_or_default(), cost.unwrap_or_default())
}

fn left_over(answer: &Answer) -> &'static str {
    match answer.processes {
        Some(Processes::NoneLeft) => "; nothing is left running",
        Some(Processes::NoneFound) => "; nothing of it was found running",
        Some(Processes::SomeLeft) => "; some of its processes could not be ended",
        None if answer.status == Standing::Cancelled => "; it had not begun",
        None => "",
    }
}
