//! Translates a call to the process that runs it.
//!
//! Owns the checks that all agents share; the flags of each agent are in its module. Pure: [`crate::doctor`] reads the machine,
//! and its results come in as a [`LaunchSetup`].
//!
//! Three rules apply to every agent. The prompt goes to stdin, never into the arguments. A flag and its value are one argument
//! (`--flag=value`), so that no value is parsed as a flag. An option that an agent cannot enforce is rejected, never silently
//! dropped.

mod claude;
mod codex;
mod confine;
mod error;
mod gemini;

use std::fmt;
use std::path::Path;

use model::{
    AgentKind, CallSpec, ExpectedSession, Limits, Mode, RunPlan, SessionId, SettingSource, SettingsChoice,
};

pub use error::LaunchError;
pub(crate) use error::WITH_FILE_TOOLS;

use crate::{Capability, LaunchSetup, forbidden_variable};

/// The longest prompt that any agent accepts.
pub const MAX_PROMPT_BYTES: usize = 10 * 1024 * 1024;

/// The longest prompt of codex, in characters.
pub const MAX_PROMPT_CHARS_CODEX: usize = 1_048_576;

/// The longest prompt of gemini. Above about 4.19 MB it sends no request, prints nothing and reports success.
pub const MAX_PROMPT_BYTES_GEMINI: usize = 4_000_000;

/// The prompt limit of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptLimit {
    /// In bytes of UTF-8.
    Bytes(usize),
    /// In characters.
    Chars(usize),
}

impl PromptLimit {
    /// Returns the limit of an agent.
    pub fn for_agent(agent: AgentKind) -> Self {
        match agent {
            AgentKind::Claude | AgentKind::Rehearsal => Self::Bytes(MAX_PROMPT_BYTES),
            AgentKind::Codex => Self::Chars(MAX_PROMPT_CHARS_CODEX),
            AgentKind::Gemini => Self::Bytes(MAX_PROMPT_BYTES_GEMINI),
        }
    }

    /// Checks the size of a prompt.
    fn check(self, agent: AgentKind, bytes: usize, chars: usize) -> Result<(), LaunchError> {
        let (length, limit, unit) = match self {
            Self::Bytes(limit) => (bytes, limit, "bytes"),
            Self::Chars(limit) => (chars, limit, "characters"),
        };
        if length > limit { Err(LaunchError::PromptTooLong { agent, length, limit, unit }) } else { Ok(()) }
    }
}

impl fmt::Display for PromptLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(limit) => write!(f, "{limit} bytes"),
            Self::Chars(limit) => write!(f, "{limit} characters"),
        }
    }
}

/// The shell of commands.
const SHELL: &str = "/bin/sh";

/// The private file with the git configuration of a sandboxed run.
const GIT_CONFIG: &str = "gitconfig";

/// The longest argument. Linux rejects more than 128 KiB, flag and terminating NUL included.
const MAX_ARGUMENT_BYTES: usize = 120 * 1024;

/// A call that is ready to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The plan for the supervisor.
    pub plan: RunPlan,
    /// The expected session.
    pub session: ExpectedSession,
    /// The requested model. `None` if the agent chooses.
    pub model: Option<String>,
}

impl Launch {
    /// Turns the plan of an agent into that of a shell command in the same directory and sandbox. Both of its streams are one.
    pub fn into_command(self, command: &str, limits: Limits) -> RunPlan {
        let mut plan = self.plan;
        // The agent's other files can contain secrets.
        plan.private_files.retain(|name, _| name == GIT_CONFIG);
        let args = vec!["-c".to_owned(), format!("exec 2>&1\n{command}")];
        RunPlan { program: SHELL.into(), args, input: Vec::new(), limits, ..plan }
    }
}

/// Plans the process of a call, or returns the reason why the call cannot run as requested.
pub fn launch(spec: &CallSpec, setup: &LaunchSetup) -> Result<Launch, LaunchError> {
    check(spec)?;
    for name in &setup.pass_on {
        if let Some(reason) = forbidden_variable(name) {
            return Err(LaunchError::ForbiddenVariable { variable: name.clone(), reason });
        }
    }
    let spec = &confine::within_policy(spec, setup)?;
    let model = setup.models.for_agent(spec.agent).resolve(spec.model.as_deref())?;
    let mut draft = Draft::new(spec, setup, model);
    match spec.agent {
        AgentKind::Claude => claude::write(&mut draft)?,
        AgentKind::Codex => codex::write(&mut draft)?,
        AgentKind::Gemini => gemini::write(&mut draft)?,
        AgentKind::Rehearsal => {
            draft.plan.args.extend(["--as", "claude"].map(str::to_owned));
            claude::write(&mut draft)?;
        }
    }
    confine::confine(&mut draft)?;
    draft.plan.check()?;
    Ok(Launch { plan: draft.plan, session: draft.session, model: draft.model })
}

/// Returns the private state directory of a call, if it has one.
pub(crate) fn policy_directory(spec: &CallSpec, setup: &LaunchSetup) -> Option<std::path::PathBuf> {
    let spec = confine::within_policy(spec, setup).ok()?;
    confine::private_state(spec.agent, &spec.policy, setup).ok()?
}

fn check(spec: &CallSpec) -> Result<(), LaunchError> {
    if spec.prompt.trim().is_empty() {
        return Err(LaunchError::EmptyPrompt);
    }
    let limit = PromptLimit::for_agent(spec.agent);
    limit.check(spec.agent, spec.prompt.len(), spec.prompt.chars().count())?;
    if spec.max_turns == Some(0) {
        return Err(LaunchError::BadLimit { option: "max_turns", value: "0".to_owned() });
    }
    if let Some(budget) = spec.max_budget_usd.filter(|usd| !(usd.is_finite() && *usd > 0.0)) {
        return Err(LaunchError::BadLimit { option: "max_budget_usd", value: budget.to_string() });
    }
    if spec.tool_timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(LaunchError::BadLimit { option: "tool_timeout", value: "0".to_owned() });
    }
    for dir in &spec.add_dirs {
        path_text(dir)?;
        if !dir.is_absolute() {
            return Err(LaunchError::RelativeDirectory { directory: dir.clone() });
        }
    }
    for (position, server) in spec.mcp_servers.iter().enumerate() {
        server.check_name()?;
        if spec.mcp_servers[..position].iter().any(|other| other.name == server.name) {
            return Err(LaunchError::DuplicateServer { name: server.name.clone() });
        }
    }
    if let Some(schema) = &spec.output_schema {
        serde_json::from_str::<serde_json::Map<_, _>>(schema)
            .map_err(|source| LaunchError::BadSchema { source: source.into() })?;
    }
    Ok(())
}

fn path_text(path: &Path) -> Result<&str, LaunchError> {
    path.to_str().ok_or_else(|| LaunchError::NotUnicode { directory: path.to_owned() })
}

/// A launch under construction.
struct Draft<'a> {
    spec: &'a CallSpec,
    setup: &'a LaunchSetup,
    model: Option<String>,
    plan: RunPlan,
    session: ExpectedSession,
}

impl<'a> Draft<'a> {
    fn new(spec: &'a CallSpec, setup: &'a LaunchSetup, model: Option<String>) -> Self {
        let plan = RunPlan {
            env: setup.base_environment(spec.agent),
            input: spec.prompt.clone().into_bytes(),
            limits: spec.limits.clone(),
            ..RunPlan::new(&setup.program, &spec.cwd)
        };
        Self { spec, setup, model, plan, session: ExpectedSession::Any }
    }

    /// Adds a plain argument.
    fn arg(&mut self, arg: &str) {
        self.plan.args.push(arg.to_owned());
    }

    /// Adds a flag and its value as one argument.
    fn flag(&mut self, flag: &'static str, value: &str) -> Result<(), LaunchError> {
        if value.contains('\0') {
            return Err(LaunchError::NulInValue { flag });
        }
        let argument = format!("{flag}={value}");
        if argument.len() > MAX_ARGUMENT_BYTES {
            return Err(LaunchError::ValueTooLong { flag, length: value.len(), limit: MAX_ARGUMENT_BYTES });
        }
        self.plan.args.push(argument);
        Ok(())
    }

    /// Adds a private file to the run and returns its future path.
    fn private_file(&mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Result<String, LaunchError> {
        let path = self.setup.private_directory.join(name);
        self.plan.private_files.insert(name.to_owned(), bytes.into());
        Ok(path_text(&path)?.to_owned())
    }

    fn variable(&mut self, name: &str, value: impl Into<String>) {
        self.plan.env.insert(name.to_owned(), value.into());
    }

    /// Rejects the call if the installed version lacks a capability.
    fn require(&self, capability: Capability, option: &'static str) -> Result<(), LaunchError> {
        if self.spec.agent == AgentKind::Rehearsal || self.setup.capabilities.has(capability) {
            return Ok(());
        }
        Err(LaunchError::UnsupportedVersion { agent: self.spec.agent, version: self.setup.version, option })
    }

    /// Returns the text to append to the agent's system prompt: instructions of an untrusted workspace, which the agent does not
    /// load itself, and the text of the call.
    fn appended_prompt(&self) -> Option<String> {
        let given = self.spec.append_system_prompt.clone();
        let instructions = &self.setup.workspace.instructions;
        if instructions.is_empty() || !self.passes_instructions() {
            return given;
        }
        Some(given.map_or_else(|| instructions.clone(), |given| format!("{instructions}{given}")))
    }

    /// Returns whether the settings are restricted such that the agent skips the workspace's instructions, although they are only
    /// text.
    fn passes_instructions(&self) -> bool {
        let sources = match &self.spec.settings {
            SettingsChoice::Only(sources) => sources.as_slice(),
            SettingsChoice::AgentDefault if self.spec.mode == Mode::Observe => &[SettingSource::User],
            SettingsChoice::AgentDefault => return false,
        };
        sources.contains(&SettingSource::User) && !sources.contains(&SettingSource::Project)
    }

    /// Rejects an option that the agent does not support.
    fn reject_if(&self, is_set: bool, option: &'static str) -> Result<(), LaunchError> {
        if is_set { Err(LaunchError::Unsupported { agent: self.spec.agent, option }) } else { Ok(()) }
    }

    /// Returns the id of a requested session. Rejects an id that is not a UUID: codex would silently start a new session, and
    /// gemini would parse it as an index.
    fn checked_uuid<'id>(&self, id: &'id SessionId) -> Result<&'id str, LaunchError> {
        match id.as_uuid() {
            Some(_) => Ok(id.as_str()),
            None => Err(LaunchError::SessionNotUuid { agent: self.spec.agent, id: id.clone() }),
        }
    }

    /// Prevents a CLI from running the prompt as a slash command. CLIs check only the first byte.
    fn escape_slash(&mut self) {
        if self.plan.input.first() == Some(&b'/') {
            self.plan.input.insert(0, b'\n');
        }
    }
}
