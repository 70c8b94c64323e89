//! `call_many`: gives one task to several agents.
//!
//! Its parameters are those of the tools that call one agent, without `ELSEWHERE` and with `ManyParameters`.

use std::path::Path;
use std::time::Duration;

use calls::{CallError, GroupError, GroupRequest, PrepareError, Until};
use model::{AgentChoice, GroupKind, JobGroup, MAX_CONTENDERS, MIN_CONTENDERS};
use rmcp::model::{CallToolResponse, JsonObject, Tool};
use schemars::JsonSchema;
use serde::Deserialize;

use super::agent_tools::check_agent;
use super::call_parameters::{CallParameters, ParsedCall, parse_call, submit_rejection};
use super::definition::{Effect, ToolRequest, define_tool};
use crate::context::ClientContext;
use crate::group_report::GroupAnswer;
use crate::job_ids::JobTarget;
use crate::rejection::ToolRejection;
use crate::waiting::{self, WaitEnd};
use crate::{arguments, results, schema, tasks};

pub(super) const NAME: &str = "call_many";
const DESCRIPTION: &str = "Give one task to several agents at once. They race: each solves it in a private checkout of the git repository, and \
    nothing reaches the worktree of the user until one solution is applied. With `verify`, a command of yours decides which ones \
    work; with `judge`, an agent compares the patches without knowing their authors. With `observe`, the agents answer a question \
    without changing files, and one answer is written from theirs, which starts with the points on which they disagree. They do not \
    see your conversation, so put everything they need into `prompt`. If `has_ended` is false, the jobs continue in the background: \
    pass the group_id to call_wait and do not repeat the call.";
pub(super) const HOWTO: &str = "Examples:\n\
    - {\"prompt\": \"Fix the race in src/queue.rs.\", \"agents\": [\"claude\", \"codex\"], \"verify\": \"just test\", \"judge\": \"gemini\"}\n\
    - {\"prompt\": \"Is the cache in src/cache.rs worth its complexity?\", \"agents\": [\"claude:opus\", \"codex\", \"gemini\"], \"observe\": true}\n\
    Each contender is a job with a job_id of its own: read its changes with call_changes, and take over one of them with call_apply \
    and discard_others, if these tools are offered. call_wait, call_status and call_cancel accept the group_id for all jobs of \
    the group. The result is an error if no contender completed, or, with observe, if there is no common answer. \
    A failed judge is no error: see `verdict`. Each agent uses tokens, and so do the two runs of a judge.";

/// The parameters of the tools that call one agent that this tool does not have, with the remedy.
const ELSEWHERE: [(&str, &str); 15] = [
    ("model", "name the model with its agent in `agents`, such as `claude:opus`"),
    ("resume_session_id", "omit it: each agent starts a new session"),
    ("session_id", "omit it: each agent starts a new session"),
    ("continue_latest", "omit it: each agent starts a new session"),
    ("fork_session_id", "omit it: each agent starts a new session"),
    ("effort", ONE_AGENT),
    ("output_schema", ONE_AGENT),
    ("mode", "pass `observe: true` for agents that change nothing, or omit it"),
    ("worktree", "omit it: each agent of a race works in a private checkout"),
    ("allowed_tools", ONE_AGENT),
    ("system_prompt", ONE_AGENT),
    ("agent_name", ONE_AGENT),
    ("max_turns", ONE_AGENT),
    ("tool_timeout_ms", ONE_AGENT),
    ("expose_stream", "omit it; call_output returns the events of each job"),
];
const ONE_AGENT: &str = "omit it, or call each agent with its own tool";

/// The descriptions that differ from those of the tools that call one agent.
const DESCRIPTIONS: [(&str, &str); 9] = [
    (
        "prompt",
        "Task for the agents. They do not see your conversation, so state the goal, the relevant files and the expected answer. Secrets are replaced by `[redacted]`; everything else reaches the agents unchanged.",
    ),
    (
        "cwd",
        "Working directory of the agents, in a git repository unless `observe` is set: an absolute path, `~/…`, or an alias from the configuration. It must exist. Default: the working directory of your host.",
    ),
    ("task_name", "Name of the task, shown in lists. Default: the name of the tool."),
    (
        "add_dirs",
        "Additional directories the agents may read, written like `cwd`. Only with `observe`: in a race, the agents would share them.",
    ),
    (
        "timeout_ms",
        "Time limit of each agent, in milliseconds or with a unit such as `10m`. When it expires, the agent and all its processes are stopped (status `timeout`). Values from 1 to 999 count as 1000. Default: set by the operator, else 3600000 (one hour).",
    ),
    (
        "wait_ms",
        "Maximum time that this call waits for all jobs, in milliseconds or with a unit such as `50s`. After that it returns their status with the `group_id`, and the jobs continue. 0 returns at once; the maximum is 600000. Default: set by the operator, else 50000, because many hosts time out after 60 s.",
    ),
    (
        "fire_and_forget",
        "Return as soon as the jobs are durable, with their `status_file`, `output_file` and `error_file`, without waiting for the answers.",
    ),
    (
        "max_response_chars",
        "Maximum number of characters of the answers, which share it. A longer answer keeps its start and its end, and the cut is reported. Default: set by the operator, else 100000.",
    ),
    (
        "idempotency_key",
        "Idempotency key of your choice: a second call with the same key submits no new jobs and returns the state of the first.",
    ),
];

/// The parameters that only this tool has.
#[derive(Debug, Deserialize, JsonSchema)]
struct ManyParameters {
    /// The agents, such as `claude`, `codex` or `gemini`, each with a model if wanted (`codex:MODEL`). 2 to 8; the same one may occur several times.
    #[schemars(length(min = MIN_CONTENDERS, max = MAX_CONTENDERS))]
    agents: Vec<String>,
    /// Agent that compares the results, written like one of `agents`. In a race it chooses the best patch: it sees them twice, the second time in the reversed order, and its verdict counts only if both agree. Default: no judge. With `observe`, it writes the common answer. Default then: the first of `agents`.
    judge: Option<String>,
    /// `true`: the agents only read and answer, and one answer is written from theirs. `false` (default): they race, and change files in private checkouts.
    #[serde(default)]
    observe: bool,
}

pub(super) fn tool() -> Tool {
    let mut tool = define_tool::<CallParameters, GroupAnswer>(
        NAME,
        "Call several agents",
        DESCRIPTION,
        Effect::StartsAgent,
    );
    let mut input = (*tool.input_schema).clone();
    schema::remove_parameters(&mut input, &ELSEWHERE.map(|(name, _)| name));
    schema::add_parameters::<ManyParameters>(&mut input);
    for (parameter, description) in DESCRIPTIONS {
        schema::describe(&mut input, parameter, description);
    }
    tool.input_schema = input.into();
    tool
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let client = request.client;
    check_elsewhere(request.arguments.as_ref())?;
    // Each structure ignores the parameters of the other.
    let ManyParameters { agents, judge, observe } =
        arguments::parse(request.tool, request.arguments.clone())?;
    let parameters: CallParameters = request.parse_arguments()?;
    let agents = agents.iter().enumerate();
    let contenders = agents
        .map(|(position, agent)| parse_agent(client, &format!("agents[{position}]"), agent))
        .collect::<Result<Vec<_>, _>>()?;
    let judge = judge.map(|judge| parse_agent(client, "judge", &judge)).transpose()?;
    let Some(first) = contenders.first() else {
        return Err(CallError::from(GroupError::Size { given: 0 }).into());
    };
    let (kind, parameters) =
        if observe { (GroupKind::Answers, parameters.read_only()) } else { (GroupKind::Race, parameters) };
    let ParsedCall { order, reply } = parse_call(&request, first.agent, parameters)?;
    let cwd = order.call.cwd.clone();
    let submitted = client.service.submit_group(GroupRequest { base: order, kind, contenders, judge }).await;
    let submitted = submitted.map_err(|error| group_rejection(error, &cwd))?;
    // The jobs exist from here on. Even if a later step fails, the caller must get the id of the group.
    let with_group = |rejection: ToolRejection| rejection.after_submit(submitted.id);
    let group = client.service.group_of(submitted.id.first_job()).await;
    let group = group.map_err(|error| with_group(error.into()))?;
    let Some(placed) = submitted.contenders.first() else {
        return Err(with_group(CallError::from(GroupError::Size { given: 0 }).into()));
    };
    let time = reply.remaining_wait(&request, placed);
    let waited = wait_for(client, &request, &group, time).await.map_err(with_group)?;
    let answer = GroupAnswer::read_cut(client, &group, reply.max_response_chars).await;
    let mut answer = answer.map_err(|error| with_group(error.into()))?;
    let has_ended = answer.report.has_ended;
    if reply.wants_task(&request) && !has_ended {
        return tasks::create(client, &JobTarget::Group(group)).await.map_err(with_group);
    }
    if waited == WaitEnd::NotAdmitted && !has_ended {
        answer.note = Some(waiting::not_admitted(client));
    }
    answer.note = results::join_notes(answer.note, reply.notes(&request, placed, has_ended));
    Ok(answer.call_result().into())
}

/// Waits for the jobs of a group. The timeout leaves them running; a cancelled request cancels them.
async fn wait_for(
    client: &ClientContext,
    request: &ToolRequest<'_>,
    group: &JobGroup,
    time: Duration,
) -> Result<WaitEnd, ToolRejection> {
    if time.is_zero() {
        return Ok(WaitEnd::Finished(Vec::new()));
    }
    let jobs = client.service.jobs_of_group(group).await?;
    let finished = client.service.wait(&jobs, Until::All, time);
    let waited = waiting::wait(client, request.context, &jobs, finished).await?;
    if waited.cancels_jobs(client)
        && let Err(error) = client.service.cancel_group(group).await
    {
        tracing::warn!(%error, "cannot cancel the jobs of a cancelled request");
    }
    Ok(waited)
}

/// Rejects the parameters of other tools with their remedy here.
fn check_elsewhere(given: Option<&JsonObject>) -> Result<(), ToolRejection> {
    let found = ELSEWHERE.iter().find(|(name, _)| given.is_some_and(|given| given.contains_key(*name)));
    match found {
        Some((name, remedy)) => {
            Err(ToolRejection::for_field(*name, format!("{NAME} has no such parameter"), *remedy))
        }
        None => Ok(()),
    }
}

fn parse_agent(client: &ClientContext, field: &str, given: &str) -> Result<AgentChoice, ToolRejection> {
    let choice: AgentChoice = given
        .parse()
        .map_err(|error: model::BadName| ToolRejection::for_field(field, error.to_string(), error.hint()))?;
    check_agent(client, field, choice.agent)?;
    Ok(choice)
}

/// Returns the rejection of a group that could not be submitted, in terms of this tool's parameters.
fn group_rejection(error: CallError, cwd: &Path) -> ToolRejection {
    match error {
        CallError::Checkout(PrepareError::ReadOnly) => ToolRejection::for_field(
            "policy",
            "the agents of a race change files, and the policy forbids that",
            "use policy `workspace`, or pass `observe: true`",
        ),
        CallError::Checkout(error @ PrepareError::NoRepository { .. }) => ToolRejection::for_field(
            "cwd",
            error.to_string(),
            "run `git init` there, or pass `observe: true` if the agents need not change files",
        ),
        error => {
            let rejection = submit_rejection(error, cwd);
            // The agents and their models are in one parameter.
            rejection
                .rename_field("worktree", "cwd")
                .rename_field("model", "agents")
                .rename_field("mode", "observe")
        }
    }
}
