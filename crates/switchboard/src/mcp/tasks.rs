//! Jobs as tasks (SEP-2663), for clients that declare the extension.
//!
//! A task is a view of a job: its id is the job's, its state is read from the store whenever somebody asks, and it lives as long as
//! the job is kept. rmcp's own task manager keeps tasks in memory and would lose them with the daemon, so it has no part in this.

use calls::{Answer, CallError, JobStatus};
use model::{Job, JobId};
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CreateTaskResult, DetailedTask, ErrorData, GetTaskResult, Task, TaskPayload, TaskStatus,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use super::refusal::Refusal;
use super::render::{self, moment};
use super::server::Server;

/// How often a client should ask.
const POLL_MS: u64 = 1_000;

/// Whether the caller can take a task for an answer.
pub(crate) fn are_declared(context: &RequestContext<RoleServer>) -> bool {
    context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
}

/// The answer to a call whose job goes on: its task.
pub(crate) async fn created(server: &Server, job: JobId) -> Result<CallToolResponse, Refusal> {
    let job = server.desk.job(job).await?;
    let answer = server.desk.answer(job.id).await?;
    Ok(CreateTaskResult::new(task(&job, &answer)).into())
}

/// Where a task stands, with its result if it has ended.
pub(crate) async fn get(server: &Server, id: &str) -> Result<GetTaskResult, ErrorData> {
    let job = find(server, id).await?;
    let answer = server.desk.answer(job.id).await.map_err(failed)?;
    let answer = answer.cut_to(server.options.defaults.max_response_chars);
    let payload = match answer.status {
        JobStatus::Running | JobStatus::Queued | JobStatus::Paused => TaskPayload::Working,
        JobStatus::Cancelled => TaskPayload::Cancelled,
        // `failed` is for an error of the protocol; an agent that failed has an answer that says so.
        JobStatus::Completed | JobStatus::Failed | JobStatus::Timeout => {
            TaskPayload::Completed { result: result(&answer) }
        }
    };
    Ok(GetTaskResult::new(DetailedTask::new(task(&job, &answer), payload)))
}

/// Takes input that a task has asked for. None of ours ever does, and what nobody waits for is passed over.
pub(crate) async fn update(server: &Server, id: &str) -> Result<(), ErrorData> {
    find(server, id).await.map(drop)
}

/// Wants a task to end. One that has ended already stays as it is.
pub(crate) async fn cancel(server: &Server, id: &str) -> Result<(), ErrorData> {
    let job = find(server, id).await?;
    match server.desk.cancel(job.id).await {
        Ok(_) | Err(CallError::AlreadyEnded { .. }) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

async fn find(server: &Server, id: &str) -> Result<Job, ErrorData> {
    let unknown = || ErrorData::invalid_params("there is no such task", Some(json!({ "taskId": id })));
    // A task is named by a program, which has the whole id.
    let job: JobId = id.parse().map_err(|_| unknown())?;
    match server.desk.job(job).await {
        Err(CallError::NoSuchJob { .. }) => Err(unknown()),
        found => found.map_err(failed),
    }
}

fn task(job: &Job, answer: &Answer) -> Task {
    let status = match answer.status {
        JobStatus::Running | JobStatus::Queued | JobStatus::Paused => TaskStatus::Working,
        JobStatus::Cancelled => TaskStatus::Cancelled,
        JobStatus::Completed | JobStatus::Failed | JobStatus::Timeout => TaskStatus::Completed,
    };
    let changed = job.completed_at.or(job.started_at).unwrap_or(job.created_at);
    let task = Task::new(job.id.to_string(), status, moment(job.created_at), moment(changed))
        .with_poll_interval_ms(POLL_MS);
    match &answer.note {
        Some(note) => task.with_status_message(note.clone()),
        None => task.with_status_message(answer.status.as_str()),
    }
}

fn result(answer: &Answer) -> rmcp::model::JsonObject {
    match serde_json::to_value(render::answered(answer)) {
        Ok(Value::Object(result)) => result,
        _ => rmcp::model::JsonObject::new(),
    }
}

fn failed(error: CallError) -> ErrorData {
    ErrorData::internal_error(Refusal::from(error).text(), None)
}
