//! `call_wait`: waits for submitted jobs.

use std::time::Duration;

use calls::{Answer, JobStatus, Until};
use model::JobId;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::arguments::parse_choice;
use crate::millis::Millis;
use crate::rejection::ToolRejection;
use crate::{job_ids, results, waiting};

pub(super) const NAME: &str = "call_wait";
const DESCRIPTION: &str = "Wait for jobs to finish and get their answers. Use it after a call returned `running` or was submitted with \
    fire_and_forget, instead of polling call_status. It returns after timeout_ms at the latest (50000 at most, because many hosts \
    time out after 60 s). If `pending` is not empty then, call it again with those ids. Neither the timeout nor a cancelled wait \
    stops a job.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_ids\": [\"01a1dde2\"]}\n- {\"job_ids\": [\"01a1dde2\", \"01a1dde3\"], \"mode\": \"any\"}\n\
    With `any` it returns as soon as one job has finished; with `all`, the default, when all have.";

const MAX_TIMEOUT_MS: u64 = 50_000;
const MAX_JOBS: usize = 100;
/// Minimum number of characters per answer, when several share the limit.
const MIN_CHARS: usize = 1_000;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct WaitParameters {
    /// The `job_id`s of 1 to 100 calls, or unique prefixes of them.
    #[schemars(length(min = 1, max = 100))]
    job_ids: Vec<String>,
    /// `all` (default): wait until all jobs have finished. `any`: until one has finished.
    #[schemars(extend("enum" = ["any", "all"]))]
    mode: Option<String>,
    /// Maximum wait, in milliseconds or with a unit such as `50s`. 0 returns at once; the maximum is 50000. Default: 50000.
    timeout_ms: Option<Millis>,
}

/// The result of a wait.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WaitResult {
    /// Is true if the wait's condition was met.
    done: bool,
    /// Answers of the finished jobs.
    jobs: Vec<Answer>,
    /// Unfinished jobs.
    pending: Vec<PendingJob>,
}

/// An unfinished job.
#[derive(Debug, Serialize, JsonSchema)]
struct PendingJob {
    /// Job id.
    job_id: String,
    /// Status.
    status: JobStatus,
    /// Current activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub(super) fn tool() -> Tool {
    define_tool::<WaitParameters, WaitResult>(NAME, "Wait for jobs", DESCRIPTION, Effect::ReadOnly)
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let WaitParameters { job_ids, mode, timeout_ms } = request.parse_arguments()?;
    let until = match mode {
        Some(mode) => parse_choice("mode", &mode, &[("any", Until::Any), ("all", Until::All)])?,
        None => Until::All,
    };
    // The end of a wait does not affect the jobs, so a longer wait is shortened instead of rejected.
    let timeout = timeout_ms.map_or(MAX_TIMEOUT_MS, |Millis(millis)| millis).min(MAX_TIMEOUT_MS);
    let jobs = find_jobs(&request, &job_ids).await?;
    let time = Duration::from_millis(timeout)
        .saturating_sub(waiting::elapsed_since_request(request.client, request.context));
    // However the wait ends, the result is the current status of the jobs, and no job is cancelled.
    let finished = request.client.service.wait(&jobs, until, time);
    let end = waiting::wait(request.client, request.context, &jobs, finished).await?;
    let mut result = collect_answers(&request, &jobs, until).await?;
    if end == waiting::WaitEnd::NotAdmitted {
        for pending in &mut result.pending {
            pending.note = Some(waiting::not_admitted(request.client));
        }
    }
    let text = text(&result);
    Ok(results::tool_result(&result, text).into())
}

async fn find_jobs(request: &ToolRequest<'_>, given: &[String]) -> Result<Vec<JobId>, ToolRejection> {
    if !(1..=MAX_JOBS).contains(&given.len()) {
        return Err(ToolRejection::for_field(
            "job_ids",
            format!("{} ids; expected 1 to {MAX_JOBS}", given.len()),
            "give a list of job_ids",
        ));
    }
    let mut jobs = Vec::new();
    for (position, id) in given.iter().enumerate() {
        let job = job_ids::find(&request.client.service, id).await;
        let job = job.map_err(|rejection| rejection.with_field(&format!("job_ids[{position}]")))?.id;
        if !jobs.contains(&job) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

async fn collect_answers(
    request: &ToolRequest<'_>,
    jobs: &[JobId],
    until: Until,
) -> Result<WaitResult, ToolRejection> {
    let client = request.client;
    let chars = (client.options.defaults.max_response_chars / jobs.len().max(1)).max(MIN_CHARS);
    let mut result = WaitResult { done: false, jobs: Vec::new(), pending: Vec::new() };
    for &job in jobs {
        let answer = client.answer(job).await?;
        if answer.status.is_final() {
            result.jobs.push(answer.cut_to(chars));
        } else {
            result.pending.push(PendingJob {
                job_id: answer.job_id,
                status: answer.status,
                note: answer.note,
            });
        }
    }
    result.done = result.pending.is_empty() || (until == Until::Any && !result.jobs.is_empty());
    Ok(result)
}

fn text(result: &WaitResult) -> String {
    let mut parts: Vec<String> = result.jobs.iter().map(results::answer_text).collect();
    for pending in &result.pending {
        let note = pending.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        parts.push(format!("{} is {}{note}", pending.job_id, pending.status.as_str()));
    }
    parts.join("\n\n---\n\n")
}
