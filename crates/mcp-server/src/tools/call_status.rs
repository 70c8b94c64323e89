//! `call_status`: returns the status and the answer of a job, or of all jobs of a group.

use calls::Answer;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::group_report::GroupAnswer;
use crate::job_ids::{self, JobTarget};
use crate::rejection::ToolRejection;
use crate::results;

pub(super) const NAME: &str = "call_status";
const DESCRIPTION: &str = "Get the current status of a job, and its answer once it has finished. Returns at once. To wait for a job, use call_wait \
    instead of polling; to read the agent's output so far, use call_output. Returns the same object as the call itself: status, \
    output, session_id, error, usage. For the group_id of a call_many: has_ended, contenders, verdict, reviews.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_id\": \"01a1dde2\"}\n\
    - {\"job_id\": \"group-01a1dde2-642d-7027-95b7-67d9f29d1836\"}\n\
    completed, failed, timeout and cancelled are final; queued, running and paused are not. A failed job is not an error of \
    call_status: check `status` and `error`.";

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct StatusParameters {
    /// The `job_id` of a call, or a unique prefix of at least 4 characters; or a `group_id`.
    job_id: String,
}

/// The result, for a job or for a group.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum StatusResult {
    Job(Box<Answer>),
    Group(GroupAnswer),
}

pub(super) fn tool() -> Tool {
    define_tool::<StatusParameters, StatusResult>(NAME, "Get a job's status", DESCRIPTION, Effect::ReadOnly)
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let StatusParameters { job_id } = request.parse_arguments()?;
    let client = request.client;
    let result = match job_ids::find_target(&client.service, &job_id).await? {
        JobTarget::Job(job) => StatusResult::Job(Box::new(client.cut_answer(job).await?)),
        JobTarget::Group(group) => StatusResult::Group(GroupAnswer::read(client, &group).await?),
    };
    let text = match &result {
        StatusResult::Job(answer) => results::answer_text(answer),
        StatusResult::Group(answer) => answer.text(),
    };
    Ok(results::tool_result(&result, text).into())
}
