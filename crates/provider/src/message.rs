//! Answers with their metadata and warnings.

use std::time::Duration;

use model::{AgentEvent, BackgroundTask, PermissionDenial, RefusedAction, SandboxReport, SessionId, Usage};
use serde::{Deserialize, Serialize};

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutgoingMessage {
    /// The text. Never empty in an answer; may be empty in a partial result.
    pub text: String,
    /// The metadata.
    pub metadata: Metadata,
}

/// The metadata of an answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Metadata {
    /// The provider: [`crate::Provider::name`].
    pub provider: String,
    /// The model that answered; the requested one if the agent does not report it.
    pub model: Option<String>,
    /// The session, to resume it.
    pub session_id: Option<SessionId>,
    /// Tokens of all runs. `None` if the agent counts per session and its earlier count is unknown.
    pub tokens: Option<Usage>,
    /// Cost of all runs, if the agent reports it.
    pub cost_usd: Option<f64>,
    /// Turns of all runs.
    pub turns: Option<u32>,
    /// The time from the request to the answer, including waits.
    pub processing_time: Duration,
    /// The number of resumes after a used-up turn limit.
    pub resumes: u32,
    /// The tools that the agent was denied.
    pub permission_denials: Vec<PermissionDenial>,
    /// Background tasks that did not complete.
    pub background: Vec<BackgroundTask>,
    /// Refused tools, writes and hosts, in the same form for every agent.
    pub refusals: Vec<RefusedAction>,
    /// The sandbox report of the last run; `None` if no process was started.
    pub sandbox: Option<SandboxReport>,
    /// The warnings; usually empty.
    pub warnings: Vec<Warning>,
}

/// A warning about an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "warning", rename_all = "snake_case")]
pub enum Warning {
    /// The agent printed plain text instead of JSON: this text is the answer. It is unknown whether the agent finished.
    NotJson,
    /// Claude failed without a text; the answer names the error.
    ErrorWithoutText {
        /// The agent's name of the error.
        message: String,
    },
    /// The agent returned no text; the answer is a fixed text.
    NoText,
    /// The text exceeded the limit, and its middle was omitted.
    TextCut {
        /// The number of omitted bytes.
        bytes: u64,
    },
    /// The session record could not be written, so [`crate::Provider::resume_session`] will not find it.
    SessionNotKept {
        /// The cause.
        message: String,
    },
}

/// An answer within a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The text.
    pub text: String,
    /// The tools that the agent used, oldest first; at most [`MAX_TOOL_USES`].
    pub tool_uses: Vec<ToolUse>,
    /// The metadata.
    pub metadata: Metadata,
}

/// The maximum number of tool uses in a [`Response`].
pub const MAX_TOOL_USES: usize = 1000;

/// The maximum length of a tool's input.
const INPUT_CHARS: usize = 1000;

/// A tool use of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolUse {
    /// The vendor's id.
    pub id: String,
    /// The vendor's name of the tool.
    pub name: String,
    /// The input as JSON text; the first 1,000 characters.
    pub input: String,
    /// True if it failed; `None` before its result.
    pub failed: Option<bool>,
}

/// Collects tool uses from a stream of events.
#[derive(Debug, Default)]
pub(crate) struct ToolUses(Vec<ToolUse>);

impl ToolUses {
    pub fn record(&mut self, event: &AgentEvent<'_>) {
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

/// An update of a running request.
#[derive(Debug, Clone, PartialEq)]
pub enum Update<T> {
    /// An event of the agent.
    Event(AgentEvent<'static>),
    /// The turn limit is used up; the session is resumed after a wait.
    Resuming {
        /// The number of the resume, starting at 1.
        attempt: u32,
        /// The duration of the wait.
        after: Duration,
    },
    /// The answer. Always last.
    Done(T),
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{RawJson, ToolOutput};

    #[test]
    fn tool_use_reports_its_result_up_to_the_limit() {
        let mut uses = ToolUses::default();
        let using = |id: &'static str| AgentEvent::ToolUse {
            id: id.into(),
            name: "Read".into(),
            input: RawJson::from_bytes(br#"{"path":"a"}"#),
            within: None,
        };
        uses.record(&using("1"));
        uses.record(&using("2"));
        let failed = AgentEvent::ToolResult {
            id: "1".into(),
            output: ToolOutput::Nothing,
            is_error: true,
            exit_code: None,
            in_background: false,
        };
        uses.record(&failed);
        assert_eq!(uses.0[0].failed, Some(true));
        assert_eq!((uses.0[1].failed, uses.0[1].input.as_str()), (None, r#"{"path":"a"}"#));
        (0..2 * MAX_TOOL_USES).for_each(|_| uses.record(&using("3")));
        assert_eq!(uses.0.len(), MAX_TOOL_USES);
    }
}
