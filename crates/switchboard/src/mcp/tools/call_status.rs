//! `call_status`: where one job stands.

use calls::Answer;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Effect, Request, define};
use crate::mcp::refusal::Refusal;
use crate::mcp::{job_ids, render};

pub(super) const NAME: &str = "call_status";
const ABOUT: &str = "Where a job stands right now, and its answer if it has ended. Answers at once. To wait for a job use call_wait \
    instead of asking again and again; to read what the agent has printed so far use call_output. The same object that the call \
    itself answers: status, output, session_id, error, usage.";
pub(super) const HOWTO: &str = "Example: {\"job_id\": \"01a1dde2\"}\n\
    completed, failed, timeout and cancelled are final; queued, running and paused are not. A failed job is not an error of \
    call_status: look at `status` and `error`.";

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Parameters {
    /// The `job_id` that a call answered, or its first characters (at least 4) if only one job begins like that.
    job_id: String,
}

pub(super) fn tool() -> Tool {
    define::<Parameters, Answer>(NAME, "Where a job stands", ABOUT, Effect::Reads)
}

pub(super) async fn call(mut request: Request<'_>) -> Result<CallToolResponse, Refusal> {
    let Parameters { job_id } = request.read()?;
    let server = request.server;
    let job = job_ids::find(&server.desk, &job_id).await?;
    let answer = server.desk.answer(job.id).await?.cut_to(server.options.defaults.max_response_chars);
    let answer = render::with_next_step(answer);
    Ok(render::result(&answer, render::answer_text(&answer)).into())
}
