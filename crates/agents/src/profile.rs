//! Agents as data: everything about an agent that is no code.
//!
//! A profile is built in (see `profiles`) or comes from the operator's configuration. [`crate::launch`] and [`crate::doctor`] follow it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use model::AgentKind;
use serde::Serialize;

use crate::DefaultVariables;
use crate::driver::{AnswerRule, ModelErrorReport, UsageReport};
use crate::prompt_limit::PromptLimit;
use crate::version::TestedRange;

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentProfile {
    /// The agent.
    pub agent: AgentKind,
    /// The name of the product.
    pub title: String,
    /// The tasks that the agent is good at, in the operator's words.
    pub description: Option<String>,
    /// The name of its executable, or an absolute path.
    pub program: String,
    /// The package with the native program behind the launcher that npm installs.
    pub native: Option<NativeProgram>,
    /// The command or page that installs it.
    pub install: String,
    /// The arguments that print its version. Empty: it is not asked.
    pub version_args: Vec<String>,
    /// The evidence for this profile.
    pub support: ProfileSupport,
    /// The rules by which it is launched.
    pub launch: LaunchRules,
    /// The login.
    pub login: LoginRule,
    /// The variables that it gets, besides those of every agent.
    pub variables: DefaultVariables,
    /// The variables that name another host of its model.
    pub base_urls: Vec<String>,
    /// The hosts of its vendor.
    pub hosts: Vec<String>,
    /// Its state directories. The first one has its login.
    pub states: Vec<StateRule>,
    /// Files and directories of a workspace that it obeys, and that no flag disables. Hidden in an untrusted workspace.
    pub workspace_settings: Vec<String>,
    /// Paths of the home directory that it reads besides its state.
    pub exposed: Vec<String>,
    /// The longest prompt.
    pub prompt_limit: PromptLimit,
    /// Its features, as measured.
    pub features: BTreeSet<AgentFeature>,
    /// Names of models that it accepts.
    pub models: Vec<String>,
}

/// The evidence for a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileSupport {
    /// Tested with these versions of the real program.
    Tested(TestedRange),
    /// Measured with this version of the real program; not in every run of the tests.
    Measured(TestedRange),
    /// From the documentation of the program.
    Untested,
    /// The operator's own agent.
    Custom,
    /// Part of Switchboard.
    Own,
}

/// The package of a native program: `<scope>/<name>-<platform>` with an executable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeProgram {
    /// The directory of packages, such as `@openai`.
    pub scope: String,
    /// The name of the executable.
    pub name: String,
}

/// The rules by which an agent is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchRules {
    /// Those of Claude Code.
    Claude,
    /// Those of Codex.
    Codex,
    /// Those of Gemini CLI.
    Gemini,
    /// Any agent that speaks the Agent Client Protocol.
    Acp(AcpRules),
    /// A command without a protocol.
    Plain(PlainRules),
}

/// The launch of an agent that speaks the Agent Client Protocol.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AcpRules {
    /// The arguments that start it as a server on stdio.
    pub args: Vec<String>,
    /// Variables that it needs to run unattended.
    pub set: BTreeMap<String, String>,
    /// Variables that make it ignore the settings of an untrusted workspace.
    pub set_untrusted: BTreeMap<String, String>,
    /// The mode of a session that runs unattended. `None`: the default mode does. It may still ask for permissions.
    pub unattended_mode: Option<String>,
    /// The meaning of its token counts.
    pub usage: UsageReport,
    /// The report of a failed request to the model.
    pub errors: ModelErrorReport,
    /// It runs its commands through the client.
    pub needs_terminals: bool,
    /// It connects to a server of its own on loopback.
    pub needs_loopback: bool,
    /// It removes white space before a slash, and runs the prompt as a command of its own.
    pub trims_prompts: bool,
}

/// The launch of a command without a protocol. `{prompt}`, `{prompt_file}`, `{model}`, `{session}` and `{cwd}` stand for their values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlainRules {
    /// The arguments. Without a placeholder for the prompt, it is on stdin.
    pub args: Vec<String>,
    /// Further arguments of a call with a model.
    pub model: Vec<String>,
    /// Further arguments of a call that resumes a session.
    pub resume: Vec<String>,
    /// The part of stdout that is the answer.
    pub answer: AnswerRule,
    /// The pointer to the session id in the output.
    pub session: Option<String>,
}

/// The evidence of a login, without a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoginRule {
    /// Variables with a key.
    pub variables: Vec<String>,
    /// Files with a login, below the first state directory.
    pub files: Vec<String>,
    /// Further files of the login.
    pub companions: Vec<String>,
    /// Files that may configure another login.
    pub alternatives: Vec<String>,
    /// The login may be elsewhere, such as in a keychain.
    pub may_be_elsewhere: bool,
    /// The arguments that print the login state as JSON with a field `loggedIn`.
    pub status: Vec<String>,
    /// The remedy for a missing login.
    pub remedy: String,
}

/// A state directory, and the paths in it that outlive a sandboxed run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRule {
    /// The directory below the home directory.
    pub path: String,
    /// The variable that names another directory.
    pub variable: Option<StateVariable>,
    /// The kept paths.
    pub kept: KeptRule,
    /// Entries that are hidden from a sandboxed run. A `*` at the start or the end is a wildcard.
    pub discarded: Vec<String>,
}

/// A variable that names a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateVariable {
    /// The name.
    pub name: String,
    /// The path of the state directory below the value: empty if the value is the directory itself.
    pub below: String,
    /// A sandboxed run gets the variable even if the user has not set it.
    pub is_set: bool,
}

/// The paths in a state directory that outlive a sandboxed run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptRule {
    /// Those of Claude Code, which depend on the session.
    Claude,
    /// Those of Codex.
    Codex,
    /// Those of Gemini CLI, which depend on the working directory.
    Gemini,
    /// The whole directory.
    All,
    /// These directories and files.
    Paths {
        /// Directories.
        directories: Vec<String>,
        /// Files, such as a login.
        files: Vec<String>,
    },
}

/// A feature of an agent, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentFeature {
    /// Resume a session in a new process.
    Resume,
    /// Copy a session.
    Fork,
    /// An answer to a schema, by a feature of its own. Others are prompted for it; Switchboard validates both.
    Schema,
    /// Choose the model.
    Model,
    /// Choose the effort of the model.
    Effort,
    /// A limit on the turns of the model.
    TurnLimit,
    /// A limit on the cost.
    Budget,
    /// Images as files.
    Images,
    /// MCP servers of the call.
    McpServers,
    /// Additional directories.
    AddDirs,
    /// Replace the system prompt.
    SystemPrompt,
    /// Choose the tools.
    Tools,
    /// Read-only mode without a sandbox.
    ReadOnly,
    /// A message joins the running turn.
    Steer,
    /// Ask for permission.
    Ask,
    /// Token counts.
    Usage,
    /// Cost.
    Cost,
}

impl AgentFeature {
    /// The features that an agent negotiates in the handshake of the Agent Client Protocol.
    pub const NEGOTIATED: [Self; 7] =
        [Self::Resume, Self::Fork, Self::Model, Self::Effort, Self::Images, Self::McpServers, Self::AddDirs];

    /// All features, in the order of the documentation.
    pub const ALL: [Self; 17] = [
        Self::Resume,
        Self::Fork,
        Self::Schema,
        Self::Model,
        Self::Effort,
        Self::TurnLimit,
        Self::Budget,
        Self::Images,
        Self::McpServers,
        Self::AddDirs,
        Self::SystemPrompt,
        Self::Tools,
        Self::ReadOnly,
        Self::Steer,
        Self::Ask,
        Self::Usage,
        Self::Cost,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Fork => "fork",
            Self::Schema => "schema",
            Self::Model => "model",
            Self::Effort => "effort",
            Self::TurnLimit => "turn limit",
            Self::Budget => "budget",
            Self::Images => "images",
            Self::McpServers => "MCP servers",
            Self::AddDirs => "directories",
            Self::SystemPrompt => "system prompt",
            Self::Tools => "tools",
            Self::ReadOnly => "read-only",
            Self::Steer => "steer",
            Self::Ask => "ask",
            Self::Usage => "tokens",
            Self::Cost => "cost",
        }
    }
}

impl AgentProfile {
    /// Returns a profile without any feature, for a program that speaks the Agent Client Protocol.
    pub fn acp(agent: AgentKind, title: &str, program: &str, rules: AcpRules) -> Self {
        Self {
            agent,
            title: title.to_owned(),
            description: None,
            program: program.to_owned(),
            native: None,
            install: String::new(),
            version_args: vec!["--version".to_owned()],
            support: ProfileSupport::Untested,
            launch: LaunchRules::Acp(rules),
            login: LoginRule { may_be_elsewhere: true, ..LoginRule::default() },
            variables: DefaultVariables::default(),
            base_urls: Vec::new(),
            hosts: Vec::new(),
            states: Vec::new(),
            workspace_settings: Vec::new(),
            exposed: Vec::new(),
            prompt_limit: PromptLimit::default(),
            features: BTreeSet::new(),
            models: Vec::new(),
        }
    }

    /// Returns whether the agent has a feature.
    pub fn has(&self, feature: AgentFeature) -> bool {
        self.features.contains(&feature)
    }

    /// Returns whether a call may need a feature. An agent that was not measured rejects it in its handshake, if it does not have it.
    pub fn accepts(&self, feature: AgentFeature) -> bool {
        let is_unknown =
            self.support == ProfileSupport::Untested && AgentFeature::NEGOTIATED.contains(&feature);
        self.has(feature) || is_unknown
    }

    /// Returns the tested versions.
    pub fn tested(&self) -> Option<TestedRange> {
        match self.support {
            ProfileSupport::Tested(range) | ProfileSupport::Measured(range) => Some(range),
            ProfileSupport::Untested | ProfileSupport::Custom | ProfileSupport::Own => None,
        }
    }

    /// Returns the first state directory, in the environment of a caller.
    pub fn state_directory(&self, inherited: &BTreeMap<String, String>) -> Option<PathBuf> {
        self.states.first()?.directory(inherited)
    }
}

impl StateVariable {
    /// Returns the state directory for a value of the variable.
    pub(crate) fn directory(&self, value: &Path) -> PathBuf {
        // Joining an empty path would add a slash.
        if self.below.is_empty() { value.to_owned() } else { value.join(&self.below) }
    }
}

impl StateRule {
    /// Returns a rule with kept directories and files.
    pub fn with_paths(path: &str, directories: &[&str], files: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            path: path.to_owned(),
            variable: None,
            kept: KeptRule::Paths { directories: owned(directories), files: owned(files) },
            discarded: Vec::new(),
        }
    }

    /// Names the variable of the XDG conventions whose directory contains this one.
    #[must_use]
    pub fn below_variable(mut self, name: &str, below: &str) -> Self {
        self.variable = Some(StateVariable { name: name.to_owned(), below: below.to_owned(), is_set: false });
        self
    }

    /// Returns the directory in the environment of a caller.
    pub fn directory(&self, inherited: &BTreeMap<String, String>) -> Option<PathBuf> {
        let given = |name: &str| inherited.get(name).map(Path::new).filter(|path| path.is_absolute());
        let by_variable =
            self.variable.as_ref().and_then(|variable| Some(variable.directory(given(&variable.name)?)));
        by_variable.or_else(|| Some(given("HOME")?.join(&self.path)))
    }
}
