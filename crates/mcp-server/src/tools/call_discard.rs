//! `call_discard`: removes the private checkout of a job with its changes.

use calls::ChangesState;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call_apply::check_permission;
use super::definition::{Effect, ToolRequest, define_tool};
use crate::rejection::ToolRejection;
use crate::{job_ids, results};

pub(super) const NAME: &str = "call_discard";
const DESCRIPTION: &str = "Drop the changes that a job made in a private checkout (`worktree: true`): the checkout and its branch are removed, and \
    the worktree of the user stays as it is. The patch of the recorded files stays with the job. Discarded changes cannot be applied any more.";
pub(super) const HOWTO: &str = "Example: {\"job_id\": \"01a1dde2\"}\n\
    Files without a recorded content, such as very large ones, are lost. An agent inside of a call cannot use this tool.";

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct DiscardParameters {
    /// The `job_id` of a call, or a unique prefix of it.
    job_id: String,
}

/// The result of discarding changes.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DiscardResult {
    /// The job.
    job_id: String,
    /// State of the changes now.
    state: ChangesState,
    /// The patch of the discarded changes.
    patch_file: String,
    /// Explanation of the new state.
    message: String,
}

pub(super) fn tool() -> Tool {
    define_tool::<DiscardParameters, DiscardResult>(
        NAME,
        "Discard a job's changes",
        DESCRIPTION,
        Effect::Changes,
    )
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let DiscardParameters { job_id } = request.parse_arguments()?;
    check_permission(request.client, NAME)?;
    let service = &request.client.service;
    let job = job_ids::find(service, &job_id).await?.id;
    service.discard(job).await?;
    tracing::info!(%job, "discarded changes over MCP");
    let message = "the private checkout and its branch are removed; the patch is kept";
    let result = DiscardResult {
        job_id: job.to_string(),
        state: ChangesState::Discarded,
        patch_file: service.patch_file(job).to_string_lossy().into_owned(),
        message: message.to_owned(),
    };
    let text = format!("{message} in {} (job {job})", result.patch_file);
    Ok(results::tool_result(&result, text).into())
}
