//! Jobs as tasks (SEP-2663), for clients that declare the extension.
//!
//! A task is a view of a job: it has the job's id and lifetime, and its state is read from the store on each request. The task manager of
//! rmcp is not used, because it holds tasks in memory and would lose them with the daemon.

use calls::{Answer, CallError, JobStatus};
use model::{Job, JobId};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CreateTaskResult, DetailedTask, ErrorData, GetTaskResult, Task, TaskPayload, TaskStatus,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use crate::context::ClientContext;
use crate::rejection::ToolRejection;
use crate::results::{self, format_timestamp};

/// Poll interval suggested to clients.
const POLL_INTERVAL_MS: u64 = 1_000;

/// Returns whether the client supports tasks.
pub(crate) fn are_supported(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
}

/// Returns the task of a job as the response to its call.
pub(crate) async fn create(client: &ClientContext, job: JobId) -> Result<CallToolResponse, ToolRejection> {
    let job = client.service.job(job).await?;
    let answer = client.answer(job.id).await?;
    Ok(CreateTaskResult::new(task(&job, &answer)).into())
}

/// Returns the status of a task, and its result once it has finished.
pub(crate) async fn get(client: &ClientContext, id: &str) -> Result<GetTaskResult, ErrorData> {
    let job = find(client, id).await?;
    let answer = client.answer(job.id).await.map_err(internal_error)?;
    let answer = answer.cut_to(client.options.defaults.max_response_chars);
    let payload = match answer.status {
        JobStatus::Running | JobStatus::Queued | JobStatus::Paused => TaskPayload::Working,
        JobStatus::Cancelled => TaskPayload::Cancelled,
        // `failed` is reserved for protocol errors. A failed call has a result with an error.
        JobStatus::Completed | JobStatus::Failed | JobStatus::Timeout => {
            TaskPayload::Completed { result: result(&answer) }
        }
    };
    Ok(GetTaskResult::new(DetailedTask::new(task(&job, &answer), payload)))
}

/// Accepts input for a task. No-op: tasks request no input.
pub(crate) async fn update(client: &ClientContext, id: &str) -> Result<(), ErrorData> {
    find(client, id).await.map(drop)
}

/// Cancels a task. A finished task is left as it is.
pub(crate) async fn cancel(client: &ClientContext, id: &str) -> Result<(), ErrorData> {
    let job = find(client, id).await?;
    match client.service.cancel(job.id).await {
        Ok(_) | Err(CallError::AlreadyEnded { .. }) => Ok(()),
        Err(error) => Err(internal_error(error)),
    }
}

async fn find(client: &ClientContext, id: &str) -> Result<Job, ErrorData> {
    let unknown = || ErrorData::invalid_params("unknown task", Some(json!({ "taskId": id })));
    // No prefixes: programs have the whole id.
    let job: JobId = id.parse().map_err(|_| unknown())?;
    match client.service.job(job).await {
        Err(CallError::NoSuchJob { .. }) => Err(unknown()),
        found => found.map_err(internal_error),
    }
}

fn task(job: &Job, answer: &Answer) -> Task {
    let status = match answer.status {
        JobStatus::Running | JobStatus::Queued | JobStatus::Paused => TaskStatus::Working,
        JobStatus::Cancelled => TaskStatus::Cancelled,
        JobStatus::Completed | JobStatus::Failed | JobStatus::Timeout => TaskStatus::Completed,
    };
    let updated = job.completed_at.or(job.started_at).unwrap_or(job.created_at);
    let task =
        Task::new(job.id.to_string(), status, format_timestamp(job.created_at), format_timestamp(updated))
            .with_poll_interval_ms(POLL_INTERVAL_MS);
    match &answer.note {
        Some(note) => task.with_status_message(note.clone()),
        None => task.with_status_message(answer.status.as_str()),
    }
}

fn result(answer: &Answer) -> rmcp::model::JsonObject {
    match serde_json::to_value(results::call_result(answer)) {
        Ok(Value::Object(result)) => result,
        _ => rmcp::model::JsonObject::new(),
    }
}

fn internal_error(error: CallError) -> ErrorData {
    ErrorData::internal_error(ToolRejection::from(error).text(), None)
}
