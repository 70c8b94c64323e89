//! The current activity of an agent, in one line.

use std::time::Duration;

use model::{AgentEvent, SessionId, TextPart, Timestamp, Usage};

use crate::wait_reason::{WaitReason, one_line};

/// The maximum length of the activity line.
const PREVIEW_CHARS: usize = 120;

/// The current activity of an agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Activity {
    /// One line for people.
    pub line: String,
    /// The number of events so far.
    pub events: u64,
    /// The session, once it is known.
    pub session: Option<SessionId>,
    /// The tokens so far, if the agent reports them during the run.
    pub usage: Option<Usage>,
    /// The running background tasks.
    pub background: Vec<String>,
    /// Is true if the agent has answered and has not started another turn.
    pub(crate) answered: bool,
    /// Why no agent runs; none while one does.
    pub waiting: Option<WaitReason>,
    /// Is true if the model said or did anything in this run.
    pub(crate) model_spoke: bool,
    /// The duration of earlier runs.
    pub(crate) ran_before: Duration,
    /// The start of the current run.
    pub(crate) run_started_at: Option<Timestamp>,
    /// The last line of a text that arrives in deltas.
    pub(crate) open_text: String,
}

impl Activity {
    /// Returns how long the runs of the job have taken by `now`. Waits are not counted.
    pub fn run_time(&self, now: Timestamp) -> Duration {
        let running = self.run_started_at.map_or(Duration::ZERO, |started_at| now.since(started_at));
        self.ran_before + running
    }

    /// Updates the activity with an event.
    pub(crate) fn update(&mut self, event: &AgentEvent<'_>) {
        self.events += 1;
        self.model_spoke |= matches!(
            event,
            AgentEvent::Text { .. } | AgentEvent::Thinking { .. } | AgentEvent::ToolUse { .. }
        );
        match event {
            AgentEvent::Text { text, part: TextPart::Partial, within: None } => {
                self.grow(&text.preview(4 * PREVIEW_CHARS));
                return;
            }
            // Texts of a sub-agent may be interleaved.
            AgentEvent::Text { within: Some(_), .. } | AgentEvent::Usage(_) => {}
            _ => self.open_text.clear(),
        }
        match event {
            AgentEvent::SessionStarted { session_id, model, .. } => {
                self.session = session_id.decode().parse().ok();
                let model = model.as_ref().map(|model| format!(" with {}", model.preview(PREVIEW_CHARS)));
                self.line = format!("started{}", model.unwrap_or_default());
            }
            AgentEvent::Text { text, within: None, .. } => self.line = one_line(&text.preview(PREVIEW_CHARS)),
            AgentEvent::Thinking { .. } if !self.line.starts_with("thinking") => {
                "thinking".clone_into(&mut self.line);
            }
            AgentEvent::ToolUse { name, .. } => {
                self.line = format!("using {}", tool_label(&name.preview(PREVIEW_CHARS)));
            }
            AgentEvent::Retry { reason, .. } => {
                self.line = format!("trying again: {}", one_line(&reason.preview(PREVIEW_CHARS)));
            }
            AgentEvent::Usage(usage) => self.usage = Some(*usage),
            AgentEvent::Finished { .. } => self.answered = true,
            AgentEvent::BackgroundTasks { running } => {
                self.background = running.iter().map(|task| one_line(&task.preview(PREVIEW_CHARS))).collect();
            }
            _ => {}
        }
        match event {
            AgentEvent::Text { within: None, .. }
            | AgentEvent::Thinking { .. }
            | AgentEvent::ToolUse { .. } => {
                self.answered = false;
            }
            AgentEvent::Finished { .. } | AgentEvent::BackgroundTasks { .. } if self.answered => {
                self.line = describe_wait(&self.background).unwrap_or_else(|| std::mem::take(&mut self.line));
            }
            _ => {}
        }
    }
}

/// Describes the background tasks that an answered agent waits for; none if there are none.
pub fn describe_wait(tasks: &[String]) -> Option<String> {
    let count = match tasks.len() {
        0 => return None,
        1 => "1 background task".to_owned(),
        number => format!("{number} background tasks"),
    };
    Some(format!("waiting for {count}: {}", tasks.join("; ")))
}

impl Activity {
    /// Appends a text delta, and shows the end of its last line.
    fn grow(&mut self, piece: &str) {
        self.open_text.push_str(piece);
        if let Some(end) = self.open_text.trim_end().rfind('\n') {
            self.open_text.drain(..=end);
        }
        let over = self.open_text.chars().count().saturating_sub(PREVIEW_CHARS);
        if over > 0 {
            let tail: String = self.open_text.chars().skip(over + 1).collect();
            self.open_text = format!("…{tail}");
        }
        self.line = one_line(&self.open_text);
    }
}

/// Returns a readable tool name: codex and gemini name their shells after their protocols.
fn tool_label(name: &str) -> &str {
    match name {
        "command_execution" | "run_shell_command" => "shell",
        "file_change" => "edit",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_names_running_background_tasks() {
        let tasks = |running: &[&'static str]| AgentEvent::BackgroundTasks {
            running: running.iter().map(|task| (*task).into()).collect(),
        };
        let mut activity = Activity::default();
        activity.update(&tasks(&["sleep 30", "npm test"]));
        activity.update(&AgentEvent::Text { text: "found it".into(), part: TextPart::Whole, within: None });
        assert_eq!(activity.line, "found it");
        activity.update(&AgentEvent::Finished { how: model::Finish::Ok });
        assert_eq!(activity.line, "waiting for 2 background tasks: sleep 30; npm test");
        activity.update(&tasks(&["npm test"]));
        assert_eq!(activity.line, "waiting for 1 background task: npm test");
        activity.update(&AgentEvent::Text { text: "done".into(), part: TextPart::Whole, within: None });
        assert_eq!(activity.line, "done");
    }

    #[test]
    fn activity_is_one_line() {
        let mut activity = Activity::default();
        let text = AgentEvent::Text { text: "a\n\n b".into(), part: TextPart::Whole, within: None };
        activity.update(&text);
        assert_eq!((activity.line.as_str(), activity.events), ("a b", 1));
    }

    #[test]
    fn text_deltas_accumulate_in_the_activity() {
        let mut activity = Activity::default();
        let mut lines = Vec::new();
        for piece in ["He", "llo", " there"] {
            activity.update(&AgentEvent::Text { text: piece.into(), part: TextPart::Partial, within: None });
            lines.push(activity.line.clone());
        }
        assert_eq!(lines, ["He", "Hello", "Hello there"]);
        // Any other event ends the text; the next delta starts a new one.
        activity.update(&AgentEvent::Finished { how: model::Finish::Ok });
        activity.update(&AgentEvent::Text { text: "Next".into(), part: TextPart::Partial, within: None });
        assert_eq!(activity.line, "Next");
        activity.update(&AgentEvent::Text {
            text: " line\nand one".into(),
            part: TextPart::Partial,
            within: None,
        });
        assert_eq!(activity.line, "and one");
        let long = format!("{}end", "x".repeat(200));
        activity.update(&AgentEvent::Text { text: long.into(), part: TextPart::Partial, within: None });
        assert_eq!(activity.line.chars().count(), PREVIEW_CHARS);
        assert!(activity.line.starts_with('…') && activity.line.ends_with("end"), "{}", activity.line);
    }
}
