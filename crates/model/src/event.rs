//! Events of an agent's stream, in one vocabulary for all vendors.
//!
//! An event borrows from the line that it was parsed from, so parsing copies nothing. [`AgentEvent::into_owned`] detaches it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{AgentText, PermissionDenial, RawJson, Usage};

/// An event of an agent's stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", bound(deserialize = "'de: 'a"))]
pub enum AgentEvent<'a> {
    /// The agent has started a session.
    SessionStarted {
        /// The vendor's session id.
        session_id: AgentText<'a>,
        /// The model, if the agent reports it.
        model: Option<AgentText<'a>>,
        /// The tools of the model.
        tools: Vec<AgentText<'a>>,
        /// The MCP servers and their states.
        mcp_servers: Vec<McpServerState<'a>>,
    },
    /// Text of the answer.
    Text {
        /// The text.
        text: AgentText<'a>,
        /// A delta or a complete message.
        part: TextPart,
        /// The tool call that runs the sub-agent which printed the text. `None` for the main agent.
        within: Option<AgentText<'a>>,
    },
    /// Reasoning, never a part of the answer.
    Thinking {
        /// The text.
        text: AgentText<'a>,
        /// A delta or a complete message.
        part: TextPart,
    },
    /// A tool call.
    ToolUse {
        /// The id, repeated in the result.
        id: AgentText<'a>,
        /// The vendor's name of the tool.
        name: AgentText<'a>,
        /// The arguments.
        input: RawJson<'a>,
        /// The tool call that runs the sub-agent which uses the tool. `None` for the main agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<AgentText<'a>>,
    },
    /// The result of a tool call.
    ToolResult {
        /// The id of the tool call.
        id: AgentText<'a>,
        /// The output.
        output: ToolOutput<'a>,
        /// The tool failed.
        is_error: bool,
        /// The exit code of the command, if the agent reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// The command still runs in the background.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_background: bool,
    },
    /// The agent retries a request to its model.
    Retry {
        /// The number of the failed attempt, from 1.
        attempt: Option<u32>,
        /// The maximum number of attempts.
        of: Option<u32>,
        /// The backoff before the next attempt.
        #[serde(rename = "delay_ms", with = "crate::event::opt_millis")]
        delay: Option<Duration>,
        /// The HTTP status of the model's API.
        status: Option<u16>,
        /// The agent's message.
        reason: AgentText<'a>,
    },
    /// Another model answers than the requested one.
    ModelFallback {
        /// The requested model.
        from: Option<AgentText<'a>>,
        /// The model that answers.
        to: Option<AgentText<'a>>,
        /// The agent's message.
        reason: AgentText<'a>,
    },
    /// The agent denied the use of a tool.
    PermissionDenied(PermissionDenial),
    /// The tokens used so far, in this agent's way of counting (see `agents::outcome`).
    Usage(Usage),
    /// The agent reports that it has finished. `Outcome` also takes the exit status into account.
    Finished {
        /// Success or failure.
        how: Finish,
    },
    /// The set of background tasks has changed.
    BackgroundTasks {
        /// Descriptions of the running tasks, oldest first.
        running: Vec<AgentText<'a>>,
    },
    /// A warning of the agent without an effect on the outcome.
    Warning {
        /// The agent's message.
        message: AgentText<'a>,
    },
    /// A line that cannot be parsed.
    Unreadable {
        /// The reason.
        why: Unreadable,
        /// The line, or its first bytes if it is over the limit.
        line: AgentText<'a>,
    },
    /// A line of an unknown type.
    Unknown {
        /// The type, if the line has one.
        kind: Option<AgentText<'a>>,
        /// The line.
        raw: RawJson<'a>,
    },
}

/// Tells deltas from complete messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextPart {
    /// A delta. Agents that support it send the complete message later as its own event.
    Partial,
    /// A complete message.
    Whole,
}

/// The output of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "'de: 'a"))]
pub enum ToolOutput<'a> {
    /// Text.
    Text(AgentText<'a>),
    /// A list of blocks or another structure.
    Json(RawJson<'a>),
    /// No output.
    Nothing,
}

/// An MCP server as the agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct McpServerState<'a> {
    /// The name.
    pub name: AgentText<'a>,
    /// The vendor's status (`connected`, `failed`, …).
    pub status: AgentText<'a>,
}

/// The result that the agent reports for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// Success.
    Ok,
    /// Failure.
    Error,
}

/// The reason why a line cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Unreadable {
    /// Not a JSON object: a stray print or a truncated line.
    NotJson,
    /// Longer than the limit. The spool contains the complete line.
    Oversized {
        /// The length.
        bytes: u64,
    },
}

impl AgentEvent<'_> {
    /// Returns a copy that does not borrow from the line.
    pub fn into_owned(self) -> AgentEvent<'static> {
        use AgentEvent as E;
        match self {
            E::SessionStarted { session_id, model, tools, mcp_servers } => E::SessionStarted {
                session_id: session_id.into_owned(),
                model: model.map(AgentText::into_owned),
                tools: tools.into_iter().map(AgentText::into_owned).collect(),
                mcp_servers: mcp_servers.into_iter().map(McpServerState::into_owned).collect(),
            },
            E::Text { text, part, within } => {
                E::Text { text: text.into_owned(), part, within: within.map(AgentText::into_owned) }
            }
            E::Thinking { text, part } => E::Thinking { text: text.into_owned(), part },
            E::ToolUse { id, name, input, within } => E::ToolUse {
                id: id.into_owned(),
                name: name.into_owned(),
                input: input.into_owned(),
                within: within.map(AgentText::into_owned),
            },
            E::ToolResult { id, output, is_error, exit_code, in_background } => E::ToolResult {
                id: id.into_owned(),
                output: output.into_owned(),
                is_error,
                exit_code,
                in_background,
            },
            E::Retry { attempt, of, delay, status, reason } => {
                E::Retry { attempt, of, delay, status, reason: reason.into_owned() }
            }
            E::ModelFallback { from, to, reason } => E::ModelFallback {
                from: from.map(AgentText::into_owned),
                to: to.map(AgentText::into_owned),
                reason: reason.into_owned(),
            },
            E::PermissionDenied(denial) => E::PermissionDenied(denial),
            E::Usage(usage) => E::Usage(usage),
            E::Finished { how } => E::Finished { how },
            E::BackgroundTasks { running } => {
                E::BackgroundTasks { running: running.into_iter().map(AgentText::into_owned).collect() }
            }
            E::Warning { message } => E::Warning { message: message.into_owned() },
            E::Unreadable { why, line } => E::Unreadable { why, line: line.into_owned() },
            E::Unknown { kind, raw } => {
                E::Unknown { kind: kind.map(AgentText::into_owned), raw: raw.into_owned() }
            }
        }
    }
}

impl ToolOutput<'_> {
    /// Returns a copy that does not borrow from the line.
    pub fn into_owned(self) -> ToolOutput<'static> {
        match self {
            Self::Text(text) => ToolOutput::Text(text.into_owned()),
            Self::Json(json) => ToolOutput::Json(json.into_owned()),
            Self::Nothing => ToolOutput::Nothing,
        }
    }
}

impl McpServerState<'_> {
    /// Returns a copy that does not borrow from the line.
    pub fn into_owned(self) -> McpServerState<'static> {
        McpServerState { name: self.name.into_owned(), status: self.status.into_owned() }
    }
}

pub(crate) mod opt_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "the signature serde's `with` asks for")]
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_round_trips_through_json() {
        let denial = PermissionDenial { tool: "Bash".into(), tool_use_id: None, detail: None };
        for event in [
            AgentEvent::SessionStarted {
                session_id: "s".into(),
                model: None,
                tools: vec!["Read".into()],
                mcp_servers: vec![McpServerState { name: "a".into(), status: "connected".into() }],
            },
            AgentEvent::ToolUse {
                id: "1".into(),
                name: "Read".into(),
                input: RawJson::from_bytes(b"{}"),
                within: Some("0".into()),
            },
            AgentEvent::ToolResult {
                id: "1".into(),
                output: ToolOutput::Nothing,
                is_error: true,
                exit_code: Some(101),
                in_background: true,
            },
            AgentEvent::Retry {
                attempt: Some(1),
                of: None,
                delay: Some(Duration::from_millis(5)),
                status: Some(429),
                reason: "slow".into(),
            },
            AgentEvent::PermissionDenied(denial),
            AgentEvent::Usage(Usage { input: 1, ..Usage::default() }),
            AgentEvent::Finished { how: Finish::Error },
            AgentEvent::BackgroundTasks { running: vec!["npm test".into()] },
            AgentEvent::Unreadable { why: Unreadable::Oversized { bytes: 9 }, line: "x".into() },
            AgentEvent::Unknown { kind: None, raw: RawJson::from_bytes(b"{}") },
        ] {
            let json = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<AgentEvent<'_>>(&json).unwrap(), event, "{json}");
        }
    }

    #[test]
    fn owned_event_outlives_its_line() {
        let line = br"one\ntwo".to_vec();
        let event = AgentEvent::Text {
            text: AgentText::from_json_string(&line, true),
            part: TextPart::Whole,
            within: None,
        }
        .into_owned();
        drop(line);
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(json, r#"{"event":"text","text":"one\ntwo","part":"whole","within":null}"#);
        assert_eq!(serde_json::from_str::<AgentEvent<'_>>(&json).unwrap(), event);
    }
}
