//! `howto`: the tools explained, for a model that is not sure.

use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reference::properties;
use super::{Effect, Request, define, listed};
use super::{
    call_cancel, call_cc, call_codex, call_gem, call_jobs, call_output, call_rehearsal, call_status,
    call_wait,
};
use crate::mcp::arguments::nearest;
use crate::mcp::refusal::Refusal;
use crate::mcp::render;

pub(super) const NAME: &str = "howto";
const ABOUT: &str = "Explains these tools: without `tool` an overview of how calls, waiting, sessions and files work together, with it \
    the parameters, examples and typical mistakes of one tool. Costs nothing and starts nothing.";
const HOWTO: &str = "Examples:\n- {}\n- {\"tool\": \"call_cc\"}";

const OVERVIEW: &str = "\
Placing a call: call_cc (Claude Code), call_codex (Codex), call_gem (Gemini). Each starts an agent on this machine with your \
prompt and answers {status, job_id, output, session_id, …}. A call is a durable job: once it is placed it goes on, even when you \
stop waiting, the client ends or the daemon restarts.

Waiting: a call blocks for wait_ms (50 s) and then answers `running`. Do not place it again: call call_wait with its job_id in job_ids, as \
often as needed. For several at once place each with fire_and_forget or wait_ms 0, then call call_wait with all ids.

Going on: give the session_id of an answer as resume_session_id (with the same cwd), or use continue_latest with the same \
task_name.

Looking: call_status for the answer, call_output for what the agent printed, call_jobs for a list. The same is there as \
resources: switchboard://jobs/{id}, switchboard://jobs/{id}/output, switchboard://jobs/{id}/error.

Files: status_file, output_file and error_file of an answer can be read or followed with `tail -f`; result.json beside them holds \
the final answer.

Ending: call_cancel stops a job with everything it started. A job also ends at timeout_ms (an hour, unless the operator set another time).

Errors: an answer with status failed, timeout or cancelled has `error` with kind, message and hint. A refused call names the \
parameter and the remedy, and nothing was placed.";

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Parameters {
    /// The tool to explain, such as `call_cc`. Left out: an overview.
    tool: Option<String>,
}

/// An explanation.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Explained {
    /// What was explained; none for the overview.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    /// The explanation.
    text: String,
    /// The tools there are.
    tools: Vec<String>,
}

pub(super) fn tool() -> Tool {
    define::<Parameters, Explained>(NAME, "Explain the tools", ABOUT, Effect::Reads)
}

#[expect(clippy::unused_async, reason = "like every tool")]
pub(super) async fn call(mut request: Request<'_>) -> Result<CallToolResponse, Refusal> {
    let Parameters { tool } = request.read()?;
    let names: Vec<&str> = listed(&request.server.options).map(|tool| tool.name.as_ref()).collect();
    let tool = tool.map(|name| name.trim().to_lowercase());
    let text = match &tool {
        None => {
            format!("{OVERVIEW}\n\nTools: {}. `howto` with `tool` explains one of them.", names.join(", "))
        }
        Some(name) => {
            let found = listed(&request.server.options).find(|tool| tool.name == name.as_str());
            explain(found.ok_or_else(|| unknown(name, &names))?)
        }
    };
    let explained = Explained { tool, tools: names.into_iter().map(str::to_owned).collect(), text };
    Ok(render::result(&explained, explained.text.clone()).into())
}

fn unknown(name: &str, names: &[&str]) -> Refusal {
    let near = nearest(name, names.iter().copied())
        .map(|near| format!("did you mean `{near}`? "))
        .unwrap_or_default();
    let shown: String = name.chars().take(100).collect();
    Refusal::of(
        "tool",
        format!("there is no tool `{}`", shown.escape_debug()),
        format!("{near}There are: {}", names.join(", ")),
    )
}

/// Everything that is to be said about one tool.
fn explain(tool: &Tool) -> String {
    let mut text =
        format!("{}: {}\n\nParameters:\n", tool.name, tool.description.as_deref().unwrap_or_default());
    for line in parameters(tool) {
        text.push_str(&line);
        text.push('\n');
    }
    text.push('\n');
    text.push_str(more(&tool.name));
    text
}

fn parameters(tool: &Tool) -> impl Iterator<Item = String> {
    properties(&tool.input_schema).into_iter().map(|(name, schema, is_required)| {
        let must = if is_required { ", required" } else { "" };
        let kind = schema["type"].as_str().unwrap_or("any");
        format!("- {name} ({kind}{must}): {}", schema["description"].as_str().unwrap_or_default())
    })
}

/// Examples and typical mistakes.
fn more(name: &str) -> &'static str {
    match name {
        call_cc::NAME => call_cc::CALL.howto,
        call_codex::NAME => call_codex::CALL.howto,
        call_gem::NAME => call_gem::CALL.howto,
        call_rehearsal::NAME => call_rehearsal::CALL.howto,
        call_wait::NAME => call_wait::HOWTO,
        call_status::NAME => call_status::HOWTO,
        call_output::NAME => call_output::HOWTO,
        call_jobs::NAME => call_jobs::HOWTO,
        call_cancel::NAME => call_cancel::HOWTO,
        _ => HOWTO,
    }
}
