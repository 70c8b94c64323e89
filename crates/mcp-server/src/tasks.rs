//! Jobs as tasks (SEP-2663), for clients that declare the extension.
//!
//! A task is a view of a job or a group: it has the same id and lifetime, and its state is read from the store on each
//! request. The task manager of rmcp is not used, because it holds tasks in memory and would lose them with the daemon.

use calls::{CallError, JobStatus};
use model::{GroupId, JobId, Timestamp};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CallToolResult, CreateTaskResult, DetailedTask, ErrorData, GetTaskResult, Task,
    TaskPayload, TaskStatus,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use crate::context::ClientContext;
use crate::group_report::GroupAnswer;
use crate::job_ids::JobTarget;
use crate::rejection::ToolRejection;
use crate::results::{self, format_timestamp};

/// Poll interval suggested to clients.
const POLL_INTERVAL_MS: u64 = 1_000;

/// Returns whether the client supports tasks.
pub(crate) fn are_supported(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
}

/// The job or the group behind a task, at one moment.
struct TaskView {
    id: String,
    status: JobStatus,
    created_at: Timestamp,
    updated_at: Timestamp,
    message: String,
    result: CallToolResult,
}

/// Returns the task of a job or a group as the response to its call.
pub(crate) async fn create(
    client: &ClientContext,
    target: &JobTarget,
) -> Result<CallToolResponse, ToolRejection> {
    Ok(CreateTaskResult::new(task(&view(client, target).await?)).into())
}

/// Returns the status of a task, and its result once it has finished.
pub(crate) async fn get(client: &ClientContext, id: &str) -> Result<GetTaskResult, ErrorData> {
    let target = find(client, id).await?;
    let view = view(client, &target).await.map_err(internal_error)?;
    let payload = match view.status {
        JobStatus::Running | JobStatus::Queued | JobStatus::Paused => TaskPayload::Working,
        JobStatus::Cancelled => TaskPayload::Cancelled,
        // `failed` is reserved for protocol errors. A failed call has a result with an error.
        JobStatus::Completed | JobStatus::Failed | JobStatus::Timeout => {
            TaskPayload::Completed { result: result(&view.result) }
        }
    };
    Ok(GetTaskResult::new(DetailedTask::new(task(&view), payload)))
}

/// Accepts input for a task. No-op: tasks request no input.
pub(crate) async fn update(client: &ClientContext, id: &str) -> Result<(), ErrorData> {
    find(client, id).await.map(drop)
}

/// Cancels a task. A finished task is left as it is.
pub(crate) async fn cancel(client: &ClientContext, id: &str) -> Result<(), ErrorData> {
    let cancelled = match find(client, id).await? {
        JobTarget::Job(job) => client.service.cancel(job).await.map(drop),
        JobTarget::Group(group) => client.service.cancel_group(&group).await.map(drop),
    };
    match cancelled {
        Ok(()) | Err(CallError::AlreadyEnded { .. }) => Ok(()),
        Err(error) => Err(internal_error(error)),
    }
}

async fn find(client: &ClientContext, id: &str) -> Result<JobTarget, ErrorData> {
    let unknown = || ErrorData::invalid_params("unknown task", Some(json!({ "taskId": id })));
    let first_of_group = GroupId::strip_prefix(id);
    // No prefixes: programs have the whole id.
    let job: JobId = first_of_group.unwrap_or(id).parse().map_err(|_| unknown())?;
    let job = match client.service.job(job).await {
        Err(CallError::NoSuchJob { .. }) => return Err(unknown()),
        found => found.map_err(internal_error)?,
    };
    match first_of_group {
        None => Ok(JobTarget::Job(job.id)),
        Some(_) => job.order.call.group.map(JobTarget::Group).ok_or_else(unknown),
    }
}

/// Reads the job or the group of a task.
async fn view(client: &ClientContext, target: &JobTarget) -> Result<TaskView, CallError> {
    match target {
        JobTarget::Job(job) => {
            let (job, answer) = (client.service.job(*job).await?, client.cut_answer(*job).await?);
            Ok(TaskView {
                id: job.id.to_string(),
                status: answer.status,
                created_at: job.created_at,
                updated_at: job.completed_at.or(job.started_at).unwrap_or(job.created_at),
                message: answer.note.clone().unwrap_or_else(|| answer.status.as_str().to_owned()),
                result: results::call_result(&answer),
            })
        }
        JobTarget::Group(group) => {
            let answer = GroupAnswer::read(client, group).await?;
            let mut times = Vec::new();
            for job in client.service.jobs_of_group(group).await? {
                let job = client.service.job(job).await?;
                times.extend([Some(job.created_at), job.started_at, job.completed_at].into_iter().flatten());
            }
            let now = client.service.now();
            Ok(TaskView {
                id: answer.report.group_id.clone(),
                status: answer.report.status(),
                created_at: times.iter().min().copied().unwrap_or(now),
                updated_at: times.iter().max().copied().unwrap_or(now),
                message: answer.describe_progress(),
                result: answer.call_result(),
            })
        }
    }
}

fn task(view: &TaskView) -> Task {
    let status = match view.status {
        JobStatus::Running | JobStatus::Queued | JobStatus::Paused => TaskStatus::Working,
        JobStatus::Cancelled => TaskStatus::Cancelled,
        JobStatus::Completed | JobStatus::Failed | JobStatus::Timeout => TaskStatus::Completed,
    };
    let (created, updated) = (format_timestamp(view.created_at), format_timestamp(view.updated_at));
    Task::new(view.id.clone(), status, created, updated)
        .with_poll_interval_ms(POLL_INTERVAL_MS)
        .with_status_message(view.message.clone())
}

fn result(result: &CallToolResult) -> rmcp::model::JsonObject {
    match serde_json::to_value(result) {
        Ok(Value::Object(result)) => result,
        _ => rmcp::model::JsonObject::new(),
    }
}

fn internal_error(error: CallError) -> ErrorData {
    ErrorData::internal_error(ToolRejection::from(error).text(), None)
}
