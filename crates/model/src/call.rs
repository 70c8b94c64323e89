//! What a caller asks of an agent.
//!
//! Owns the request in the caller's words. Refuses vendors' flags: how each agent is told is `agents::launch`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{CallPolicy, Limits, Preset, SessionChoice};

/// A coding-agent program that can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentKind {
    /// Anthropic's Claude Code.
    Claude,
    /// Codex, of `OpenAI`.
    Codex,
    /// Google's Gemini CLI.
    Gemini,
    /// Our own scripted agent, for trying out and for tests.
    Rehearsal,
}

impl AgentKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Claude, Self::Codex, Self::Gemini, Self::Rehearsal];

    /// Its name, which is also the name of its executable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Rehearsal => "rehearsal",
        }
    }
}

impl fmt::Display for AgentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for AgentKind {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| BadName::new("agent", text, "use one of: claude, codex, gemini, rehearsal"))
    }
}

/// A name that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not the name of {}", given.escape_debug(), article(what))]
pub struct BadName {
    what: &'static str,
    given: String,
    hint: &'static str,
}

fn article(what: &str) -> String {
    let an = what.starts_with(['a', 'e', 'i', 'o', 'u', 'M']);
    format!("{} {what}", if an { "an" } else { "a" })
}

impl BadName {
    pub(crate) fn new(what: &'static str, given: &str, hint: &'static str) -> Self {
        Self { what, given: given.chars().take(100).collect(), hint }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        self.hint
    }
}

/// One call, as the caller asks for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallSpec {
    /// Who is called.
    pub agent: AgentKind,
    /// What is asked. Reaches the model as it is, whatever it begins with.
    pub prompt: String,
    /// The folder the agent works in, as an absolute path.
    pub cwd: PathBuf,
    /// An alias or the name of a model, as the vendor or the operator knows it; none, or an empty text, leaves the choice to
    /// the agent.
    #[serde(default)]
    pub model: Option<String>,
    /// Which conversation it belongs to.
    #[serde(default)]
    pub session: SessionChoice,
    /// Whether the agent may change anything.
    #[serde(default)]
    pub mode: Mode,
    /// Which tools it has.
    #[serde(default)]
    pub tools: ToolChoice,
    /// Which of the agent's built-in tools exist at all, by plain name; none for all of them.
    #[serde(default)]
    pub available_tools: Option<Vec<String>>,
    /// How it decides about tools that need a permission; none for what [`CallSpec::tools`] implies.
    #[serde(default)]
    pub permission_mode: Option<PermissionMode>,
    /// Takes the place of the agent's own system prompt.
    #[serde(default)]
    pub system_prompt: Option<String>,
    /// Stands after the agent's own system prompt.
    #[serde(default)]
    pub append_system_prompt: Option<String>,
    /// Further folders it may work in, as absolute paths.
    #[serde(default)]
    pub add_dirs: Vec<PathBuf>,
    /// A named agent of the vendor (`claude --agent`), which brings its own prompt and tools.
    #[serde(default)]
    pub agent_name: Option<AgentName>,
    /// MCP servers for this call.
    #[serde(default)]
    pub mcp_servers: Vec<McpServer>,
    /// Which of the vendor's settings files count.
    #[serde(default)]
    pub settings: SettingsChoice,
    /// A JSON Schema, as text, that the answer must fit.
    #[serde(default)]
    pub output_schema: Option<String>,
    /// Whether texts are wanted piece by piece while they are written.
    #[serde(default)]
    pub partial_messages: bool,
    /// Whether somebody watches: the same as a wish. Who cannot send pieces sends wholes, and nothing is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watched: bool,
    /// How long one tool may take: a call of an MCP tool, or a shell command. Refused for agents that cannot be held to it.
    #[serde(default, rename = "tool_timeout_ms", with = "crate::event::opt_millis")]
    pub tool_timeout: Option<Duration>,
    /// How many turns the model may take.
    #[serde(default)]
    pub max_turns: Option<u32>,
    /// How much it may cost.
    #[serde(default)]
    pub max_budget_usd: Option<f64>,
    /// What the process may spend.
    #[serde(default)]
    pub limits: Limits,
    /// What it may touch. Always written: a program of another version may have another default, and must not run the agent with more.
    #[serde(default)]
    pub policy: CallPolicy,
}

impl CallSpec {
    /// Returns the same call with a trusted workspace: a confined agent loads its hooks, MCP servers and settings too. An agent
    /// in mode `observe` never does.
    #[must_use]
    pub fn trusting_its_workspace(self) -> Self {
        if self.policy.is_off() || self.mode == Mode::Observe {
            return self;
        }
        let all = vec![SettingSource::User, SettingSource::Project, SettingSource::Local];
        Self { settings: SettingsChoice::Only(all), ..self }
    }

    /// Returns the preset that the call asks for. Mode `observe` narrows a sandbox, and makes none.
    pub fn asked_preset(&self) -> Preset {
        match (self.mode, self.policy.preset) {
            (Mode::Observe, preset) if preset != Preset::Off => preset.within(Preset::Observe),
            (_, preset) => preset,
        }
    }

    /// Returns whether a confined agent writes to the directories of the call.
    pub fn writes_confined(&self) -> bool {
        self.mode == Mode::Execute && self.policy.preset.contradicts_observe()
    }

    /// A call with nothing but a prompt and a directory: a new session, the agent's own model, all tools, the default policy
    /// and limits.
    pub fn new(agent: AgentKind, prompt: impl Into<String>, cwd: impl Into<PathBuf>) -> Self {
        Self {
            agent,
            prompt: prompt.into(),
            cwd: cwd.into(),
            model: None,
            session: SessionChoice::New,
            mode: Mode::Execute,
            tools: ToolChoice::Full,
            available_tools: None,
            permission_mode: None,
            system_prompt: None,
            append_system_prompt: None,
            add_dirs: Vec::new(),
            agent_name: None,
            mcp_servers: Vec::new(),
            settings: SettingsChoice::default(),
            output_schema: None,
            partial_messages: false,
            watched: false,
            tool_timeout: None,
            max_turns: None,
            max_budget_usd: None,
            limits: Limits::default(),
            policy: CallPolicy::default(),
        }
    }
}

/// Whether an agent may change anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It may do what its tools allow.
    #[default]
    Execute,
    /// It can only look: enforced by the agent's own means, not asked for in the prompt.
    Observe,
}

/// Which tools an agent has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// All, without asking.
    #[default]
    Full,
    /// None at all, but for those of [`CallSpec::mcp_servers`].
    None,
    /// These without asking, and all tools of every server in [`CallSpec::mcp_servers`] of which none is named here
    /// (`mcp__<server>__<tool>`); everything else that needs a permission is denied.
    Only(Vec<String>),
}

/// How an agent decides about a tool that needs a permission, when nobody can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// The agent's own default: deny.
    Default,
    /// Edits of files in its folders are allowed.
    AcceptEdits,
    /// Everything is allowed, and the agent's own sandbox is off.
    Bypass,
    /// It may only plan.
    Plan,
    /// What is not allowed by name is denied.
    DontAsk,
}

/// Which of the vendor's settings files an agent reads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingsChoice {
    /// Those of the user; and with policy `off` whatever the agent reads by itself, those of the workspace included.
    #[default]
    AgentDefault,
    /// These only. Hooks, MCP servers and variables of the workspace need [`SettingSource::Project`]. The workspace's
    /// instructions (`CLAUDE.md`, `AGENTS.md`, `GEMINI.md`) are text and come with any source.
    Only(Vec<SettingSource>),
}

/// A place of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingSource {
    /// The user's.
    User,
    /// The workspace's, shared.
    Project,
    /// The workspace's, private.
    Local,
}

impl SettingSource {
    /// Its name, as `claude --setting-sources` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
            Self::Local => "local",
        }
    }
}

/// The name of a vendor's named agent: letters, digits, `_` and `-`, at most 64, never a path or a flag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentName(String);

impl AgentName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for AgentName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hint = "use 1 to 64 letters, digits, `_` and `-`";
        if is_word(text) { Ok(Self(text.to_owned())) } else { Err(BadName::new("agent", text, hint)) }
    }
}

impl TryFrom<String> for AgentName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AgentName> for String {
    fn from(name: AgentName) -> Self {
        name.0
    }
}

/// An MCP server that the agent starts for a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// Its name, which is part of the names of its tools: letters, digits, `_` and `-`.
    pub name: String,
    /// Its executable.
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its variables, which may be secrets.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl McpServer {
    /// Says whether the name can be part of a tool's name without being misread.
    pub fn check_name(&self) -> Result<(), BadName> {
        let hint = "use 1 to 64 letters, digits, `_` and `-`, without `__`";
        // `mcp__a__b__c` must name one server and one tool.
        if is_word(&self.name) && !self.name.contains("__") {
            Ok(())
        } else {
            Err(BadName::new("MCP server", &self.name, hint))
        }
    }
}

fn is_word(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && !text.starts_with('-')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_reads_back_from_its_name_in_any_case() {
        for kind in AgentKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.name().to_uppercase().parse(), Ok(kind));
        }
        let error = "gpt".parse::<AgentKind>().unwrap_err();
        assert_eq!(error.to_string(), "`gpt` is not the name of an agent");
        assert!(error.hint().contains("codex"));
    }

    #[test]
    fn an_agent_name_is_never_a_path_or_a_flag() {
        for bad in ["", "a/b", "a\\b", "..", "a..b", "-x", "é", "a b", &"a".repeat(65)] {
            assert!(bad.parse::<AgentName>().is_err(), "{bad:?}");
        }
        assert_eq!("code_reviewer-2".parse::<AgentName>().unwrap().as_str(), "code_reviewer-2");
    }

    #[test]
    fn policy_is_always_written() {
        let spec = CallSpec::new(AgentKind::Claude, "hi", "/w");
        let json = serde_json::to_value(&spec).unwrap();
        assert_eq!(json["policy"]["preset"], "workspace", "{json}");
    }

    #[test]
    fn a_call_with_only_its_three_fields_is_a_whole_call() {
        let json = r#"{"agent":"claude","prompt":"hi","cwd":"/w"}"#;
        let spec: CallSpec = serde_json::from_str(json).unwrap();
        assert_eq!(spec, CallSpec::new(AgentKind::Claude, "hi", "/w"));
        let again = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<CallSpec>(&again).unwrap(), spec);
    }

    #[test]
    fn a_misspelt_option_is_refused_instead_of_ignored() {
        let json = r#"{"agent":"claude","prompt":"hi","cwd":"/w","toolz":"none"}"#;
        assert!(serde_json::from_str::<CallSpec>(json).unwrap_err().to_string().contains("toolz"));
    }
}
