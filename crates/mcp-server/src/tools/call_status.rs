//! `call_status`: returns the status and the answer of a job.

use calls::Answer;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::Deserialize;

use super::definition::{Effect, ToolRequest, define_tool};
use crate::rejection::ToolRejection;
use crate::{job_ids, results};

pub(super) const NAME: &str = "call_status";
const DESCRIPTION: &str = "Get the current status of a job, and its answer once it has finished. Returns at once. To wait for a job, use call_wait \
    instead of polling; to read the agent's output so far, use call_output. Returns the same object as the call itself: status, \
    output, session_id, error, usage.";
pub(super) const HOWTO: &str = "Example: {\"job_id\": \"01a1dde2\"}\n\
    completed, failed, timeout and cancelled are final; queued, running and paused are not. A failed job is not an error of \
    call_status: check `status` and `error`.";

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct StatusParameters {
    /// The `job_id` of a call, or a unique prefix of at least 4 characters.
    job_id: String,
}

pub(super) fn tool() -> Tool {
    define_tool::<StatusParameters, Answer>(NAME, "Get a job's status", DESCRIPTION, Effect::ReadOnly)
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let StatusParameters { job_id } = request.parse_arguments()?;
    let client = request.client;
    let job = job_ids::find(&client.service, &job_id).await?;
    let answer = client.answer(job.id).await?.cut_to(client.options.defaults.max_response_chars);
    Ok(results::tool_result(&answer, results::answer_text(&answer)).into())
}
