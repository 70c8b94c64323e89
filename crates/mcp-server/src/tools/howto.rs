//! `howto`: explains the tools to a model.

use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agent_tools::find_agent_tool;
use super::definition::{Effect, ToolRequest, define_tool};
use super::listed_tools;
use super::reference::properties;
use super::{
    call_agent, call_apply, call_cancel, call_changes, call_discard, call_jobs, call_many, call_output,
    call_status, call_wait,
};
use crate::arguments::nearest;
use crate::rejection::ToolRejection;
use crate::results;

pub(super) const NAME: &str = "howto";
const DESCRIPTION: &str = "Explain these tools. Without `tool`: an overview of calls, waiting, sessions and files. With `tool`: the parameters, \
    examples and common mistakes of one tool. Starts no agent and uses no tokens.";
const HOWTO: &str = "Examples:\n- {}\n- {\"tool\": \"call_cc\"}";

const OVERVIEW: &str = "\
Calling an agent: call_cc (Claude Code), call_codex (Codex), call_gem (Gemini), call_agent (any other). Each starts an agent on this machine with your \
prompt and returns {status, job_id, output, session_id, …}. A call is a durable job: it continues when you stop waiting, when the \
client disconnects and when the daemon restarts.

Waiting: a call waits for wait_ms (default 50 s) and then returns `running`. Do not repeat it: pass its job_id to call_wait, as often \
as needed. To run several jobs at once, submit each with fire_and_forget or wait_ms 0, then pass all ids to call_wait.

Resuming: pass the session_id of an answer as resume_session_id (with the same cwd), or use continue_latest with the same task_name.

Inspecting: call_status returns the answer, call_output the agent's output, call_changes the changed files with a patch, call_jobs a list. The same data is available as \
resources: switchboard://jobs/{id}, switchboard://jobs/{id}/output, switchboard://jobs/{id}/error.

Calls at the same time: with `worktree: true`, each works in a private checkout of the git repository. Its changes are not in the \
worktree of the user until they are applied, by the user or with call_apply if that is among the tools.

Several agents on one task: call_many gives it to 2 to 8 agents and returns a group_id with the job_id of each. They race in private \
checkouts, and `judge` compares the results; with `observe` they only answer, and one answer is written from theirs. call_wait, \
call_status and call_cancel accept the group_id. An answer of such a job names its group_id.

Verification: with `verify`, a command of yours decides whether the work is done; `repair` sends its failure back to the agent.

Files: status_file, output_file and error_file of an answer can be read or followed with `tail -f`; result.json in the same directory \
contains the final answer.

Cancelling: call_cancel stops a job and all its processes. A job is also stopped after timeout_ms (default one hour).

Errors: an answer with status failed, timeout or cancelled has `error` with kind, message and hint. The error of a rejected call names \
the parameter and the remedy; no job was submitted then.";

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct HowtoParameters {
    /// Tool to explain, such as `call_cc`. Default: an overview of all tools.
    tool: Option<String>,
}

/// An explanation.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HowtoResult {
    /// The explained tool; absent for the overview.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    /// Explanation.
    text: String,
    /// Names of all tools.
    tools: Vec<String>,
}

pub(super) fn tool() -> Tool {
    define_tool::<HowtoParameters, HowtoResult>(NAME, "Explain the tools", DESCRIPTION, Effect::ReadOnly)
}

#[expect(clippy::unused_async, reason = "all tools have the same signature")]
pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let HowtoParameters { tool } = request.parse_arguments()?;
    let names: Vec<&str> = listed_tools(&request.client.options).map(|tool| tool.name.as_ref()).collect();
    let tool = tool.map(|name| name.trim().to_lowercase());
    let text = match &tool {
        None => {
            format!("{OVERVIEW}\n\nTools: {}. `howto` with `tool` explains one of them.", names.join(", "))
        }
        Some(name) => {
            let found = listed_tools(&request.client.options).find(|tool| tool.name == name.as_str());
            explain(found.ok_or_else(|| unknown_tool(name, &names))?)
        }
    };
    let result = HowtoResult { tool, tools: names.into_iter().map(str::to_owned).collect(), text };
    Ok(results::tool_result(&result, result.text.clone()).into())
}

fn unknown_tool(name: &str, names: &[&str]) -> ToolRejection {
    let near = nearest(name, names.iter().copied())
        .map(|near| format!("did you mean `{near}`? "))
        .unwrap_or_default();
    let shown: String = name.chars().take(100).collect();
    ToolRejection::for_field(
        "tool",
        format!("unknown tool `{}`", shown.escape_debug()),
        format!("{near}The tools are: {}", names.join(", ")),
    )
}

/// Explains one tool: description, parameters, examples.
fn explain(tool: &Tool) -> String {
    let mut text =
        format!("{}: {}\n\nParameters:\n", tool.name, tool.description.as_deref().unwrap_or_default());
    for line in describe_parameters(tool) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push('\n');
    text.push_str(examples(&tool.name));
    text
}

fn describe_parameters(tool: &Tool) -> impl Iterator<Item = String> {
    properties(&tool.input_schema).into_iter().map(|(name, schema, is_required)| {
        let required = if is_required { ", required" } else { "" };
        let kind = schema["type"].as_str().unwrap_or("any");
        format!("- {name} ({kind}{required}): {}", schema["description"].as_str().unwrap_or_default())
    })
}

/// Returns the examples and common mistakes of a tool.
fn examples(name: &str) -> &'static str {
    if let Some(tool) = find_agent_tool(name) {
        return tool.howto;
    }
    match name {
        call_agent::NAME => call_agent::HOWTO,
        call_many::NAME => call_many::HOWTO,
        call_wait::NAME => call_wait::HOWTO,
        call_status::NAME => call_status::HOWTO,
        call_output::NAME => call_output::HOWTO,
        call_jobs::NAME => call_jobs::HOWTO,
        call_cancel::NAME => call_cancel::HOWTO,
        call_changes::NAME => call_changes::HOWTO,
        call_apply::NAME => call_apply::HOWTO,
        call_discard::NAME => call_discard::HOWTO,
        _ => HOWTO,
    }
}
