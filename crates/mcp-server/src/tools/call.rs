//! The tools that call one agent: submits the call and waits for its answer.
//!
//! `call_parameters` validates the arguments, and `agent_tools` has the differences between the agents.

use std::time::Duration;

use calls::Answer;
use model::{AgentKind, JobId};
use rmcp::model::{CallToolResponse, Tool};

use super::call_parameters::{CallParameters, ParsedCall, parse_call, submit_rejection};
use super::definition::{Effect, ToolRequest, define_tool};
use crate::context::ClientContext;
use crate::hints::adapt_answer;
use crate::job_ids::JobTarget;
use crate::rejection::ToolRejection;
use crate::waiting::{self, WaitEnd};
use crate::{results, schema, tasks};

/// A tool that calls an agent.
pub(super) struct CallTool {
    pub name: &'static str,
    pub title: &'static str,
    pub agent: AgentKind,
    /// The tool's description: when and how to use it.
    pub description: &'static str,
    /// Description of the parameter `model`.
    pub models: &'static str,
    /// Is true if `cwd` is required.
    pub needs_cwd: bool,
    /// Examples and common mistakes, for `howto`.
    pub howto: &'static str,
}

impl CallTool {
    /// Returns the tool's definition.
    pub fn tool(&self) -> Tool {
        let mut tool = tool_for_calls(self.name, self.title, self.description);
        let mut input = (*tool.input_schema).clone();
        schema::describe(&mut input, "model", self.models);
        if self.needs_cwd {
            schema::describe(
                &mut input,
                "cwd",
                "Working directory of the agent: an absolute path, `~/…`, or an alias from the configuration. It must exist.",
            );
            input["required"] = serde_json::json!(["prompt", "cwd"]);
        }
        tool.input_schema = input.into();
        tool
    }

    /// Submits the call and waits for its answer.
    pub async fn call(&self, mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
        let parameters: CallParameters = request.parse_arguments()?;
        place(&request, self.agent, parameters).await
    }
}

/// Defines a tool that calls one agent.
pub(super) fn tool_for_calls(name: &'static str, title: &str, description: &'static str) -> Tool {
    define_tool::<CallParameters, Answer>(name, title, description, Effect::StartsAgent)
}

/// Submits a call and waits for its answer.
pub(super) async fn place(
    request: &ToolRequest<'_>,
    agent: AgentKind,
    parameters: CallParameters,
) -> Result<CallToolResponse, ToolRejection> {
    let client = request.client;
    let ParsedCall { order, reply } = parse_call(request, agent, parameters)?;
    let cwd = order.call.cwd.clone();
    let submitted = Box::pin(client.service.submit(order)).await;
    let placed = submitted.map_err(|error| submit_rejection(error, &cwd))?;
    let job = placed.job;
    // The job exists from here on. Even if a later step fails, the caller must get its id.
    let with_job = |rejection: ToolRejection| rejection.after_submit(format_args!("job {job}"));
    let wait = reply.remaining_wait(request, &placed);
    let answer = wait_for(client, request, job, wait).await.map_err(with_job)?;
    let answer = answer.cut_to(reply.max_response_chars);
    let has_ended = answer.status.is_final();
    let notes = reply.notes(request, &placed, has_ended);
    let answer = Answer { note: results::join_notes(answer.note.clone(), notes), ..answer };
    if reply.wants_task(request) && !has_ended {
        return tasks::create(client, &JobTarget::Job(job)).await.map_err(with_job);
    }
    Ok(results::call_result(&answer).into())
}

/// Waits for the job of a call and returns its answer so far. The timeout leaves the job running; a cancelled request cancels it.
async fn wait_for(
    client: &ClientContext,
    request: &ToolRequest<'_>,
    job: JobId,
    time: Duration,
) -> Result<Answer, ToolRejection> {
    let mut finished = None;
    let waited = if time.is_zero() {
        WaitEnd::Finished(Vec::new())
    } else {
        let wait = async {
            finished = client.service.wait_for_answer(job, time).await?;
            Ok(finished.iter().map(|_| job).collect())
        };
        waiting::wait(client, request.context, &[job], wait).await?
    };
    if waited.cancels_jobs(client)
        && let Err(error) = client.service.cancel(job).await
    {
        // The job may have finished in between.
        tracing::debug!(%job, %error, "cannot cancel the job of a cancelled request");
    }
    let answer = match finished {
        Some(answer) => answer,
        None => client.service.answer(job).await?,
    };
    let mut answer = adapt_answer(answer, client.can_apply());
    if waited == WaitEnd::NotAdmitted && !answer.status.is_final() {
        answer.note = Some(waiting::not_admitted(client));
    }
    Ok(answer)
}
