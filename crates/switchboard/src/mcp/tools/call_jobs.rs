//! `call_jobs`: the jobs there are.

use calls::{JobFilter, JobStatus, JobSummary, PageRequest};
use model::{StateName, Timestamp};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Effect, Request, define};
use crate::mcp::arguments::one_of;
use crate::mcp::refusal::Refusal;
use crate::mcp::render::{self, moment};

pub(super) const NAME: &str = "call_jobs";
const ABOUT: &str = "The jobs there are, the newest first: id, status, tool, task, folder, session, how the prompt begins. Use it to \
    find a job whose id you no longer have, or to see what is still running. The answers themselves are in call_status.";
pub(super) const HOWTO: &str = "Examples:\n- {\"status_filter\": \"running\"}\n- {\"tool_name\": \"call_codex\", \"limit\": 5}\n\
    `total` counts all jobs that fit, also those beyond the limit. Jobs of all clients of this machine's user are listed.";

const DEFAULT_LIMIT: u64 = 20;
const MAX_LIMIT: u64 = 100;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Parameters {
    /// How many at most, 1 to 100. Default: 20.
    #[schemars(range(min = 1, max = 100))]
    limit: Option<u64>,
    /// Only jobs with this status.
    #[schemars(extend("enum" = ["queued", "running", "paused", "completed", "failed", "timeout", "cancelled"]))]
    status_filter: Option<String>,
    /// Only jobs that were placed through this tool, such as `call_cc`.
    tool_name: Option<String>,
}

/// The jobs that fit.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Jobs {
    /// The newest first.
    jobs: Vec<Line>,
    /// How many fit in all.
    total: u64,
}

/// A job in a list.
#[derive(Debug, Serialize, JsonSchema)]
struct Line {
    /// Its id.
    job_id: String,
    /// Where it stands.
    status: JobStatus,
    /// Through which tool it was placed.
    tool_name: String,
    /// The caller's name for the task.
    task_name: String,
    /// Which agent.
    agent: String,
    /// The model that was asked for, or that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// The folder.
    cwd: String,
    /// The conversation; give it as `resume_session_id` to go on with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// When it was placed (ISO 8601).
    created_at: String,
    /// When it was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<String>,
    /// The kind of failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What it cost, where the agent tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    /// How its prompt begins.
    prompt: String,
}

impl From<JobSummary> for Line {
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
            created_at: moment(job.created_at),
            started_at: job.started_at.map(moment),
            completed_at: job.completed_at.map(moment),
            error: job.failure.map(|failure| failure.kind.name().to_owned()),
            cost_usd: job.cost_usd,
            prompt: job.prompt_head,
        }
    }
}

pub(super) fn tool() -> Tool {
    define::<Parameters, Jobs>(NAME, "List jobs", ABOUT, Effect::Reads)
}

pub(super) async fn call(mut request: Request<'_>) -> Result<CallToolResponse, Refusal> {
    let Parameters { limit, status_filter, tool_name } = request.read()?;
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Refusal::of(
            "limit",
            format!("{limit} is not between 1 and {MAX_LIMIT}"),
            "give 1 to 100, or leave it out for 20",
        ));
    }
    let states = status_filter.as_deref().map(states).transpose()?.unwrap_or_default();
    let filter =
        JobFilter { states, tool: tool_name.map(|name| name.trim().to_owned()), ..JobFilter::default() };
    let desk = &request.server.desk;
    let page = PageRequest { limit: u32::try_from(limit).unwrap_or(u32::MAX), before: None };
    let jobs = desk.list(&filter, page).await?.jobs.into_iter().map(Line::from).collect();
    let jobs = Jobs { jobs, total: desk.count(&filter).await? };
    let text = text(&jobs, desk.now());
    Ok(render::result(&jobs, text).into())
}

/// The states that a caller means by a status. One that was interrupted is in somebody's hands and counts as running.
fn states(given: &str) -> Result<Vec<StateName>, Refusal> {
    let words: &[(&str, &[StateName])] = &[
        ("queued", &[StateName::Queued]),
        ("running", &[StateName::Running, StateName::Interrupted]),
        ("paused", &[StateName::Paused]),
        ("completed", &[StateName::Completed]),
        ("failed", &[StateName::Failed]),
        ("timeout", &[StateName::Timeout]),
        ("cancelled", &[StateName::Cancelled]),
    ];
    one_of("status_filter", given, words).map(<[StateName]>::to_vec)
}

fn text(jobs: &Jobs, now: Timestamp) -> String {
    let line = |job: &Line| {
        format!("{} {} {} in {}: {}", job.job_id, job.status.as_str(), job.tool_name, job.cwd, job.prompt)
    };
    let mut lines: Vec<String> = jobs.jobs.iter().map(line).collect();
    lines.push(format!("{} of {} jobs at {}", jobs.jobs.len(), jobs.total, moment(now)));
    lines.join("\n")
}
