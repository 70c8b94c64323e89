//! What an agent says while it runs, in one vocabulary for all agents.
//!
//! Owns the words. An event borrows from the line it was read from, so that reading a stream costs no copy; keep one with
//! [`AgentEvent::into_owned`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{AgentText, PermissionDenial, RawJson, Usage};

/// Something that an agent's stream told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", bound(deserialize = "'de: 'a"))]
pub enum AgentEvent<'a> {
    /// The agent is up and has a session.
    SessionStarted {
        /// The vendor's id of the conversation.
        session_id: AgentText<'a>,
        /// The model that will answer, when the agent says so.
        model: Option<AgentText<'a>>,
        /// The tools the model is given.
        tools: Vec<AgentText<'a>>,
        /// The MCP servers and how they are.
        mcp_servers: Vec<McpServerState<'a>>,
    },
    /// Words of the answer.
    Text {
        /// The words.
        text: AgentText<'a>,
        /// Whether more of the same text follows.
        part: TextPart,
        /// The tool call of the main agent in which a sub-agent said it; none for the main agent itself.
        within: Option<AgentText<'a>>,
    },
    /// Reasoning, which is never part of the answer.
    Thinking {
        /// The words.
        text: AgentText<'a>,
        /// Whether more of the same follows.
        part: TextPart,
    },
    /// A tool is being used.
    ToolUse {
        /// The id that its result will carry.
        id: AgentText<'a>,
        /// The vendor's name of the tool.
        name: AgentText<'a>,
        /// What it is given.
        input: RawJson<'a>,
        /// The tool call of the main agent in which a sub-agent uses it; none for the main agent itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<AgentText<'a>>,
    },
    /// A tool answered.
    ToolResult {
        /// The id of its use.
        id: AgentText<'a>,
        /// What it answered.
        output: ToolOutput<'a>,
        /// Whether it failed.
        is_error: bool,
        /// The exit code of the command it ran, when the agent reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// Whether its command is still running, in the background.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_background: bool,
    },
    /// The agent tries again to reach its model.
    Retry {
        /// Which try failed, counted from 1.
        attempt: Option<u32>,
        /// After how many it gives up.
        of: Option<u32>,
        /// How long it waits before the next.
        #[serde(rename = "delay_ms", with = "crate::event::opt_millis")]
        delay: Option<Duration>,
        /// The HTTP status that the model's API answered.
        status: Option<u16>,
        /// The agent's own words.
        reason: AgentText<'a>,
    },
    /// Another model answers than the one that was asked for.
    ModelFallback {
        /// The one asked for.
        from: Option<AgentText<'a>>,
        /// The one that answers.
        to: Option<AgentText<'a>>,
        /// The agent's own words.
        reason: AgentText<'a>,
    },
    /// The agent was not allowed to use a tool.
    PermissionDenied(PermissionDenial),
    /// What was used so far, as this agent counts (see `agents::outcome`).
    Usage(Usage),
    /// The agent's own word that it is done, for good or ill. What it comes to is judged with the exit, in `Outcome`.
    Finished {
        /// Which of the two.
        how: Finish,
    },
    /// The set of background tasks has changed.
    BackgroundTasks {
        /// Descriptions of those that are running now, oldest first.
        running: Vec<AgentText<'a>>,
    },
    /// Something that is worth a person's eye and changes nothing.
    Warning {
        /// The agent's own words.
        message: AgentText<'a>,
    },
    /// A line that is not an event.
    Unreadable {
        /// What is wrong with it.
        why: Unreadable,
        /// The line, or the head of it when it is over the limit.
        line: AgentText<'a>,
    },
    /// A line of a type that is not known, kept as it is.
    Unknown {
        /// Its type, when it has one.
        kind: Option<AgentText<'a>>,
        /// The line.
        raw: RawJson<'a>,
    },
}

/// Whether a text is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextPart {
    /// A piece; the whole comes later, as an event of its own, where the agent sends one.
    Partial,
    /// All of it.
    Whole,
}

/// What a tool answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "'de: 'a"))]
pub enum ToolOutput<'a> {
    /// Text.
    Text(AgentText<'a>),
    /// A list of blocks or another structure.
    Json(RawJson<'a>),
    /// Nothing.
    Nothing,
}

/// An MCP server as the agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub struct McpServerState<'a> {
    /// Its name.
    pub name: AgentText<'a>,
    /// The vendor's word for how it is (`connected`, `failed`, …).
    pub status: AgentText<'a>,
}

/// How the agent itself says it finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It says all is well.
    Ok,
    /// It says it failed.
    Error,
}

/// Why a line could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Unreadable {
    /// It is no JSON object: a stray print, or a line that was cut.
    NotJson,
    /// It is over the limit. It stands whole in the spool.
    Oversized {
        /// How long it is.
        bytes: u64,
    },
}

impl AgentEvent<'_> {
    /// The same event, on its own.
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
    /// The same output, on its own.
    pub fn into_owned(self) -> ToolOutput<'static> {
        match self {
            Self::Text(text) => ToolOutput::Text(text.into_owned()),
            Self::Json(json) => ToolOutput::Json(json.into_owned()),
            Self::Nothing => ToolOutput::Nothing,
        }
    }
}

impl McpServerState<'_> {
    /// The same state, on its own.
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
    fn every_event_reads_back_from_what_is_written() {
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
    fn an_event_outlives_its_line_and_reads_back_from_json() {
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
