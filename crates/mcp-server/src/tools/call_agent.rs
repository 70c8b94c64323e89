//! `call_agent`: calls any agent by its name.
//!
//! Its parameters are those of the tools for one agent, with `AgentParameter`.

use model::AgentKind;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::agent_tools::check_agent;
use super::call::{self, tool_for_calls};
use super::definition::ToolRequest;
use crate::context::ClientContext;
use crate::rejection::ToolRejection;
use crate::{arguments, schema};

pub(super) const NAME: &str = "call_agent";
const DESCRIPTION: &str = "Send a task to any coding agent on this machine, by its name, and get its answer: for agents without a tool of their \
    own, such as opencode, qwen or an agent of the user. It does not see your conversation, so put everything it needs into `prompt`. \
    It may change files and run commands unless `mode` is `observe`. If the status is `running`, the job continues in the background: \
    pass its job_id to call_wait and do not repeat the call. To follow up, pass the session_id of the answer as resume_session_id. \
    An agent that does not support a parameter rejects it by name: omit it then.";
pub(super) const HOWTO: &str = "Examples:\n\
    - {\"agent\": \"opencode\", \"prompt\": \"Explain src/queue.rs.\", \"mode\": \"observe\"}\n\
    - {\"agent\": \"opencode\", \"prompt\": \"Now simplify it.\", \"resume_session_id\": \"<session_id of the answer>\"}\n\
    claude, codex and gemini can be called here, too.";
const MODELS: &str =
    "Model: a name that the agent accepts. Default: set by the operator, else the agent's default.";

/// The parameter that only this tool has.
#[derive(Debug, Deserialize, JsonSchema)]
struct AgentParameter {
    /// Agent to call, by its name.
    agent: String,
}

pub(super) fn tool() -> Tool {
    let mut tool = tool_for_calls(NAME, "Call any agent", DESCRIPTION);
    let mut input = (*tool.input_schema).clone();
    schema::describe(&mut input, "model", MODELS);
    schema::add_parameters::<AgentParameter>(&mut input);
    tool.input_schema = input.into();
    tool
}

/// Names the agents that are installed, each with the operator's description.
pub(super) fn list_agents(client: &ClientContext, mut tool: Tool) -> Tool {
    let installed = client.service.installed_agents();
    let is_shown = |agent: AgentKind| agent != AgentKind::Rehearsal || client.options.rehearsal;
    let shown: Vec<_> = installed.iter().filter(|profile| is_shown(profile.agent)).collect();
    let lines: Vec<String> = shown
        .iter()
        .map(|profile| {
            format!("- {}: {}", profile.agent, profile.description.as_ref().unwrap_or(&profile.title))
        })
        .collect();
    if lines.is_empty() {
        return tool;
    }
    let mut input = (*tool.input_schema).clone();
    let description = format!("Agent to call, one of:\n{}", lines.join("\n"));
    schema::describe(&mut input, "agent", &description);
    let names: Vec<Value> = shown.iter().map(|profile| Value::from(profile.agent.name())).collect();
    input["properties"]["agent"]["enum"] = names.into();
    tool.input_schema = input.into();
    tool
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let AgentParameter { agent } = arguments::parse(request.tool, request.arguments.clone())?;
    let agent: AgentKind = agent.trim().parse().map_err(|error: model::BadName| {
        ToolRejection::for_field("agent", error.to_string(), error.hint())
    })?;
    check_agent(request.client, "agent", agent)?;
    let parameters = request.parse_arguments()?;
    call::place(&request, agent, parameters).await
}
