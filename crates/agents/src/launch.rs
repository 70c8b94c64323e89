//! From a call to the process that carries it out.
//!
//! Owns the checks that every agent shares, before anything starts; each agent's own flags are in its module. Pure: the
//! machine is looked at elsewhere ([`crate::doctor`]) and comes in as a [`LaunchSetup`].
//!
//! Three rules hold for every agent. The prompt goes on stdin, never into the arguments. A flag and its value are one
//! argument (`--flag=value`), so that no value is ever read as a flag. What an agent cannot enforce is refused, never
//! quietly left out.

mod claude;
mod codex;
mod confine;
mod error;
mod gemini;

use std::path::Path;

use model::{AgentKind, CallSpec, ExpectedSession, Mode, RunPlan, SessionId, SettingSource, SettingsChoice};

pub use error::LaunchError;
pub(crate) use error::WITH_FILE_TOOLS;

use crate::{Capability, LaunchSetup, forbidden_variable};

/// How long a prompt may be: no agent takes a longer one.
pub const MAX_PROMPT_BYTES: usize = 10 * 1024 * 1024;

/// How many characters of prompt codex takes.
pub const MAX_PROMPT_CHARS_CODEX: usize = 1_048_576;

/// How long a prompt gemini takes: over about 4.19 MB it asks no model, answers nothing and calls that a success.
pub const MAX_PROMPT_BYTES_GEMINI: usize = 4_000_000;

/// How long a prompt an agent takes.
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

    /// Checks a prompt of that size; a caller that did not keep all of it gives the size alone.
    pub fn check(self, agent: AgentKind, bytes: usize, chars: usize) -> Result<(), LaunchError> {
        let (length, limit, unit) = match self {
            Self::Bytes(limit) => (bytes, limit, "bytes"),
            Self::Chars(limit) => (chars, limit, "characters"),
        };
        if length > limit { Err(LaunchError::PromptTooLong { agent, length, limit, unit }) } else { Ok(()) }
    }
}

/// How long one argument may be: Linux refuses more than 128 KiB, flag and terminating NUL included.
const MAX_ARGUMENT_BYTES: usize = 120 * 1024;

/// A call, ready to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What the supervisor is to run.
    pub plan: RunPlan,
    /// What is known in advance about the session.
    pub session: ExpectedSession,
    /// The model that the agent was given by name; none when it chooses itself.
    pub model: Option<String>,
}

/// Says how to start the agent for a call, or why it cannot be started as asked.
pub fn launch(spec: &CallSpec, setup: &LaunchSetup) -> Result<Launch, LaunchError> {
    check(spec)?;
    for name in &setup.pass_on {
        if let Some(reason) = forbidden_variable(name) {
            return Err(LaunchError::ForbiddenVariable { variable: name.clone(), reason });
        }
    }
    let spec = &confine::within_policy(spec, setup)?;
    let model = setup.models.of(spec.agent).resolve(spec.model.as_deref())?;
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

/// The private state folder of a call, where it has one.
pub(crate) fn policy_folder(spec: &CallSpec, setup: &LaunchSetup) -> Option<std::path::PathBuf> {
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
            return Err(LaunchError::RelativeFolder { folder: dir.clone() });
        }
    }
    for (position, server) in spec.mcp_servers.iter().enumerate() {
        server.check_name()?;
        if spec.mcp_servers[..position].iter().any(|other| other.name == server.name) {
            return Err(LaunchError::TwoServers { name: server.name.clone() });
        }
    }
    if let Some(schema) = &spec.output_schema {
        serde_json::from_str::<serde_json::Map<_, _>>(schema)
            .map_err(|source| LaunchError::BadSchema { source: source.into() })?;
    }
    Ok(())
}

fn path_text(path: &Path) -> Result<&str, LaunchError> {
    path.to_str().ok_or_else(|| LaunchError::NotUnicode { folder: path.to_owned() })
}

/// A launch that is being written.
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
            stdin: spec.prompt.clone().into_bytes(),
            limits: spec.limits.clone(),
            ..RunPlan::new(&setup.program, &spec.cwd)
        };
        Self { spec, setup, model, plan, session: ExpectedSession::Any }
    }

    /// Adds an argument that stands for itself.
    fn word(&mut self, word: &str) {
        self.plan.args.push(word.to_owned());
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

    /// Gives the run a file of its own, and says where it will stand.
    fn private_file(&mut self, name: &str, bytes: impl Into<Vec<u8>>) -> Result<String, LaunchError> {
        let path = self.setup.private_folder.join(name);
        self.plan.private_files.insert(name.to_owned(), bytes.into());
        Ok(path_text(&path)?.to_owned())
    }

    fn variable(&mut self, name: &str, value: impl Into<String>) {
        self.plan.env.insert(name.to_owned(), value.into());
    }

    /// Refuses when the installed version cannot do what the call needs.
    fn needs(&self, capability: Capability, option: &'static str) -> Result<(), LaunchError> {
        if self.spec.agent == AgentKind::Rehearsal || self.setup.capabilities.has(capability) {
            return Ok(());
        }
        Err(LaunchError::NotInThisVersion { agent: self.spec.agent, version: self.setup.version, option })
    }

    /// Returns the text for the system prompt beside the agent's own: instructions of the workspace that an agent does not read
    /// by itself while the workspace is not trusted, and the text of the call.
    fn appended_prompt(&self) -> Option<String> {
        let given = self.spec.append_system_prompt.clone();
        let instructions = &self.setup.workspace.instructions;
        if instructions.is_empty() || !self.reads_instructions_for_the_agent() {
            return given;
        }
        Some(given.map_or_else(|| instructions.clone(), |given| format!("{instructions}{given}")))
    }

    /// Whether settings are limited so that the agent does not read the workspace's instructions, although they are text.
    fn reads_instructions_for_the_agent(&self) -> bool {
        let sources = match &self.spec.settings {
            SettingsChoice::Only(sources) => sources.as_slice(),
            SettingsChoice::AgentDefault if self.spec.mode == Mode::Observe => &[SettingSource::User],
            SettingsChoice::AgentDefault => return false,
        };
        sources.contains(&SettingSource::User) && !sources.contains(&SettingSource::Project)
    }

    /// Refuses an option that is set and that the agent has no means for.
    fn refuse(&self, is_set: bool, option: &'static str) -> Result<(), LaunchError> {
        if is_set { Err(LaunchError::CannotDo { agent: self.spec.agent, option }) } else { Ok(()) }
    }

    /// The id of a session that is asked for. A word that is no UUID is refused: codex would quietly begin a new
    /// session, and gemini would take it for an index.
    fn uuid_of<'id>(&self, id: &'id SessionId) -> Result<&'id str, LaunchError> {
        match id.as_uuid() {
            Some(_) => Ok(id.as_str()),
            None => Err(LaunchError::SessionIsNoUuid { agent: self.spec.agent, id: id.clone() }),
        }
    }

    /// Keeps a CLI that runs slash commands by itself from taking the prompt for one: it looks at the first byte.
    fn guard_slash(&mut self) {
        if self.plan.stdin.first() == Some(&b'/') {
            self.plan.stdin.insert(0, b'\n');
        }
    }
}
