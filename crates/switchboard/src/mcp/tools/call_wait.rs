//! `call_wait`: waiting for jobs that were placed before.

use std::time::Duration;

use calls::{Answer, JobStatus, Until};
use model::JobId;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Effect, Request, define};
use crate::mcp::arguments::one_of;
use crate::mcp::millis::Millis;
use crate::mcp::refusal::Refusal;
use crate::mcp::{job_ids, render, waiting};

pub(super) const NAME: &str = "call_wait";
const ABOUT: &str = "Wait until jobs have ended, and get their answers. Use it after a call answered `running` or was placed with \
    fire_and_forget, instead of asking call_status again and again. It answers after timeout_ms at the latest (50000 at most, \
    because many hosts give up after 60 s): if `pending` is not empty then, call it again with those ids. Waiting ends no job, and \
    neither does giving up.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_ids\": [\"01a1dde2\"]}\n- {\"job_ids\": [\"01a1dde2\", \"01a1dde3\"], \"mode\": \"any\"}\n\
    With `any` it answers as soon as one has ended; with `all`, the default, when none is left.";

const MAX_TIMEOUT_MS: u64 = 50_000;
const MAX_JOBS: usize = 100;
/// What each answer gets of the characters at least, when many share them.
const MIN_CHARS: usize = 1_000;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Parameters {
    /// The `job_ids` that calls answered, 1 to 100, or their first characters.
    #[schemars(length(min = 1, max = 100))]
    job_ids: Vec<String>,
    /// `all` (default): until none is left. `any`: until one has ended.
    #[schemars(extend("enum" = ["any", "all"]))]
    mode: Option<String>,
    /// How long to wait, in milliseconds or as a text with a unit such as `50s`. 0 only looks, and more than 50000 counts as 50000. Default: 50000.
    timeout_ms: Option<Millis>,
}

/// What has become of the jobs.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Waited {
    /// Whether what was waited for has come.
    done: bool,
    /// The answers of those that have ended.
    jobs: Vec<Answer>,
    /// Those that have not.
    pending: Vec<Pending>,
}

/// A job that has not ended.
#[derive(Debug, Serialize, JsonSchema)]
struct Pending {
    /// Its id.
    job_id: String,
    /// Where it stands.
    status: JobStatus,
    /// What goes on in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

pub(super) fn tool() -> Tool {
    define::<Parameters, Waited>(NAME, "Wait for jobs", ABOUT, Effect::Reads)
}

pub(super) async fn call(mut request: Request<'_>) -> Result<CallToolResponse, Refusal> {
    let Parameters { job_ids, mode, timeout_ms } = request.read()?;
    let until = match mode {
        Some(mode) => one_of("mode", &mode, &[("any", Until::Any), ("all", Until::All)])?,
        None => Until::All,
    };
    // A wait that is over ends no job, so a longer one is cut short instead of refused.
    let timeout = timeout_ms.map_or(MAX_TIMEOUT_MS, |Millis(millis)| millis).min(MAX_TIMEOUT_MS);
    let jobs = found(&request, &job_ids).await?;
    let time =
        Duration::from_millis(timeout).saturating_sub(waiting::waited(request.server, request.context));
    // However the wait ended, where the jobs stand is the answer; and nobody's giving up ends a job.
    let ended = request.server.desk.wait(&jobs, until, time);
    let how = waiting::wait(request.server, request.context, &jobs, ended).await?;
    let mut waited = standing(&request, &jobs, until).await?;
    if how == waiting::Waited::NotAdmitted {
        for pending in &mut waited.pending {
            pending.note = Some(waiting::not_admitted(request.server));
        }
    }
    let text = text(&waited);
    Ok(render::result(&waited, text).into())
}

async fn found(request: &Request<'_>, given: &[String]) -> Result<Vec<JobId>, Refusal> {
    if !(1..=MAX_JOBS).contains(&given.len()) {
        return Err(Refusal::of(
            "job_ids",
            format!("{} ids are not between 1 and {MAX_JOBS}", given.len()),
            "give the job_ids that calls answered, as a list",
        ));
    }
    let mut jobs = Vec::new();
    for (position, id) in given.iter().enumerate() {
        let job = job_ids::find(&request.server.desk, id).await;
        let job = job.map_err(|refusal| refusal.about(&format!("job_ids[{position}]")))?.id;
        if !jobs.contains(&job) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

async fn standing(request: &Request<'_>, jobs: &[JobId], until: Until) -> Result<Waited, Refusal> {
    let server = request.server;
    let chars = (server.options.defaults.max_response_chars / jobs.len().max(1)).max(MIN_CHARS);
    let mut waited = Waited { done: false, jobs: Vec::new(), pending: Vec::new() };
    for &job in jobs {
        let answer = server.desk.answer(job).await?;
        if answer.status.is_final() {
            waited.jobs.push(answer.cut_to(chars));
        } else {
            let answer = render::with_next_step(answer);
            waited.pending.push(Pending { job_id: answer.job_id, status: answer.status, note: answer.note });
        }
    }
    waited.done = waited.pending.is_empty() || (until == Until::Any && !waited.jobs.is_empty());
    Ok(waited)
}

fn text(waited: &Waited) -> String {
    let mut parts: Vec<String> = waited.jobs.iter().map(render::answer_text).collect();
    for pending in &waited.pending {
        let note = pending.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        parts.push(format!("{} is {}{note}", pending.job_id, pending.status.as_str()));
    }
    parts.join("\n\n---\n\n")
}
