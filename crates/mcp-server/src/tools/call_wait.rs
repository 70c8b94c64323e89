//! `call_wait`: waits for submitted jobs and groups.

use std::collections::BTreeSet;
use std::time::Duration;

use calls::{Answer, CallError, JobStatus, Until};
use model::JobId;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::arguments::parse_choice;
use crate::group_report::GroupAnswer;
use crate::job_ids::{self, JobTarget};
use crate::millis::Millis;
use crate::rejection::ToolRejection;
use crate::{results, waiting};

pub(super) const NAME: &str = "call_wait";
const DESCRIPTION: &str = "Wait for jobs and groups to finish and get their answers. Use it after a call returned `running` or was submitted with \
    fire_and_forget, instead of polling call_status. It returns after timeout_ms at the latest (50000 at most, because many hosts \
    time out after 60 s). If `pending` is not empty then, call it again with those ids. Neither the timeout nor a cancelled wait \
    stops a job.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_ids\": [\"01a1dde2\"]}\n- {\"job_ids\": [\"01a1dde2\", \"01a1dde3\"], \"mode\": \"any\"}\n\
    - {\"job_ids\": [\"group-01a1dde2-642d-7027-95b7-67d9f29d1836\"]}\n\
    With `any` it returns as soon as one job has finished; with `all`, the default, when all have. A group stands for its jobs: \
    `any` returns when its first job has finished. To wait for the next one, pass the job_ids of the others.";

const MAX_TIMEOUT_MS: u64 = 50_000;
const MAX_JOBS: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct WaitParameters {
    /// The `job_id`s of 1 to 100 calls, or unique prefixes of them. A `group_id` stands for the jobs of its group.
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
    /// The finished groups; with `any`, also those in which a job has finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<GroupAnswer>,
    /// Unfinished jobs and groups.
    pending: Vec<PendingJob>,
}

/// An unfinished job or group.
#[derive(Debug, Serialize, JsonSchema)]
struct PendingJob {
    /// Job id or group id.
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
    let targets = find_targets(&request, &job_ids).await?;
    let jobs = find_jobs(&request, &targets).await?;
    let time = Duration::from_millis(timeout)
        .saturating_sub(waiting::elapsed_since_request(request.client, request.context));
    // However the wait ends, the result is the current status of the jobs, and no job is cancelled.
    let finished = request.client.service.wait(&jobs, until, time);
    let end = waiting::wait(request.client, request.context, &jobs, finished).await?;
    let mut result = collect_answers(&request, &targets, until).await?;
    if end == waiting::WaitEnd::NotAdmitted {
        for pending in &mut result.pending {
            pending.note = Some(waiting::not_admitted(request.client));
        }
    }
    let text = text(&result);
    Ok(results::tool_result(&result, text).into())
}

/// Finds the jobs and groups with these ids, each once.
async fn find_targets(request: &ToolRequest<'_>, given: &[String]) -> Result<Vec<JobTarget>, ToolRejection> {
    if !(1..=MAX_JOBS).contains(&given.len()) {
        return Err(ToolRejection::for_field(
            "job_ids",
            format!("{} ids; expected 1 to {MAX_JOBS}", given.len()),
            "give a list of job_ids",
        ));
    }
    let mut targets: Vec<JobTarget> = Vec::new();
    for (position, id) in given.iter().enumerate() {
        let target = job_ids::find_target(&request.client.service, id).await;
        let target = target.map_err(|rejection| rejection.with_field(&format!("job_ids[{position}]")))?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    Ok(targets)
}

/// Returns the jobs to wait for, each once.
async fn find_jobs(request: &ToolRequest<'_>, targets: &[JobTarget]) -> Result<Vec<JobId>, CallError> {
    let mut jobs: Vec<JobId> = Vec::new();
    for target in targets {
        let more = match target {
            JobTarget::Job(job) => vec![*job],
            JobTarget::Group(group) => request.client.service.jobs_of_group(group).await?,
        };
        jobs.extend(more);
    }
    let mut seen = BTreeSet::new();
    jobs.retain(|job| seen.insert(*job));
    Ok(jobs)
}

async fn collect_answers(
    request: &ToolRequest<'_>,
    targets: &[JobTarget],
    until: Until,
) -> Result<WaitResult, ToolRejection> {
    let client = request.client;
    let count = |target: &JobTarget| match target {
        JobTarget::Job(_) => 1,
        JobTarget::Group(group) => group.jobs().count(),
    };
    let max_chars = client.options.defaults.max_response_chars;
    let chars = results::share_chars(max_chars, targets.iter().map(count).sum());
    let mut result = WaitResult { done: false, jobs: Vec::new(), groups: Vec::new(), pending: Vec::new() };
    for target in targets {
        match target {
            JobTarget::Job(job) => result.add_job(client.answer(*job).await?.cut_to(chars)),
            JobTarget::Group(group) => {
                let answer = GroupAnswer::read_cut(client, group, chars * count(target)).await?;
                result.add_group(answer, until);
            }
        }
    }
    let has_ended = !result.jobs.is_empty() || !result.groups.is_empty();
    result.done = result.pending.is_empty() || (until == Until::Any && has_ended);
    Ok(result)
}

impl WaitResult {
    fn add_job(&mut self, answer: Answer) {
        if answer.status.is_final() {
            self.jobs.push(answer);
            return;
        }
        let Answer { job_id, status, note, .. } = answer;
        self.pending.push(PendingJob { job_id, status, note });
    }

    fn add_group(&mut self, mut answer: GroupAnswer, until: Until) {
        if answer.report.has_ended {
            self.groups.push(answer);
        } else if until == Until::Any && answer.ended_jobs() > 0 {
            // Another wait for any job of the group would return at once.
            let unfinished = answer.unfinished().map(|answer| PendingJob {
                job_id: answer.job_id.clone(),
                status: answer.status,
                note: answer.waiting.clone(),
            });
            self.pending.extend(unfinished);
            answer.note =
                Some("to wait for the next job of the group, pass the job_ids in `pending`".to_owned());
            self.groups.push(answer);
        } else {
            self.pending.push(PendingJob {
                job_id: answer.report.group_id.clone(),
                status: answer.report.status(),
                note: Some(answer.describe_progress()),
            });
        }
    }
}

fn text(result: &WaitResult) -> String {
    let mut parts: Vec<String> = result.jobs.iter().map(results::answer_text).collect();
    parts.extend(result.groups.iter().map(GroupAnswer::text));
    for pending in &result.pending {
        let note = pending.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        parts.push(format!("{} is {}{note}", pending.job_id, pending.status.as_str()));
    }
    parts.join("\n\n---\n\n")
}
