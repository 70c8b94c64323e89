//! Translates a call to the process that runs it.
//!
//! Owns the checks that all agents share; the flags of each agent are in its module. Pure: [`crate::doctor`] reads the machine,
//! and its results come in as a [`LaunchSetup`].
//!
//! Three rules apply to every agent. The prompt goes to stdin, never into the arguments. A flag and its value are one argument
//! (`--flag=value`), so that no value is parsed as a flag. An option that an agent cannot enforce is rejected, never silently
//! dropped.

mod acp;
mod claude;
mod codex;
mod confine;
mod error;
mod gemini;
mod plain;

use std::path::Path;

use model::{
    AgentKind, CallSpec, ExpectedSession, InputMode, Limits, Mode, RunPlan, SessionId, SettingSource,
    SettingsChoice,
};

pub(crate) use error::INSTALL_ALL;
pub use error::LaunchError;

use crate::outcome::check_schema;
use crate::prompt_limit::Excess;
use crate::{
    AgentFeature, AgentProfile, Capability, Driver, DriverSpec, LaunchRules, LaunchSetup, ParseLimits,
    forbidden_variable,
};

/// The request for an answer to a schema.
const SCHEMA_INSTRUCTION: &str =
    "Reply with nothing but JSON that matches this JSON Schema, without a Markdown fence:";

/// The shell of commands.
const SHELL: &str = "/bin/sh";

/// The private file with the git configuration of a sandboxed run.
const GIT_CONFIG: &str = "gitconfig";

/// The longest argument. Linux rejects more than 128 KiB, flag and terminating NUL included.
const MAX_ARGUMENT_BYTES: usize = 120 * 1024;

/// Read-only mode of an agent that only a sandbox can keep from writing.
const UNCONFINED_OBSERVE: &str = "mode `observe` without a sandbox";

/// A call that is ready to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The plan for the supervisor.
    pub plan: RunPlan,
    /// The expected session.
    pub session: ExpectedSession,
    /// The requested model. `None` if the agent chooses.
    pub model: Option<String>,
    /// The output schema of the call.
    pub schema: Option<String>,
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
    check(spec, &setup.profile)?;
    for name in &setup.pass_on {
        if let Some(reason) = forbidden_variable(name) {
            return Err(LaunchError::ForbiddenVariable { variable: name.clone(), reason });
        }
    }
    let spec = &confine::within_policy(spec, setup)?;
    let model = setup.models.for_agent(spec.agent).resolve(spec.model.as_deref())?;
    let mut draft = Draft::new(spec, setup, model);
    match &setup.profile.launch {
        LaunchRules::Claude => {
            if spec.agent == AgentKind::Rehearsal {
                draft.plan.args.extend(["--as", "claude"].map(str::to_owned));
            }
            claude::write(&mut draft)?;
        }
        LaunchRules::Codex => codex::write(&mut draft)?,
        LaunchRules::Gemini => gemini::write(&mut draft)?,
        LaunchRules::Acp(rules) => acp::write(&mut draft, rules)?,
        LaunchRules::Plain(rules) => plain::write(&mut draft, rules)?,
    }
    confine::confine(&mut draft)?;
    draft.plan.check()?;
    let schema = draft.spec.output_schema.clone();
    Ok(Launch { plan: draft.plan, session: draft.session, model: draft.model, schema })
}

/// Returns the private state directory of a call, if it has one.
pub(crate) fn policy_directory(spec: &CallSpec, setup: &LaunchSetup) -> Option<std::path::PathBuf> {
    let spec = confine::within_policy(spec, setup).ok()?;
    confine::private_state(&spec.policy, setup).ok()?
}

fn check(spec: &CallSpec, profile: &AgentProfile) -> Result<(), LaunchError> {
    if spec.prompt.trim().is_empty() {
        return Err(LaunchError::EmptyPrompt);
    }
    let Excess { length, limit, unit } = match profile.prompt_limit.check(&spec.prompt) {
        Ok(()) => return check_options(spec),
        Err(excess) => excess,
    };
    Err(LaunchError::PromptTooLong { agent: spec.agent, length, limit, unit })
}

fn check_options(spec: &CallSpec) -> Result<(), LaunchError> {
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
        check_schema(schema).map_err(|problem| LaunchError::BadSchema { problem })?;
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
            env: setup.base_environment(),
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

    fn unsupported(&self, option: &'static str) -> LaunchError {
        LaunchError::Unsupported { agent: self.spec.agent, option }
    }

    /// Rejects an option without the feature that it needs.
    fn need(&self, is_set: bool, feature: AgentFeature, option: &'static str) -> Result<(), LaunchError> {
        self.reject_if(is_set && !self.setup.profile.accepts(feature), option)
    }

    /// Returns the prompt with the instructions for an agent without a feature for schemas. A slash at its start would be a command.
    fn text_of_prompt(&self) -> String {
        let prompt = &self.spec.prompt;
        let slash = if prompt.starts_with('/') { "\n" } else { "" };
        match &self.spec.output_schema {
            Some(schema) if !self.setup.profile.has(AgentFeature::Schema) => {
                format!("{slash}{prompt}\n\n{SCHEMA_INSTRUCTION}\n{schema}")
            }
            _ => format!("{slash}{prompt}"),
        }
    }

    /// Makes the run a conversation, and sends its first bytes.
    fn converse(&mut self, spec: &DriverSpec) {
        let driver = Driver::new(spec, ParseLimits::default());
        self.plan.input = driver.unsent().to_vec();
        self.plan.input_mode = InputMode::Open;
        self.plan.driver = spec.to_bytes();
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
