//! `call_cancel`: cancels a job.

use std::time::Duration;

use calls::{Cancellation, JobStatus, Until};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::rejection::ToolRejection;
use crate::{job_ids, results};

pub(super) const NAME: &str = "call_cancel";
const DESCRIPTION: &str = "Stop a job and all processes of its agent. The output so far and the session are kept: read them with call_status, \
    continue the session with resume_session_id. Cancelling a job twice is fine; a job that has completed, failed or timed out \
    cannot be cancelled.";
pub(super) const HOWTO: &str = "Example: {\"job_id\": \"01a1dde2\"}\n\
    Returns once all processes of the agent are gone, or after ten seconds: new_status is then still `running`, and the job is \
    being stopped. A job that finished just before keeps its outcome.";

/// Maximum wait for the processes to exit. Longer than the grace period of agents.
const MAX_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CancelParameters {
    /// The `job_id` of a call, or a unique prefix of it.
    job_id: String,
}

/// The result of a cancellation.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CancelResult {
    /// The job.
    job_id: String,
    /// Status before the cancellation.
    previous_status: JobStatus,
    /// Status now.
    new_status: JobStatus,
    /// Explanation of the new status.
    message: String,
}

pub(super) fn tool() -> Tool {
    define_tool::<CancelParameters, CancelResult>(NAME, "Cancel a job", DESCRIPTION, Effect::Changes)
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let CancelParameters { job_id } = request.parse_arguments()?;
    let service = &request.client.service;
    let job = job_ids::find(service, &job_id).await?.id;
    let Cancellation { previous, now } = service.cancel(job).await?;
    let mut now = JobStatus::from(now);
    if !now.is_final() {
        service.wait(&[job], Until::All, MAX_WAIT).await?;
        now = JobStatus::from(service.job(job).await?.progress.state.name());
    }
    let previous = JobStatus::from(previous);
    let message = match (previous, now) {
        (JobStatus::Cancelled, _) => "the job was already cancelled",
        (_, JobStatus::Cancelled) => "the job is cancelled, and none of its processes is left",
        (_, now) if now.is_final() => "the job finished just before it could be stopped",
        _ => "the job is being stopped; check it with call_status",
    };
    let result = CancelResult {
        job_id: job.to_string(),
        previous_status: previous,
        new_status: now,
        message: message.to_owned(),
    };
    Ok(results::tool_result(&result, format!("{message} (job {job}, {} before)", previous.as_str())).into())
}
