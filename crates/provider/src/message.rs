//! What comes back: the words, what they took, and what is odd about them.

use std::time::Duration;

use model::{AgentEvent, BackgroundTask, PermissionDenial, RefusedAction, SandboxReport, SessionId, Usage};
use serde::{Deserialize, Serialize};

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutgoingMessage {
    /// The words. Never empty in an answer; may be in what came of a failed request.
    pub text: String,
    /// What is known about them.
    pub metadata: Metadata,
}

/// What is known about an answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Metadata {
    /// Who answered: [`crate::Provider::name`].
    pub provider: String,
    /// The model that answered; the one asked for, when the agent does not say.
    pub model: Option<String>,
    /// The conversation, to go on with it.
    pub session_id: Option<SessionId>,
    /// Tokens, over all runs of the request. None when the agent counts over a whole session whose past is not known.
    pub tokens: Option<Usage>,
    /// Cost, over all runs, where the agent tells it.
    pub cost_usd: Option<f64>,
    /// Turns of the model, over all runs.
    pub turns: Option<u32>,
    /// From the request to the answer, waits included.
    pub processing_time: Duration,
    /// How often the request was continued because its turns were used up.
    pub resumes: u32,
    /// The tools that the agent wanted and was not allowed to use.
    pub permission_denials: Vec<PermissionDenial>,
    /// Background tasks of the agent that did not complete.
    pub background: Vec<BackgroundTask>,
    /// Tools, writes and hosts that were refused, the same for every agent.
    pub refusals: Vec<RefusedAction>,
    /// What the operating system kept the agent from in its last run, and whether that held; none when nothing was started.
    pub sandbox: Option<SandboxReport>,
    /// What is odd about the answer; empty when all is as it should be.
    pub warnings: Vec<Warning>,
}

/// Something odd about an answer that is told all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "warning", rename_all = "snake_case")]
pub enum Warning {
    /// The agent printed plain text where its stream of JSON was expected: this text is the answer. Whether the agent was
    /// done is not known.
    NotJson,
    /// Claude ended with an error and said nothing else; the text names the error.
    ErrorWithoutText {
        /// The agent's own word for it.
        message: String,
    },
    /// The agent said nothing at all; the text is a fixed one.
    NoText,
    /// The text is over the limit, and its middle was left out.
    TextCut {
        /// How many bytes were left out.
        bytes: u64,
    },
    /// The conversation could not be written down, so that [`crate::Provider::resume_session`] will not find it.
    SessionNotKept {
        /// Why.
        message: String,
    },
}

/// An answer within a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The words.
    pub text: String,
    /// The tools that the agent has used on the way, oldest first; the first [`MAX_TOOL_USES`] of them.
    pub tool_uses: Vec<ToolUse>,
    /// What is known about the answer.
    pub metadata: Metadata,
}

/// How many uses of tools a [`Response`] names.
pub const MAX_TOOL_USES: usize = 1000;

/// How much is kept of what a tool was given.
const INPUT_CHARS: usize = 1000;

/// A tool that the agent has used by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolUse {
    /// The vendor's id of the use.
    pub id: String,
    /// The vendor's name of the tool.
    pub name: String,
    /// What it was given, as JSON text; the first 1,000 characters.
    pub input: String,
    /// Whether it failed; none while it has not answered.
    pub failed: Option<bool>,
}

/// Gathers the uses of tools from a stream of events.
#[derive(Debug, Default)]
pub(crate) struct ToolUses(Vec<ToolUse>);

impl ToolUses {
    pub fn hear(&mut self, event: &AgentEvent<'_>) {
        match event {
            AgentEvent::ToolUse { id, name, input, .. } if self.0.len() < MAX_TOOL_USES => {
                self.0.push(ToolUse {
                    id: id.decode().into_owned(),
                    name: name.decode().into_owned(),
                    input: input.to_string().chars().take(INPUT_CHARS).collect(),
                    failed: None,
                });
            }
            AgentEvent::ToolResult { id, is_error, .. } => {
                if let Some(used) = self.0.iter_mut().rfind(|used| *id == *used.id.as_str()) {
                    used.failed = Some(*is_error);
                }
            }
            _ => {}
        }
    }

    pub fn into_response(self, message: OutgoingMessage) -> Response {
        Response { text: message.text, tool_uses: self.0, metadata: message.metadata }
    }
}

/// Something that happens while an answer is made.
#[derive(Debug, Clone, PartialEq)]
pub enum Update<T> {
    /// The agent said or did something.
    Event(AgentEvent<'static>),
    /// Its turns are used up; the work goes on in the same conversation, after a wait.
    Resuming {
        /// Which continuation it is, counted from 1.
        attempt: u32,
        /// How long the wait is.
        after: Duration,
    },
    /// The answer. Nothing follows.
    Done(T),
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{RawJson, ToolOutput};

    #[test]
    fn a_tool_is_told_with_what_became_of_it_and_no_more_than_the_limit() {
        let mut uses = ToolUses::default();
        let using = |id: &'static str| AgentEvent::ToolUse {
            id: id.into(),
            name: "Read".into(),
            input: RawJson::from_bytes(br#"{"path":"a"}"#),
            within: None,
        };
        uses.hear(&using("1"));
        uses.hear(&using("2"));
        let failed = AgentEvent::ToolResult {
            id: "1".into(),
            output: ToolOutput::Nothing,
            is_error: true,
            exit_code: None,
            in_background: false,
        };
        uses.hear(&failed);
        assert_eq!(uses.0[0].failed, Some(true));
        assert_eq!((uses.0[1].failed, uses.0[1].input.as_str()), (None, r#"{"path":"a"}"#));
        (0..2 * MAX_TOOL_USES).for_each(|_| uses.hear(&using("3")));
        assert_eq!(uses.0.len(), MAX_TOOL_USES);
    }
}
