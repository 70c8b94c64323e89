//! `call_cancel`: cancels a job, or all jobs of a group.

use std::time::Duration;

use calls::{CallError, Cancellation, JobService, JobStatus, Until};
use model::{JobGroup, JobId, StateName};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::job_ids::{self, JobTarget};
use crate::rejection::ToolRejection;
use crate::results;

pub(super) const NAME: &str = "call_cancel";
const DESCRIPTION: &str = "Stop a job and all processes of its agent. The output so far and the session are kept: read them with call_status, \
    continue the session with resume_session_id. Cancelling a job twice is fine; a job that has completed, failed or timed out \
    cannot be cancelled. With the group_id of a call_many, stops those of its jobs that have not finished.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_id\": \"01a1dde2\"}\n\
    - {\"job_id\": \"group-01a1dde2-642d-7027-95b7-67d9f29d1836\"}\n\
    Returns once all processes of the agent are gone, or after ten seconds: new_status is then still `running`, and the job is \
    being stopped. A job that finished just before keeps its outcome.";

/// Maximum wait for the processes to exit. Longer than the grace period of agents.
const MAX_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CancelParameters {
    /// The `job_id` of a call, or a unique prefix of it; or a `group_id`.
    job_id: String,
}

/// The result of a cancellation.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum CancelResult {
    Job(CancelledJob),
    Group(CancelledGroup),
}

/// A cancelled job.
#[derive(Debug, Serialize, JsonSchema)]
struct CancelledJob {
    /// The job.
    job_id: String,
    /// Status before the cancellation.
    previous_status: JobStatus,
    /// Status now.
    new_status: JobStatus,
    /// Explanation of the new status.
    message: String,
}

impl CancelledJob {
    fn text(&self) -> String {
        let Self { job_id, previous_status, message, .. } = self;
        format!("{message} (job {job_id}, {} before)", previous_status.as_str())
    }
}

/// The cancelled jobs of a group.
#[derive(Debug, Serialize, JsonSchema)]
struct CancelledGroup {
    /// The group.
    group_id: String,
    /// Its jobs that had not finished.
    jobs: Vec<CancelledJob>,
    /// Explanation of the new status.
    message: String,
}

pub(super) fn tool() -> Tool {
    define_tool::<CancelParameters, CancelResult>(NAME, "Cancel a job", DESCRIPTION, Effect::Changes)
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let CancelParameters { job_id } = request.parse_arguments()?;
    let service = &request.client.service;
    let (result, text) = match job_ids::find_target(service, &job_id).await? {
        JobTarget::Job(job) => {
            let cancelled = cancel_job(service, job).await?;
            let text = cancelled.text();
            (CancelResult::Job(cancelled), text)
        }
        JobTarget::Group(group) => {
            let cancelled = cancel_group(service, &group).await?;
            let jobs = cancelled.jobs.iter().map(CancelledJob::text);
            let lines: Vec<String> =
                [format!("{} ({})", cancelled.message, cancelled.group_id)].into_iter().chain(jobs).collect();
            (CancelResult::Group(cancelled), lines.join("\n"))
        }
    };
    Ok(results::tool_result(&result, text).into())
}

async fn cancel_job(service: &JobService, job: JobId) -> Result<CancelledJob, CallError> {
    let Cancellation { previous, now } = service.cancel(job).await?;
    if !JobStatus::from(now).is_final() {
        service.wait(&[job], Until::All, MAX_WAIT).await?;
    }
    describe_job(service, job, previous).await
}

async fn cancel_group(service: &JobService, group: &JobGroup) -> Result<CancelledGroup, CallError> {
    let cancelled = service.cancel_group(group).await?;
    let jobs: Vec<JobId> = cancelled.iter().map(|(job, _)| *job).collect();
    service.wait(&jobs, Until::All, MAX_WAIT).await?;
    let mut described = Vec::new();
    for (job, Cancellation { previous, .. }) in cancelled {
        described.push(describe_job(service, job, previous).await?);
    }
    let message = if described.is_empty() {
        "all jobs of the group had already ended"
    } else if described.iter().any(|job| !job.new_status.is_final()) {
        "the unfinished jobs of the group are being stopped; check it with call_status"
    } else {
        "the unfinished jobs of the group are stopped, and none of their processes is left"
    };
    Ok(CancelledGroup {
        group_id: group.id().map(|id| id.to_string()).unwrap_or_default(),
        jobs: described,
        message: message.to_owned(),
    })
}

/// Describes a job after its cancellation.
async fn describe_job(
    service: &JobService,
    job: JobId,
    previous: StateName,
) -> Result<CancelledJob, CallError> {
    let previous = JobStatus::from(previous);
    let now = JobStatus::from(service.job(job).await?.progress.state.name());
    let message = match (previous, now) {
        (JobStatus::Cancelled, _) => "the job was already cancelled",
        (_, JobStatus::Cancelled) => "the job is cancelled, and none of its processes is left",
        (_, now) if now.is_final() => "the job finished just before it could be stopped",
        _ => "the job is being stopped; check it with call_status",
    };
    Ok(CancelledJob {
        job_id: job.to_string(),
        previous_status: previous,
        new_status: now,
        message: message.to_owned(),
    })
}
