//! The parameters of the tools that call agents, and their validation.
//!
//! The only place where a caller's strings become a `CallSpec`. Submits nothing (see `call` and `call_many`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use calls::{CallError, CallRequest, SubmittedJob};
use model::{
    AgentKind, AgentName, CallPolicy, CallSpec, Limits, McpServer, Mode, Preset, SessionChoice, SessionId,
    ToolChoice, VerifySpec,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::definition::ToolRequest;
use crate::arguments::parse_choice;
use crate::context::ClientContext;
use crate::millis::Millis;
use crate::rejection::ToolRejection;
use crate::{tasks, waiting};

/// Maximum wait of a call. No host waits longer.
const MAX_WAIT: Duration = Duration::from_mins(10);
/// Minimum timeout of an agent. No agent starts faster.
const MIN_TIMEOUT_MS: u64 = 1_000;
const MAX_RESPONSE_CHARS: u64 = 1_000_000;
const MAX_NAME_CHARS: usize = 200;

/// The parameters of a call.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CallParameters {
    /// Task for the agent. The agent does not see your conversation, so state the goal, the relevant files and the expected answer. Secrets are replaced by `[redacted]`; everything else reaches the agent unchanged.
    prompt: String,
    /// Working directory of the agent: an absolute path, `~/…`, or an alias from the configuration. It must exist. Default: the working directory of your host.
    cwd: Option<String>,
    /// Model to use.
    model: Option<String>,
    /// Effort of the model, as the agent names it, such as `low`, `medium` or `high`. Default: the agent's.
    effort: Option<String>,
    /// JSON Schema of the answer. The answer is then JSON, in `structured_output`; another answer fails with `schema_mismatch`.
    output_schema: Option<Map<String, Value>>,
    /// Files of images that belong to the prompt (PNG, JPEG, GIF, WebP), written like `cwd`.
    images: Option<Vec<String>>,
    /// MCP servers that the agent starts for this call. `${NAME}` in a value of `env` stands for a variable that the operator allows (`pass_env`), which is stored only while the call runs.
    mcp_servers: Option<Vec<ServerParameter>>,
    /// Session to copy: continues a copy of an earlier session, which itself stays as it is. Cannot be combined with `resume_session_id` and `continue_latest`.
    fork_session_id: Option<String>,
    /// Session to resume: the `session_id` of an earlier answer. Cannot be combined with `continue_latest`.
    resume_session_id: Option<String>,
    /// Alias of `resume_session_id`.
    session_id: Option<String>,
    /// Resume the most recent session of this agent with the same `task_name` and `cwd`. Cannot be combined with `resume_session_id`.
    #[serde(default)]
    continue_latest: bool,
    /// Name of the task, shown in lists and used by `continue_latest` to find the session. Default: the name of the tool.
    task_name: Option<String>,
    /// `execute` (default): the agent may change files and run commands without asking. `observe`: the agent is read-only, which is enforced; claude and gemini then have no shell (unlike with policy `observe`).
    #[schemars(extend("enum" = ["execute", "observe"]))]
    mode: Option<String>,
    /// Sandbox policy, enforced by the operating system. `workspace`: the agent can write only to its directories and cannot read keys and logins of other programs. `observe`: it cannot write. `restricted`: it has no shell, only file tools on its directories. `sealed`: `observe` and `restricted` combined. `off`: it has all permissions of the user. Default: set by the operator, else `workspace`; the operator may also have set a ceiling that no call can exceed.
    #[schemars(extend("enum" = ["off", "workspace", "observe", "restricted", "sealed"]))]
    policy: Option<String>,
    /// Network access of a sandboxed agent: `full`, `none`, or a comma-separated list of hosts (`github.com,*.crates.io`). The agent's vendor is always allowed. Default: set by the operator, else `full`.
    network: Option<String>,
    /// Tools that the agent may use, such as `Read` or `Bash(git *)`; all others are denied. An empty list denies all tools. Default: all tools.
    allowed_tools: Option<Vec<String>>,
    /// Replaces the agent's system prompt.
    system_prompt: Option<String>,
    /// Additional directories the agent may work in, written like `cwd`.
    add_dirs: Option<Vec<String>>,
    /// `true`: the agent works in a private checkout of its git repository, with your uncommitted files, so that calls at the same time do not disturb each other. Its changes wait there and on a branch until they are applied or discarded. `false`: it works in the directory itself. Default: set by the operator for the repository, else `false`.
    worktree: Option<bool>,
    /// Shell command that verifies the work, such as `just test`. It runs after the agent has reported success, in the same sandbox and directory. The call is `completed` only if it exits with 0, else it fails with `verification_failed`; see `verified` in the result.
    verify: Option<String>,
    /// How many times a failed verification is sent back to the agent in its session, with the end of the output. Default: 0.
    #[schemars(range(max = 10))]
    repair: Option<u32>,
    /// Globs of files, such as `tests/**`, that are restored to their state before the call before each verification, so that the agent cannot change what is checked. Relative to the top of the git worktree.
    verify_protect: Option<Vec<String>>,
    /// Fail with `no_changes` if the agent reports success without changing a file in the git worktree.
    expect_changes: Option<bool>,
    /// Named agent of the vendor, with its own prompt and tools (Claude Code's custom agents).
    agent_name: Option<String>,
    /// Maximum number of turns. When it is reached, the call fails with `max_turns`. Without it, a call that runs into the agent's own limit is resumed automatically.
    #[schemars(range(min = 1))]
    max_turns: Option<u32>,
    /// Time limit of the agent, in milliseconds or with a unit such as `10m`. When it expires, the agent and all its processes are stopped (status `timeout`). Values from 1 to 999 count as 1000. Default: set by the operator, else 3600000 (one hour).
    #[schemars(range(min = 1))]
    timeout_ms: Option<Millis>,
    /// Time limit of a single tool of the agent (an MCP tool or a shell command), in milliseconds or with a unit such as `90s`. Only claude supports it; codex and gemini reject it. Default: for MCP tools set by the operator, else 300000, where the agent has such a limit; for shell commands the agent's own limit.
    #[schemars(range(min = 1))]
    tool_timeout_ms: Option<Millis>,
    /// Maximum time that this call waits for the answer, in milliseconds or with a unit such as `50s`. After that it returns `running` with the `job_id`, and the job continues. 0 returns at once; the maximum is 600000. Default: set by the operator, else 50000, because many hosts time out after 60 s.
    wait_ms: Option<Millis>,
    /// Return as soon as the job is durable, with its `status_file`, `output_file` and `error_file`, without waiting for the answer.
    #[serde(default)]
    fire_and_forget: bool,
    /// Also return the agent's events as `stream_events`, up to `max_response_chars` characters. Long; meant for debugging.
    #[serde(default)]
    expose_stream: bool,
    /// Maximum number of characters of the agent's answer. A longer answer keeps its start and its end, and the cut is reported. Default: set by the operator, else 100000.
    #[schemars(range(max = 1_000_000))]
    max_response_chars: Option<u64>,
    /// Idempotency key of your choice: a second call with the same key submits no new job and returns the answer of the first.
    idempotency_key: Option<String>,
}

/// An MCP server over stdio.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ServerParameter {
    /// Name: letters, digits, `_` and `-`.
    name: String,
    /// Executable.
    command: String,
    /// Arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Environment variables.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

impl From<ServerParameter> for McpServer {
    fn from(given: ServerParameter) -> Self {
        let ServerParameter { name, command, args, env } = given;
        Self { name, command, args, env }
    }
}

impl CallParameters {
    /// Returns the parameters for an agent that only reads.
    pub fn read_only(self) -> Self {
        Self { mode: Some("observe".to_owned()), ..self }
    }
}

/// A validated call, and how to return its answer.
pub(super) struct ParsedCall {
    pub order: CallRequest,
    pub reply: ReplyOptions,
}

/// How long a caller waits for an answer, and how much of it the caller gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplyOptions {
    wait: Option<Duration>,
    pub max_response_chars: usize,
    pub fire_and_forget: bool,
    /// Is true if the caller has passed an idempotency key.
    has_own_key: bool,
}

impl ReplyOptions {
    /// Returns whether the caller gets a task if the call has not ended.
    pub fn wants_task(self, request: &ToolRequest<'_>) -> bool {
        !self.fire_and_forget && tasks::are_supported(request.context)
    }

    /// Returns the time that is left to wait for a submitted job.
    pub fn remaining_wait(self, request: &ToolRequest<'_>, placed: &SubmittedJob) -> Duration {
        let client = request.client;
        let wait = match self.wait {
            _ if self.fire_and_forget => Duration::ZERO,
            None if self.wants_task(request) => Duration::ZERO,
            wait => wait.unwrap_or(client.options.defaults.wait),
        };
        // A bridge replays the request after a daemon crash, but the host has been waiting since the first time. A key without a timestamp
        // is the key of the job, whose creation time is used then.
        let is_replayed = !placed.is_new && !self.has_own_key;
        let since_placed = client.service.now().since(placed.created_at);
        let waited = waiting::elapsed_since_request(client, request.context);
        wait.saturating_sub(if is_replayed { waited.max(since_placed) } else { waited })
    }

    /// Returns the facts about the submission of a job for the note of its answer.
    pub fn notes(self, request: &ToolRequest<'_>, placed: &SubmittedJob, has_ended: bool) -> Vec<String> {
        let mut notes = Vec::new();
        // A job that this very request submitted before a daemon crash is not another call's.
        let by_another = !placed.is_new
            && self.has_own_key
            && waiting::requested_at(request.context).is_none_or(|requested| placed.created_at < requested);
        if by_another {
            notes.push("this was submitted by an earlier call with the same idempotency_key".to_owned());
        }
        // The note of a finished job mentions it already.
        if placed.redactions > 0 && !has_ended {
            notes.push(render::text::redactions_note(placed.redactions));
        }
        if self.fire_and_forget {
            notes.push(
                "status_file is updated when the job changes; output_file can be followed with `tail -F`"
                    .to_owned(),
            );
        }
        notes
    }
}

/// Validates the parameters of a call to an agent.
pub(super) fn parse_call(
    request: &ToolRequest<'_>,
    agent: AgentKind,
    given: CallParameters,
) -> Result<ParsedCall, ToolRejection> {
    let client = request.client;
    let defaults = client.options.defaults;
    let session = parse_session(&given, agent)?;
    let wall = match given.timeout_ms {
        Some(Millis(0)) => {
            return Err(ToolRejection::for_field(
                "timeout_ms",
                "the limit must be greater than 0",
                "give milliseconds, such as 600000 for ten minutes, or omit it for the default",
            ));
        }
        Some(Millis(millis)) => Duration::from_millis(millis.max(MIN_TIMEOUT_MS)),
        None => defaults.timeout,
    };
    let tool_timeout = match given.tool_timeout_ms {
        Some(Millis(0)) => {
            return Err(ToolRejection::for_field(
                "tool_timeout_ms",
                "the limit must be greater than 0",
                "give milliseconds, or omit it for the default",
            ));
        }
        Some(Millis(millis)) => Some(Duration::from_millis(millis)),
        None => None,
    };
    let add_dirs = given.add_dirs.unwrap_or_default();
    let add_dirs = add_dirs
        .iter()
        .map(|directory| resolve_path(client, "add_dirs", directory))
        .collect::<Result<_, _>>()?;
    let images = given.images.unwrap_or_default();
    let images =
        images.iter().map(|image| resolve_path(client, "images", image)).collect::<Result<_, _>>()?;
    let effort = given.effort.map(|effort| effort.trim().parse()).transpose();
    let effort = effort.map_err(|error: model::BadName| {
        ToolRejection::for_field("effort", error.to_string(), error.hint())
    })?;
    let mode = match given.mode {
        Some(mode) => parse_choice("mode", &mode, &[("execute", Mode::Execute), ("observe", Mode::Observe)])?,
        None => Mode::Execute,
    };
    let policy = parse_policy(&client.options.policy, given.policy.as_deref(), given.network.as_deref())?;
    // Only an explicit policy is a contradiction: `observe` narrows the operator's default.
    if mode == Mode::Observe && given.policy.is_some() && policy.preset.contradicts_observe() {
        return Err(ToolRejection::for_field(
            "policy",
            format!("policy `{}` allows writing, which mode `observe` forbids", policy.preset),
            "omit one of them, or use policy `observe` or `sealed`",
        ));
    }
    let call = CallSpec {
        model: given.model.map(|model| model.trim().to_owned()),
        effort,
        images,
        output_schema: given.output_schema.map(|schema| Value::Object(schema).to_string()),
        mcp_servers: given.mcp_servers.into_iter().flatten().map(McpServer::from).collect(),
        session,
        mode,
        tools: parse_tools(given.allowed_tools)?,
        policy,
        system_prompt: given.system_prompt,
        add_dirs,
        worktree: given.worktree,
        verify: parse_verify(given.verify, given.repair, given.verify_protect)?,
        expect_changes: given.expect_changes.unwrap_or_default(),
        agent_name: given.agent_name.as_deref().map(parse_agent_name).transpose()?,
        tool_timeout,
        max_turns: given.max_turns,
        limits: Limits { wall: Some(wall), idle: defaults.idle, start: defaults.start, ..Limits::default() },
        ..CallSpec::new(agent, given.prompt, resolve_cwd(client, given.cwd.as_deref())?)
    };
    let call = if client.options.trust_workspaces { call.with_trusted_workspace() } else { call };
    let own_key = given.idempotency_key.map(|key| check_length("idempotency_key", &key)).transpose()?;
    let has_own_key = own_key.is_some();
    let order = CallRequest {
        task: given.task_name.map(|name| check_length("task_name", name.trim())).transpose()?,
        idempotency_key: own_key.or_else(|| waiting::request_key(request.context).map(str::to_owned)),
        fire_and_forget: given.fire_and_forget,
        expose_stream: given.expose_stream,
        environment: client.info.environment.clone(),
        parent: client.info.parent,
        ..CallRequest::new(call, request.tool.name.as_ref())
    };
    let chars = given
        .max_response_chars
        .map(|chars| check_maximum("max_response_chars", chars, MAX_RESPONSE_CHARS))
        .transpose()?;
    let reply = ReplyOptions {
        // The end of a wait does not affect the job, so a longer wait is shortened instead of rejected.
        wait: given.wait_ms.map(|Millis(millis)| Duration::from_millis(millis).min(MAX_WAIT)),
        max_response_chars: chars
            .map_or(defaults.max_response_chars, |chars| usize::try_from(chars).unwrap_or(usize::MAX)),
        fire_and_forget: given.fire_and_forget,
        has_own_key,
    };
    Ok(ParsedCall { order, reply })
}

/// Returns the rejection of a call that could not be submitted. An error about an additional directory is reported for `add_dirs`.
pub(super) fn submit_rejection(error: CallError, cwd: &Path) -> ToolRejection {
    let is_added = match &error {
        CallError::Cwd { directory, .. } | CallError::CwdIsNoDirectory { directory } => directory != cwd,
        CallError::EscapingLink(link) => link.given != cwd,
        _ => false,
    };
    let rejection = ToolRejection::from(error);
    if is_added { rejection.with_field("add_dirs") } else { rejection }
}

/// Combines the parameters of a verification.
fn parse_verify(
    command: Option<String>,
    repairs: Option<u32>,
    protect: Option<Vec<String>>,
) -> Result<Option<VerifySpec>, ToolRejection> {
    let without = |field| {
        ToolRejection::for_field(field, format!("`{field}` needs `verify`"), "pass the command as `verify`")
    };
    match command {
        Some(command) => {
            let (repairs, protect) = (repairs.unwrap_or_default(), protect.unwrap_or_default());
            Ok(Some(VerifySpec { command, repairs, protect }))
        }
        None if repairs.is_some_and(|repairs| repairs > 0) => Err(without("repair")),
        None if protect.is_some_and(|globs| !globs.is_empty()) => Err(without("verify_protect")),
        None => Ok(None),
    }
}

/// Returns the requested policy, or the operator's default, with the operator's enforcement level.
fn parse_policy(
    default: &CallPolicy,
    preset: Option<&str>,
    network: Option<&str>,
) -> Result<CallPolicy, ToolRejection> {
    let mut policy = default.clone();
    if let Some(preset) = preset {
        let names = Preset::ALL.map(|preset| (preset.name(), preset));
        policy.preset = parse_choice("policy", preset, &names)?;
    }
    if let Some(network) = network {
        policy.network = network.parse().map_err(|error: model::BadName| {
            ToolRejection::for_field("network", error.to_string(), error.hint())
        })?;
    }
    Ok(policy)
}

fn check_maximum(field: &str, given: u64, limit: u64) -> Result<u64, ToolRejection> {
    if given <= limit {
        Ok(given)
    } else {
        Err(ToolRejection::for_field(field, format!("{given} is too large"), format!("give at most {limit}")))
    }
}

/// Checks the length of a name or key.
fn check_length(field: &str, given: &str) -> Result<String, ToolRejection> {
    let length = given.chars().count();
    if length <= MAX_NAME_CHARS {
        return Ok(given.to_owned());
    }
    let message = format!("the value has {length} characters");
    Err(ToolRejection::for_field(field, message, format!("give at most {MAX_NAME_CHARS}")))
}

fn parse_session(given: &CallParameters, agent: AgentKind) -> Result<SessionChoice, ToolRejection> {
    if let Some(id) = &given.fork_session_id {
        let others = [
            ("resume_session_id", given.resume_session_id.is_some() || given.session_id.is_some()),
            ("continue_latest", given.continue_latest),
        ];
        if let Some((other, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
            return Err(ToolRejection::for_field(
                "fork_session_id",
                format!("it cannot be combined with {other}"),
                "omit one of them",
            ));
        }
        return Ok(SessionChoice::Fork(parse_session_id("fork_session_id", id, agent)?));
    }
    let (field, id) = match (given.resume_session_id.as_deref(), given.session_id.as_deref()) {
        (Some(one), Some(other)) if one.trim() != other.trim() => {
            return Err(ToolRejection::for_field(
                "session_id",
                "session_id and resume_session_id name different sessions",
                "give only one of them",
            ));
        }
        (Some(id), _) => ("resume_session_id", id),
        (None, Some(id)) => ("session_id", id),
        (None, None) => {
            return Ok(if given.continue_latest {
                SessionChoice::ContinueLatest
            } else {
                SessionChoice::New
            });
        }
    };
    if given.continue_latest {
        return Err(ToolRejection::for_field(
            "continue_latest",
            format!("it cannot be combined with {field}"),
            "omit one of them",
        ));
    }
    Ok(SessionChoice::Resume(parse_session_id(field, id, agent)?))
}

/// Parses the id of a session. Only the agents with code of their own have UUIDs.
fn parse_session_id(field: &str, id: &str, agent: AgentKind) -> Result<SessionId, ToolRejection> {
    let id = id.trim();
    let parsed = match agent {
        AgentKind::Profiled(_) => id.parse().map_err(|_| "the id of a session"),
        _ => uuid::Uuid::parse_str(id).map(SessionId::from).map_err(|_| "a UUID"),
    };
    parsed.map_err(|expected| {
        let shown: String = id.chars().take(64).collect();
        ToolRejection::for_field(
            field,
            format!("`{}` is not {expected}", shown.escape_debug()),
            "give the session_id of an earlier answer, or omit it to start a new session",
        )
    })
}

fn parse_tools(given: Option<Vec<String>>) -> Result<ToolChoice, ToolRejection> {
    let Some(given) = given else { return Ok(ToolChoice::Full) };
    if given.iter().any(|tool| tool.trim().is_empty()) {
        return Err(ToolRejection::for_field(
            "allowed_tools",
            "one of the tools has no name",
            "remove the blank entry; an empty list denies all tools",
        ));
    }
    Ok(if given.is_empty() { ToolChoice::None } else { ToolChoice::Only(given) })
}

fn parse_agent_name(given: &str) -> Result<AgentName, ToolRejection> {
    given.trim().parse().map_err(|error: model::BadName| {
        ToolRejection::for_field("agent_name", error.to_string(), error.hint())
    })
}

/// Returns the working directory: the given one, or the client's.
fn resolve_cwd(client: &ClientContext, given: Option<&str>) -> Result<PathBuf, ToolRejection> {
    if let Some(given) = given {
        return resolve_path(client, "cwd", given);
    }
    client.info.cwd.clone().ok_or_else(|| {
        ToolRejection::for_field(
            "cwd",
            "required parameter is missing: this connection has no working directory",
            "give the absolute path of the agent's working directory",
        )
    })
}

/// Resolves a path: absolute, `~/…` or an alias. Its existence is checked when the call is submitted.
fn resolve_path(client: &ClientContext, field: &str, given: &str) -> Result<PathBuf, ToolRejection> {
    let options = &client.options;
    let given = given.trim();
    let path = Path::new(given);
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    if given == "~" || given.starts_with("~/") {
        let home = options.home.as_ref().ok_or_else(|| {
            ToolRejection::for_field(field, "the home directory is unknown", "give an absolute path")
        })?;
        return Ok(home.join(given.trim_start_matches('~').trim_start_matches('/')));
    }
    if let Some(directory) = options.cwd_aliases.get(given) {
        return Ok(directory.clone());
    }
    let shown: String = given.chars().take(200).collect();
    let aliases = match options.cwd_aliases.keys().map(String::as_str).collect::<Vec<_>>() {
        none if none.is_empty() => "an alias from the configuration (none is defined)".to_owned(),
        some => format!("one of the aliases {}", some.join(", ")),
    };
    Err(ToolRejection::for_field(
        field,
        format!("`{}` is neither an absolute path nor an alias", shown.escape_debug()),
        format!("give an absolute path, a path that starts with `~/`, or {aliases}"),
    ))
}
