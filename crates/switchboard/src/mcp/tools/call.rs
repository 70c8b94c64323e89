//! What the tools that call an agent share: parameters, their meaning, and the wait for the answer.
//!
//! The one place where a caller's strings become a call. Each agent's own file says what is special about it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use calls::{Answer, CallError, CallRequest, SubmittedJob};
use model::{
    AgentKind, AgentName, CallPolicy, CallSpec, JobId, Limits, Mode, Preset, SessionChoice, SessionId,
    ToolChoice,
};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Effect, Request, define};
use crate::mcp::arguments::one_of;
use crate::mcp::millis::Millis;
use crate::mcp::refusal::Refusal;
use crate::mcp::render;
use crate::mcp::schema;
use crate::mcp::server::Server;
use crate::mcp::tasks;
use crate::mcp::waiting::{self, Waited};

/// The longest wait of a call: ten minutes, more than any host waits.
const MAX_WAIT: Duration = Duration::from_mins(10);
/// The shortest limit on an agent: below it none would get to its first word.
const MIN_TIMEOUT_MS: u64 = 1_000;
const MAX_RESPONSE_CHARS: u64 = 1_000_000;
const MAX_NAME_CHARS: usize = 200;

/// A tool that calls an agent.
pub(super) struct CallTool {
    pub name: &'static str,
    pub title: &'static str,
    pub agent: AgentKind,
    /// When and how to use it, for a model.
    pub about: &'static str,
    /// What `model` may be.
    pub models: &'static str,
    /// Whether `cwd` must be given.
    pub needs_cwd: bool,
    /// Examples and typical mistakes, for `howto`.
    pub howto: &'static str,
}

/// The parameters of a call.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Parameters {
    /// What the agent is to do. It knows nothing of your conversation: say what is wanted, which files matter, and what to answer. It reaches the agent as it is, but for secrets: `[redacted]` stands in their place.
    prompt: String,
    /// The folder the agent works in: an absolute path, `~/…`, or an alias of the configuration. It must exist. Default: the folder of your own host.
    cwd: Option<String>,
    /// The model.
    model: Option<String>,
    /// Go on with this conversation: the `session_id` (a UUID) of an earlier answer. Not together with `continue_latest`.
    resume_session_id: Option<String>,
    /// The same as `resume_session_id`.
    session_id: Option<String>,
    /// Go on with the last conversation of this `task_name` with this agent, which has to be one of the same `cwd`. Not together with `resume_session_id`.
    #[serde(default)]
    continue_latest: bool,
    /// A name for the task, shown in lists; `continue_latest` finds the conversation by it. Default: the name of the tool.
    task_name: Option<String>,
    /// `execute` (default): the agent may change files and run commands without asking. `observe`: it can only look, which is enforced; claude and gemini have no shell then, which policy `observe` leaves them.
    #[schemars(extend("enum" = ["execute", "observe"]))]
    mode: Option<String>,
    /// What the operating system lets the agent touch. `workspace`: it writes in its folders only, and does not see keys and logins of others. `observe`: it writes nothing. `restricted`: no shell, only file tools on its folders. `sealed`: the last two together. `off`: it has all rights of the user. Default: as the operator set it, else `workspace`; the operator may also have set a limit that no call can lift.
    #[schemars(extend("enum" = ["off", "workspace", "observe", "restricted", "sealed"]))]
    policy: Option<String>,
    /// Whom a confined agent may reach: `full`, `none`, or hosts with commas between them (`github.com,*.crates.io`), beside its own vendor. Default: as the operator set it, else `full`.
    network: Option<String>,
    /// Which of its tools the agent may use without asking, such as `Read` or `Bash(git *)`; everything else is denied. An empty list: none at all. Left out: all of them.
    allowed_tools: Option<Vec<String>>,
    /// Takes the place of the agent's own system prompt.
    system_prompt: Option<String>,
    /// Further folders it may work in, written like `cwd`.
    add_dirs: Option<Vec<String>>,
    /// A named agent of the vendor (`claude --agent`), which brings its own prompt and tools.
    agent_name: Option<String>,
    /// How many turns the model may take. When they are used up the call fails with `max_turns`; left out, it goes on by itself.
    #[schemars(range(min = 1))]
    max_turns: Option<u32>,
    /// Hard limit on the agent, in milliseconds or as a text with a unit such as `10m`; then it is ended with everything it started (status `timeout`). 1 to 999 count as 1000. Default: as the operator set it, else 3600000, an hour.
    #[schemars(range(min = 1))]
    timeout_ms: Option<Millis>,
    /// How long one tool of the agent may take, in milliseconds or as a text with a unit such as `90s`: an MCP tool or a shell command. Only claude can be held to it; codex and gemini refuse it. Default: MCP tools as the operator set it, else 300000, where the agent has such a limit; shell commands as the agent itself limits them.
    #[schemars(range(min = 1))]
    tool_timeout_ms: Option<Millis>,
    /// How long this call blocks, in milliseconds or as a text with a unit such as `50s`, before it answers `running` with the `job_id`; the job goes on. 0 answers at once, and more than 600000 counts as 600000. Default: as the operator set it, else 50000, because many hosts give up after 60 s.
    wait_ms: Option<Millis>,
    /// Answer as soon as the job is kept, with its `status_file`, `output_file` and `error_file`; do not wait at all.
    #[serde(default)]
    fire_and_forget: bool,
    /// Also answer what the agent did on the way, as `stream_events`, of `max_response_chars` characters at most. Long; use it for debugging.
    #[serde(default)]
    expose_stream: bool,
    /// How many characters of the agent's answer to pass on; head and tail are kept, and the cut is named. Default: as the operator set it, else 100000.
    #[schemars(range(max = 1_000_000))]
    max_response_chars: Option<u64>,
    /// Your own name for this call: asked twice with the same key, it is one job, and the second answers for the first.
    idempotency_key: Option<String>,
}

/// A call that can be placed, and how it is waited for.
struct Asked {
    order: CallRequest,
    wait: Option<Duration>,
    max_response_chars: usize,
}

impl CallTool {
    /// As it is listed.
    pub fn tool(&self) -> Tool {
        let mut tool = define::<Parameters, Answer>(self.name, self.title, self.about, Effect::Calls);
        let mut input = (*tool.input_schema).clone();
        schema::describe(&mut input, "model", self.models);
        if self.needs_cwd {
            schema::describe(
                &mut input,
                "cwd",
                "The folder the agent works in: an absolute path, `~/…`, or an alias of the configuration. It must exist.",
            );
            input["required"] = serde_json::json!(["prompt", "cwd"]);
        }
        tool.input_schema = input.into();
        tool
    }

    /// Places the call and waits for its answer.
    pub async fn call(&self, mut request: Request<'_>) -> Result<CallToolResponse, Refusal> {
        let parameters = request.read()?;
        let server = request.server;
        let mut asked = self.asked(server, parameters)?;
        let has_own_key = asked.order.idempotency_key.is_some();
        let mark = waiting::mark(request.context);
        asked.order.idempotency_key = asked.order.idempotency_key.or(mark.map(str::to_owned));
        let fire_and_forget = asked.order.fire_and_forget;
        let placed = place(server, asked.order).await?;
        let job = placed.job;
        let wants_task = !fire_and_forget && tasks::are_declared(request.context);
        let wait = match asked.wait {
            _ if fire_and_forget => Duration::ZERO,
            None if wants_task => Duration::ZERO,
            wait => wait.unwrap_or(server.options.defaults.wait),
        };
        // Asked again by a bridge whose daemon died: the host has been waiting since the first time. A mark that does not say when that
        // was is the job's own key, so the job says it.
        let is_asked_again = !placed.is_new && !has_own_key;
        let since_placed = server.desk.now().since(placed.created_at);
        let waited = waiting::waited(server, request.context);
        let wait = wait.saturating_sub(if is_asked_again { waited.max(since_placed) } else { waited });
        // There is a job now, so the caller must learn its id whatever fails.
        let known = |refusal: Refusal| refusal.after_placing(job);
        let answer = wait_for(server, &request, job, wait).await.map_err(known)?;
        let answer = answer.cut_to(asked.max_response_chars);
        // What this very request has placed, before the daemon died, no earlier call has.
        let by_another = !placed.is_new
            && has_own_key
            && waiting::asked_at(request.context).is_none_or(|asked| placed.created_at < asked);
        let answer = Answer { note: note(&answer, &placed, by_another, fire_and_forget), ..answer };
        if wants_task && !answer.status.is_final() {
            return tasks::created(server, job).await.map_err(known);
        }
        Ok(render::answered(&answer).into())
    }

    fn asked(&self, server: &Server, given: Parameters) -> Result<Asked, Refusal> {
        let defaults = server.options.defaults;
        let session = session(&given)?;
        let wall = match given.timeout_ms {
            Some(Millis(0)) => {
                return Err(Refusal::of(
                    "timeout_ms",
                    "a limit of 0 would end the agent before it begins",
                    "give milliseconds, such as 600000 for ten minutes, or leave it out for what the operator set",
                ));
            }
            Some(Millis(millis)) => Duration::from_millis(millis.max(MIN_TIMEOUT_MS)),
            None => defaults.timeout,
        };
        let tool_timeout = match given.tool_timeout_ms {
            Some(Millis(0)) => {
                return Err(Refusal::of(
                    "tool_timeout_ms",
                    "a limit of 0 would end every tool before it starts",
                    "give milliseconds, or leave it out for the operator's limit",
                ));
            }
            Some(Millis(millis)) => Some(Duration::from_millis(millis)),
            None => None,
        };
        let add_dirs = given.add_dirs.unwrap_or_default();
        let add_dirs = add_dirs
            .iter()
            .map(|folder| self::folder(server, "add_dirs", folder))
            .collect::<Result<_, _>>()?;
        let mode = match given.mode {
            Some(mode) => one_of("mode", &mode, &[("execute", Mode::Execute), ("observe", Mode::Observe)])?,
            None => Mode::Execute,
        };
        let policy = policy(&server.options.policy, given.policy.as_deref(), given.network.as_deref())?;
        // The operator's default is not a contradiction: observing narrows it.
        if mode == Mode::Observe && given.policy.is_some() && policy.preset.contradicts_observe() {
            return Err(Refusal::of(
                "policy",
                format!("policy `{}` lets the agent write, which mode `observe` forbids", policy.preset),
                "use only one of them, or use policy `observe` or `sealed`",
            ));
        }
        let call = CallSpec {
            model: given.model.map(|model| model.trim().to_owned()),
            session,
            mode,
            tools: tools(given.allowed_tools)?,
            policy,
            system_prompt: given.system_prompt,
            add_dirs,
            agent_name: given.agent_name.as_deref().map(agent_name).transpose()?,
            tool_timeout,
            max_turns: given.max_turns,
            limits: Limits {
                wall: Some(wall),
                idle: defaults.idle,
                start: defaults.start,
                ..Limits::default()
            },
            ..CallSpec::new(self.agent, given.prompt, cwd(server, given.cwd.as_deref())?)
        };
        let call = if server.options.trust_workspaces { call.with_trusted_workspace() } else { call };
        let order = CallRequest {
            task: given.task_name.map(|name| short("task_name", name.trim())).transpose()?,
            idempotency_key: given.idempotency_key.map(|key| short("idempotency_key", &key)).transpose()?,
            fire_and_forget: given.fire_and_forget,
            expose_stream: given.expose_stream,
            environment: server.client.environment.clone(),
            parent: server.client.parent,
            ..CallRequest::new(call, self.name)
        };
        let chars = given
            .max_response_chars
            .map(|chars| at_most("max_response_chars", chars, MAX_RESPONSE_CHARS))
            .transpose()?;
        Ok(Asked {
            order,
            // A wait that is over ends no job, so a longer one is cut short instead of refused.
            wait: given.wait_ms.map(|Millis(millis)| Duration::from_millis(millis).min(MAX_WAIT)),
            max_response_chars: chars
                .map_or(defaults.max_response_chars, |chars| usize::try_from(chars).unwrap_or(usize::MAX)),
        })
    }
}

/// Places the call. What is wrong with a folder is told of the parameter that named it.
async fn place(server: &Server, order: CallRequest) -> Result<SubmittedJob, Refusal> {
    let cwd = order.call.cwd.clone();
    server.desk.submit(order).await.map_err(|error| match &error {
        CallError::Cwd { folder, .. } | CallError::CwdIsNoFolder { folder } if *folder != cwd => {
            Refusal::from(error).about("add_dirs")
        }
        _ => error.into(),
    })
}

/// Waits for the job of a call, and returns its answer as it is by then. A wait that times out does not cancel the job; a cancelled
/// request does.
async fn wait_for(
    server: &Server,
    request: &Request<'_>,
    job: JobId,
    time: Duration,
) -> Result<Answer, Refusal> {
    let mut ended = None;
    let waited = if time.is_zero() {
        Waited::Ended(Vec::new())
    } else {
        let wait = async {
            ended = server.desk.wait_for_answer(job, time).await?;
            Ok(ended.iter().map(|_| job).collect())
        };
        waiting::wait(server, request.context, &[job], wait).await?
    };
    let is_unwanted = match waited {
        Waited::Cancelled => true,
        Waited::Gone => server.options.cancel_on_disconnect,
        Waited::Ended(_) | Waited::Shutdown | Waited::NotAdmitted => false,
    };
    if is_unwanted && let Err(error) = server.desk.cancel(job).await {
        // It ended by itself in between.
        tracing::debug!(%job, %error, "the job of a cancelled request is not cancelled");
    }
    let mut answer = match ended {
        Some(answer) => answer,
        None => server.desk.answer(job).await?,
    };
    if waited == Waited::NotAdmitted && !answer.status.is_final() {
        answer.note = Some(waiting::not_admitted(server));
        return Ok(answer);
    }
    Ok(render::with_next_step(answer))
}

fn note(answer: &Answer, placed: &SubmittedJob, by_another: bool, fire_and_forget: bool) -> Option<String> {
    let mut notes: Vec<String> = answer.note.iter().cloned().collect();
    if by_another {
        notes.push("an earlier call with the same idempotency_key has placed this job".to_owned());
    }
    // The note of an ended job says so itself.
    if placed.redactions > 0 && !answer.status.is_final() {
        notes.push(crate::text::redactions_note(placed.redactions));
    }
    if fire_and_forget {
        notes.push(
            "status_file changes when the job does, and output_file can be followed with `tail -F`"
                .to_owned(),
        );
    }
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The policy that is asked for, or the operator's. Either is enforced as strictly as the operator wants it.
fn policy(default: &CallPolicy, asked: Option<&str>, network: Option<&str>) -> Result<CallPolicy, Refusal> {
    let mut policy = default.clone();
    if let Some(asked) = asked {
        let names = Preset::ALL.map(|preset| (preset.name(), preset));
        policy.preset = one_of("policy", asked, &names)?;
    }
    if let Some(network) = network {
        policy.network = network
            .parse()
            .map_err(|error: model::BadName| Refusal::of("network", error.to_string(), error.hint()))?;
    }
    Ok(policy)
}

fn at_most(field: &str, given: u64, limit: u64) -> Result<u64, Refusal> {
    if given <= limit {
        Ok(given)
    } else {
        Err(Refusal::of(field, format!("{given} is over its limit"), format!("give at most {limit}")))
    }
}

/// A name, which is short: it is shown in lists and looked for.
fn short(field: &str, given: &str) -> Result<String, Refusal> {
    let length = given.chars().count();
    if length <= MAX_NAME_CHARS {
        return Ok(given.to_owned());
    }
    let message = format!("it has {length} characters");
    Err(Refusal::of(field, message, format!("give at most {MAX_NAME_CHARS}")))
}

fn session(given: &Parameters) -> Result<SessionChoice, Refusal> {
    let (field, id) = match (given.resume_session_id.as_deref(), given.session_id.as_deref()) {
        (Some(one), Some(other)) if one.trim() != other.trim() => {
            return Err(Refusal::of(
                "session_id",
                "it names another session than resume_session_id",
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
        return Err(Refusal::of(
            "continue_latest",
            format!("it cannot be combined with {field}"),
            "use only one of them",
        ));
    }
    let uuid = uuid::Uuid::parse_str(id.trim()).map_err(|_| {
        let shown: String = id.chars().take(64).collect();
        Refusal::of(
            field,
            format!("`{}` is not a UUID", shown.escape_debug()),
            "give the session_id that an earlier call answered, or leave it out to begin a new session",
        )
    })?;
    Ok(SessionChoice::Resume(SessionId::from(uuid)))
}

fn tools(given: Option<Vec<String>>) -> Result<ToolChoice, Refusal> {
    let Some(given) = given else { return Ok(ToolChoice::Full) };
    if given.iter().any(|tool| tool.trim().is_empty()) {
        return Err(Refusal::of(
            "allowed_tools",
            "one of its tools has no name",
            "leave the blank one out; an empty list means no tools at all",
        ));
    }
    Ok(if given.is_empty() { ToolChoice::None } else { ToolChoice::Only(given) })
}

fn agent_name(given: &str) -> Result<AgentName, Refusal> {
    given
        .trim()
        .parse()
        .map_err(|error: model::BadName| Refusal::of("agent_name", error.to_string(), error.hint()))
}

/// Where the agent works: where it was told to, or where its client is.
fn cwd(server: &Server, given: Option<&str>) -> Result<PathBuf, Refusal> {
    if let Some(given) = given {
        return folder(server, "cwd", given);
    }
    server.client.cwd.clone().ok_or_else(|| {
        Refusal::of(
            "cwd",
            "it is missing, and this connection has no folder of its own",
            "give the absolute path of the folder the agent is to work in",
        )
    })
}

/// A folder as a caller writes it. Whether it is there is looked at when the call is placed.
fn folder(server: &Server, field: &str, given: &str) -> Result<PathBuf, Refusal> {
    let options = &server.options;
    let given = given.trim();
    let path = Path::new(given);
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    if given == "~" || given.starts_with("~/") {
        let home = options.home.as_ref().ok_or_else(|| {
            Refusal::of(field, "the home folder is not known here", "give an absolute path")
        })?;
        return Ok(home.join(given.trim_start_matches('~').trim_start_matches('/')));
    }
    if let Some(folder) = options.cwd_aliases.get(given) {
        return Ok(folder.clone());
    }
    let shown: String = given.chars().take(200).collect();
    let aliases = match options.cwd_aliases.keys().map(String::as_str).collect::<Vec<_>>() {
        none if none.is_empty() => "an alias of the configuration (there is none yet)".to_owned(),
        some => format!("one of the aliases {}", some.join(", ")),
    };
    Err(Refusal::of(
        field,
        format!("`{}` is neither an absolute path nor an alias", shown.escape_debug()),
        format!("give an absolute path, one that begins with `~/`, or {aliases}"),
    ))
}
