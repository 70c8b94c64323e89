//! `call_jobs`: lists jobs.

use std::collections::BTreeSet;

use calls::{CallError, JobFilter, JobService, JobStatus, JobSummary, PageRequest};
use model::{JobId, StateName, Timestamp};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::arguments::parse_choice;
use crate::rejection::ToolRejection;
use crate::results::{self, format_timestamp};

pub(super) const NAME: &str = "call_jobs";
const DESCRIPTION: &str = "List jobs, newest first: id, status, tool, task, working directory, session and the start of the prompt. Use it to \
    find a job whose id you no longer have, or to see which jobs are still running. Get the answer of a job with call_status.";
pub(super) const HOWTO: &str = "Examples:\n- {\"status_filter\": \"running\"}\n- {\"tool_name\": \"call_codex\", \"limit\": 5}\n- {\"open_changes\": true}\n\
    `total` counts all matching jobs, also those beyond the limit. The list covers the jobs of all clients of this user.";

const DEFAULT_LIMIT: u64 = 20;
const MAX_LIMIT: u64 = 100;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct JobsParameters {
    /// Maximum number of jobs, 1 to 100. Default: 20.
    #[schemars(range(min = 1, max = 100))]
    limit: Option<u64>,
    /// Only jobs with this status.
    #[schemars(extend("enum" = ["queued", "running", "paused", "completed", "failed", "timeout", "cancelled"]))]
    status_filter: Option<String>,
    /// Only jobs that were submitted with this tool, such as `call_cc`.
    tool_name: Option<String>,
    /// Only ended jobs whose changes in a private checkout are neither applied nor discarded.
    #[serde(default)]
    open_changes: bool,
}

/// The matching jobs.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct JobList {
    /// The jobs, newest first.
    jobs: Vec<JobEntry>,
    /// Number of matching jobs.
    total: u64,
}

/// A job in a list.
#[derive(Debug, Serialize, JsonSchema)]
struct JobEntry {
    /// Job id.
    job_id: String,
    /// Status.
    status: JobStatus,
    /// Tool with which it was submitted.
    tool_name: String,
    /// Name of the task.
    task_name: String,
    /// Agent.
    agent: String,
    /// Model that was requested, or that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Working directory.
    cwd: String,
    /// Session; pass it as `resume_session_id` to continue it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// Time of submission (ISO 8601).
    created_at: String,
    /// Start time.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    /// End time.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<String>,
    /// Failure kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Cost, if the agent reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    /// Start of the prompt.
    prompt: String,
}

impl From<JobSummary> for JobEntry {
    fn from(job: JobSummary) -> Self {
        Self {
            job_id: job.id.to_string(),
            status: job.state.into(),
            tool_name: job.tool,
            task_name: job.task,
            agent: job.agent.to_string(),
            model: job.model,
            cwd: job.cwd,
            session_id: job.session.map(String::from),
            created_at: format_timestamp(job.created_at),
            started_at: job.started_at.map(format_timestamp),
            completed_at: job.completed_at.map(format_timestamp),
            error: job.failure.map(|failure| failure.kind.name().to_owned()),
            cost_usd: job.cost_usd,
            prompt: job.prompt_head,
        }
    }
}

pub(super) fn tool() -> Tool {
    define_tool::<JobsParameters, JobList>(NAME, "List jobs", DESCRIPTION, Effect::ReadOnly)
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let JobsParameters { limit, status_filter, tool_name, open_changes } = request.parse_arguments()?;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ToolRejection::for_field(
            "limit",
            format!("{limit} is not between 1 and {MAX_LIMIT}"),
            "give 1 to 100, or omit it for 20",
        ));
    }
    let states = status_filter.as_deref().map(states).transpose()?.unwrap_or_default();
    let filter =
        JobFilter { states, tool: tool_name.map(|name| name.trim().to_owned()), ..JobFilter::default() };
    let service = &request.client.service;
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let (jobs, total) = if open_changes {
        let mut jobs = list_open(service, &filter).await?;
        let total = jobs.len() as u64;
        jobs.truncate(limit as usize);
        (jobs, total)
    } else {
        let jobs = service.list(&filter, PageRequest { limit, before: None }).await?.jobs;
        (jobs, service.count(&filter).await?)
    };
    let jobs = JobList { jobs: jobs.into_iter().map(JobEntry::from).collect(), total };
    let text = text(&jobs, service.now());
    Ok(results::tool_result(&jobs, text).into())
}

/// Lists the ended jobs with open changes, newest first. The store does not know the state of changes.
async fn list_open(service: &JobService, filter: &JobFilter) -> Result<Vec<JobSummary>, CallError> {
    let open = service.open_changes().await?.into_iter().filter(|changes| changes.has_ended);
    let open: BTreeSet<JobId> = open.map(|changes| changes.job).collect();
    let mut jobs = Vec::new();
    for job in open.into_iter().rev() {
        // The newest matching job up to this one: this job, unless it does not match.
        let next = JobId::from_uuid(uuid::Uuid::from_u128(job.as_uuid().as_u128().saturating_add(1)));
        let page = service.list(filter, PageRequest { limit: 1, before: Some(next) }).await?;
        jobs.extend(page.jobs.into_iter().filter(|found| found.id == job));
    }
    Ok(jobs)
}

/// Returns the states of a status. An interrupted job is being recovered and counts as running.
fn states(given: &str) -> Result<Vec<StateName>, ToolRejection> {
    let choices: &[(&str, &[StateName])] = &[
        ("queued", &[StateName::Queued]),
        ("running", &[StateName::Running, StateName::Interrupted]),
        ("paused", &[StateName::Paused]),
        ("completed", &[StateName::Completed]),
        ("failed", &[StateName::Failed]),
        ("timeout", &[StateName::Timeout]),
        ("cancelled", &[StateName::Cancelled]),
    ];
    parse_choice("status_filter", given, choices).map(<[StateName]>::to_vec)
}

fn text(jobs: &JobList, now: Timestamp) -> String {
    let line = |job: &JobEntry| {
        format!("{} {} {} in {}: {}", job.job_id, job.status.as_str(), job.tool_name, job.cwd, job.prompt)
    };
    let mut lines: Vec<String> = jobs.jobs.iter().map(line).collect();
    lines.push(format!("{} of {} jobs at {}", jobs.jobs.len(), jobs.total, format_timestamp(now)));
    lines.join("\n")
}
