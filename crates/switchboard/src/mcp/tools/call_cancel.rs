//! `call_cancel`: ending a job.

use std::time::Duration;

use calls::{Cancellation, JobStatus, Until};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Effect, Request, define};
use crate::mcp::refusal::Refusal;
use crate::mcp::{job_ids, render};

pub(super) const NAME: &str = "call_cancel";
const ABOUT: &str = "Stop a job, with everything its agent has started. What it has printed so far and its session are kept: read \
    them with call_status, go on with resume_session_id. Cancelling a job twice is fine; a job that has completed, failed or timed \
    out cannot be cancelled.";
pub(super) const HOWTO: &str = "Example: {\"job_id\": \"01a1dde2\"}\n\
    Answers once nothing of the agent is left, or after ten seconds: new_status is then still `running`, and the job is being \
    stopped. A job that ended by itself just before keeps its own end.";

/// How long it is waited until nothing of the agent is left. Longer than the grace that agents have.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Parameters {
    /// The `job_id` that a call answered, or its first characters.
    job_id: String,
}

/// What became of the job.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Outcome {
    /// Which job.
    job_id: String,
    /// Where it stood before.
    previous_status: JobStatus,
    /// Where it stands now.
    new_status: JobStatus,
    /// What that means.
    message: String,
}

pub(super) fn tool() -> Tool {
    define::<Parameters, Outcome>(NAME, "Cancel a job", ABOUT, Effect::Ends)
}

pub(super) async fn call(mut request: Request<'_>) -> Result<CallToolResponse, Refusal> {
    let Parameters { job_id } = request.read()?;
    let desk = &request.server.desk;
    let job = job_ids::find(desk, &job_id).await?.id;
    let Cancellation { previous, now } = desk.cancel(job).await?;
    let mut now = JobStatus::from(now);
    if !now.is_final() {
        desk.wait(&[job], Until::All, PATIENCE).await?;
        now = JobStatus::from(desk.job(job).await?.progress.state.name());
    }
    let previous = JobStatus::from(previous);
    let message = match (previous, now) {
        (JobStatus::Cancelled, _) => "the job was cancelled before",
        (_, JobStatus::Cancelled) => "the job is cancelled, and nothing of it is left running",
        (_, now) if now.is_final() => "the job ended by itself just before it could be stopped",
        _ => "the job is being stopped; call_status says when it is",
    };
    let outcome = Outcome {
        job_id: job.to_string(),
        previous_status: previous,
        new_status: now,
        message: message.to_owned(),
    };
    Ok(render::result(&outcome, format!("{message} (job {job}, {} before)", previous.as_str())).into())
}
