//! A call: the request of a caller to an agent.
//!
//! Independent of vendors; `agents::launch` translates it to the flags of each CLI.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{CallPolicy, JobGroup, Limits, Preset, ProfileName, SessionChoice, VerifySpec};

/// A coding-agent program that can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AgentKind {
    /// Anthropic's Claude Code.
    Claude,
    /// `OpenAI`'s Codex.
    Codex,
    /// Google's Gemini CLI.
    Gemini,
    /// Switchboard's scripted agent, for tests and demonstrations.
    Rehearsal,
    /// Any other agent: a profile describes it, built in or from the operator's configuration.
    Profiled(ProfileName),
}

impl AgentKind {
    /// The agents with code of their own.
    pub const NATIVE: [Self; 4] = [Self::Claude, Self::Codex, Self::Gemini, Self::Rehearsal];

    /// Returns the name. For a native agent it is also the name of the executable.
    pub fn name(&self) -> &str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Rehearsal => "rehearsal",
            Self::Profiled(name) => name.as_str(),
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

    /// Accepts every valid name: only the configuration knows which profiles exist.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let native = Self::NATIVE.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text));
        native.map_or_else(|| text.parse().map(Self::Profiled), Ok)
    }
}

impl TryFrom<String> for AgentKind {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AgentKind> for String {
    fn from(kind: AgentKind) -> Self {
        kind.name().to_owned()
    }
}

/// An invalid name of an agent, policy, host or MCP server.
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

    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        self.hint
    }
}

/// A call as the caller requests it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct CallSpec {
    /// The agent to call.
    pub agent: AgentKind,
    /// The prompt. Reaches the model unchanged, even if it starts with a dash or a slash.
    pub prompt: String,
    /// The working directory, as an absolute path.
    pub cwd: PathBuf,
    /// A model name or an alias of the vendor or the operator. `None` or an empty string: the agent's default.
    #[serde(default)]
    pub model: Option<String>,
    /// The effort of the model, as the agent names it. `None`: the agent's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<EffortName>,
    /// Files of images that belong to the prompt, as absolute paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<PathBuf>,
    /// Uses the agent's protocol for both directions, where it has one, instead of a single prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// The session to start, resume or fork.
    #[serde(default)]
    pub session: SessionChoice,
    /// Read-only or not.
    #[serde(default)]
    pub mode: Mode,
    /// The tools that need no permission.
    #[serde(default)]
    pub tools: ToolChoice,
    /// The built-in tools that the agent has at all, by plain name. `None`: all.
    #[serde(default)]
    pub available_tools: Option<Vec<String>>,
    /// The handling of tools that need a permission. `None`: implied by [`CallSpec::tools`].
    #[serde(default)]
    pub permission_mode: Option<PermissionMode>,
    /// Replaces the agent's system prompt.
    #[serde(default)]
    pub system_prompt: Option<String>,
    /// Appended to the agent's system prompt.
    #[serde(default)]
    pub append_system_prompt: Option<String>,
    /// Additional workspaces, as absolute paths.
    #[serde(default)]
    pub add_dirs: Vec<PathBuf>,
    /// Works in a private checkout of the git repository around [`CallSpec::cwd`]. `None`: as configured for the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<bool>,
    /// The command that verifies the work of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifySpec>,
    /// Fails the call if it succeeds without changing a file in the git worktree.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expect_changes: bool,
    /// The group of the job. Only the job service sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<JobGroup>,
    /// A named agent of the vendor (`claude --agent`) with its own prompt and tools.
    #[serde(default)]
    pub agent_name: Option<AgentName>,
    /// MCP servers for this call.
    #[serde(default)]
    pub mcp_servers: Vec<McpServer>,
    /// The settings files that the agent loads.
    #[serde(default)]
    pub settings: SettingsChoice,
    /// A JSON Schema for the answer, as text.
    #[serde(default)]
    pub output_schema: Option<String>,
    /// Requires streaming of partial texts. Rejected if the agent does not support it.
    #[serde(default)]
    pub partial_messages: bool,
    /// Requests streaming of partial texts where the agent supports it, because a client follows the output. Never a reason to
    /// reject the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watched: bool,
    /// The timeout of one tool: an MCP tool or a shell command. Rejected for agents that have no such timeout.
    #[serde(default, rename = "tool_timeout_ms", with = "crate::event::opt_millis")]
    pub tool_timeout: Option<Duration>,
    /// The turn limit of the model.
    #[serde(default)]
    pub max_turns: Option<u32>,
    /// The cost limit.
    #[serde(default)]
    pub max_budget_usd: Option<f64>,
    /// The limits of the process.
    #[serde(default)]
    pub limits: Limits,
    /// The sandbox policy. Always serialized: another version may have a wider default.
    #[serde(default)]
    pub policy: CallPolicy,
}

impl CallSpec {
    /// Returns the call with a trusted workspace: a sandboxed agent also loads the hooks, MCP servers and settings of the
    /// workspace. An agent in mode `observe` never does.
    #[must_use]
    pub fn with_trusted_workspace(self) -> Self {
        if self.policy.is_off() || self.mode == Mode::Observe {
            return self;
        }
        let all = vec![SettingSource::User, SettingSource::Project, SettingSource::Local];
        Self { settings: SettingsChoice::Only(all), ..self }
    }

    /// Returns the requested preset. Mode `observe` narrows a sandbox but does not create one.
    pub fn requested_preset(&self) -> Preset {
        match (self.mode, self.policy.preset) {
            (Mode::Observe, preset) if preset != Preset::Off => preset.within(Preset::Observe),
            (_, preset) => preset,
        }
    }

    /// Returns whether a sandboxed agent writes to the workspaces.
    pub fn writes_confined(&self) -> bool {
        self.mode == Mode::Execute && self.policy.preset.contradicts_observe()
    }

    /// Returns the call limited by the operator's ceiling.
    pub fn within(&self, ceiling: &CallPolicy) -> Cow<'_, Self> {
        if ceiling.is_off() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self { policy: self.policy.within(ceiling), ..self.clone() })
    }

    /// Returns a call with defaults: a new session, the agent's default model, all tools, the default policy and limits.
    pub fn new(agent: AgentKind, prompt: impl Into<String>, cwd: impl Into<PathBuf>) -> Self {
        Self {
            agent,
            prompt: prompt.into(),
            cwd: cwd.into(),
            model: None,
            effort: None,
            images: Vec::new(),
            live: false,
            session: SessionChoice::New,
            mode: Mode::Execute,
            tools: ToolChoice::Full,
            available_tools: None,
            permission_mode: None,
            system_prompt: None,
            append_system_prompt: None,
            add_dirs: Vec::new(),
            worktree: None,
            verify: None,
            expect_changes: false,
            group: None,
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

/// Read-only or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The agent may use all its tools.
    #[default]
    Execute,
    /// Read-only, enforced by flags of the agent rather than by the prompt.
    Observe,
}

/// The tools that an agent may use without a permission prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// All tools.
    #[default]
    Full,
    /// None, except for the tools of [`CallSpec::mcp_servers`].
    None,
    /// The listed tools, and all tools of each server in [`CallSpec::mcp_servers`] without a listed tool
    /// (`mcp__<server>__<tool>`). Any other tool that needs a permission is denied.
    Only(Vec<String>),
}

/// The handling of tools that need a permission. A call has no user to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// The agent's default: deny.
    Default,
    /// Allow edits of files in the workspaces.
    AcceptEdits,
    /// Allow everything, and turn off the agent's own sandbox.
    Bypass,
    /// Plan only.
    Plan,
    /// Deny every tool that is not allowed by name.
    DontAsk,
}

/// The vendor's settings files that an agent loads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingsChoice {
    /// The user's settings. With policy `off` also everything that the agent loads by default, settings of the workspace
    /// included.
    #[default]
    AgentDefault,
    /// Only these. Hooks, MCP servers and variables of the workspace need [`SettingSource::Project`]. Instructions of the
    /// workspace (`CLAUDE.md`, `AGENTS.md`, `GEMINI.md`) are text and are loaded with any source.
    Only(Vec<SettingSource>),
}

/// A source of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingSource {
    /// The user's settings.
    User,
    /// The shared settings of the workspace.
    Project,
    /// The private settings of the workspace.
    Local,
}

impl SettingSource {
    /// Returns the name that `claude --setting-sources` accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
            Self::Local => "local",
        }
    }
}

/// The name of a vendor's named agent: at most 64 letters, digits, `_` and `-`. Never a path or a flag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentName(String);

impl AgentName {
    /// Returns the name.
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

/// A level of effort, such as `high`: at most 32 letters, digits, `_` and `-`. Agents differ in their levels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EffortName(String);

impl EffortName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EffortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for EffortName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hint = "use a level such as `low`, `medium` or `high`";
        if is_word(text) && text.len() <= 32 {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(BadName::new("effort level", text, hint))
        }
    }
}

impl TryFrom<String> for EffortName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<EffortName> for String {
    fn from(name: EffortName) -> Self {
        name.0
    }
}

/// An MCP server that the agent spawns for a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpServer {
    /// The name, a part of the names of its tools: letters, digits, `_` and `-`.
    pub name: String,
    /// The executable.
    pub command: String,
    /// The arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// The environment variables, possibly secret.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl McpServer {
    /// Checks that the name is unambiguous as a part of a tool's name.
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
    fn agent_kind_parses_in_any_case() {
        let profiled = AgentKind::Profiled(ProfileName::built_in("opencode"));
        for kind in AgentKind::NATIVE.into_iter().chain([profiled]) {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.name().to_uppercase().parse(), Ok(kind));
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(serde_json::from_str::<AgentKind>(&json).unwrap(), kind);
        }
        let error = "g p t".parse::<AgentKind>().unwrap_err();
        assert_eq!(error.to_string(), "`g p t` is not the name of an agent");
    }

    #[test]
    fn agent_name_rejects_paths_and_flags() {
        for bad in ["", "a/b", "a\\b", "..", "a..b", "-x", "é", "a b", &"a".repeat(65)] {
            assert!(bad.parse::<AgentName>().is_err(), "{bad:?}");
        }
        assert_eq!("code_reviewer-2".parse::<AgentName>().unwrap().as_str(), "code_reviewer-2");
    }

    #[test]
    fn policy_is_always_serialized() {
        let spec = CallSpec::new(AgentKind::Claude, "hi", "/w");
        let json = serde_json::to_value(&spec).unwrap();
        assert_eq!(json["policy"]["preset"], "workspace", "{json}");
    }

    #[test]
    fn omitted_call_fields_get_defaults() {
        let json = r#"{"agent":"claude","prompt":"hi","cwd":"/w"}"#;
        let spec: CallSpec = serde_json::from_str(json).unwrap();
        assert_eq!(spec, CallSpec::new(AgentKind::Claude, "hi", "/w"));
        let again = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<CallSpec>(&again).unwrap(), spec);
    }

    #[test]
    fn unknown_call_field_is_rejected() {
        let json = r#"{"agent":"claude","prompt":"hi","cwd":"/w","toolz":"none"}"#;
        assert!(serde_json::from_str::<CallSpec>(json).unwrap_err().to_string().contains("toolz"));
    }
}
