//! The launch parameters of an installed agent on this machine.
//!
//! Owns the types; [`crate::doctor`] determines the values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::{AgentKind, CallPolicy, CheckoutSource, SessionId};
use serde::{Deserialize, Serialize};

use crate::{AgentProfile, ImageFile, ModelTables, Version, WorkspaceFiles, environment};

/// The inputs of [`crate::launch`] besides the call.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchSetup {
    /// The agent.
    pub profile: Arc<AgentProfile>,
    /// The executable, as an absolute path.
    pub program: PathBuf,
    /// The version, if it was probed.
    pub version: Option<Version>,
    /// The capabilities.
    pub capabilities: Capabilities,
    /// The model names.
    pub models: ModelTables,
    /// The complete environment of the caller; [`environment`] filters it.
    pub inherited: BTreeMap<String, String>,
    /// Additional variables that the operator passes through. Those of [`crate::forbidden_variable`] are rejected.
    pub pass_on: BTreeSet<String>,
    /// The images of the call ([`crate::read_images`]).
    pub images: Vec<ImageFile>,
    /// The directory of the run's private files, `<spool>/private`, as an absolute path.
    pub private_directory: PathBuf,
    /// The files of the workspace ([`crate::inspect_workspace`]).
    pub workspace: WorkspaceFiles,
    /// The default timeout of MCP tools, for agents that support one.
    pub tool_timeout: Option<Duration>,
    /// The id of a new session: a fresh UUID, as claude requires.
    pub new_session: SessionId,
    /// The configuration of this host.
    pub host: HostConfig,
    /// The private checkout in which the agent works.
    pub checkout: Option<CheckoutAccess>,
}

/// The access of an agent to the repository behind its private checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckoutAccess {
    /// The checkout and its repository.
    pub source: CheckoutSource,
    /// The directories of the objects that it borrows.
    pub borrowed_objects: Vec<PathBuf>,
}

/// Switchboard's own paths on this host, and the operator's restrictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Directories that are hidden from sandboxed agents: job files, database, configuration.
    pub state: Vec<PathBuf>,
    /// The directory of self-test results and of the lists of active runs. Inside of a hidden directory, or agents could forge
    /// them.
    pub proofs: Option<PathBuf>,
    /// The parent of the private state directories ([`CallPolicy::private_state`]).
    pub private_state: Option<PathBuf>,
    /// The parent of the shared package-manager caches. `None`: caches are private to each run.
    pub caches: Option<PathBuf>,
    /// The program `file-tools`, for agents without a shell.
    pub file_tools: Option<PathBuf>,
    /// The program `terminal-host`, for agents that run their commands through the client.
    pub terminal_host: Option<PathBuf>,
    /// The policy that no call can exceed.
    pub ceiling: CallPolicy,
    /// Paths of the home directory that sandboxed agents may read; the rest is hidden.
    pub expose: Vec<PathBuf>,
    /// Directories of state and configuration that no workspace may be in or contain.
    pub guarded: Vec<PathBuf>,
    /// The directory of private checkouts, inside of a guarded one.
    pub checkouts: Option<PathBuf>,
}

impl Default for HostConfig {
    /// Returns a configuration without paths and ceiling.
    fn default() -> Self {
        Self {
            state: Vec::new(),
            proofs: None,
            private_state: None,
            caches: None,
            file_tools: None,
            terminal_host: None,
            ceiling: CallPolicy::off(),
            expose: Vec::new(),
            guarded: Vec::new(),
            checkouts: None,
        }
    }
}

impl LaunchSetup {
    /// Returns the environment of an agent before the agent-specific additions.
    pub(crate) fn base_environment(&self) -> BTreeMap<String, String> {
        let mut env = environment(&self.profile.variables, &self.inherited);
        env.extend(
            self.pass_on.iter().filter_map(|name| Some((name.clone(), self.inherited.get(name)?.clone()))),
        );
        env
    }
}

/// A capability that depends on the version of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Assign the id of a new session.
    AssignSession,
    /// Fork a session.
    ForkSession,
    /// Accept a JSON Schema for the answer.
    OutputSchema,
    /// Stop at a cost limit.
    Budget,
    /// Select settings files.
    SettingSources,
    /// Use only the MCP servers of the call.
    StrictMcp,
    /// Select built-in tools.
    ChooseTools,
    /// Stream partial texts.
    PartialMessages,
    /// Run without code execution and settings files (`claude --restricted`).
    Restricted,
    /// Run in an untrusted directory.
    SkipTrust,
}

impl Capability {
    /// Returns the flag or subcommand in `--help` that proves the capability.
    fn sign(self, kind: AgentKind) -> Option<&'static str> {
        Some(match (kind, self) {
            (AgentKind::Claude | AgentKind::Gemini, Self::AssignSession) => "--session-id",
            (AgentKind::Claude, Self::ForkSession) => "--fork-session",
            (AgentKind::Codex, Self::ForkSession) => "fork",
            (AgentKind::Claude, Self::OutputSchema) => "--json-schema",
            (AgentKind::Codex, Self::OutputSchema) => "--output-schema",
            (AgentKind::Claude, Self::Budget) => "--max-budget-usd",
            (AgentKind::Claude, Self::SettingSources) => "--setting-sources",
            (AgentKind::Claude, Self::StrictMcp) => "--strict-mcp-config",
            (AgentKind::Claude, Self::ChooseTools) => "--tools",
            (AgentKind::Claude, Self::PartialMessages) => "--include-partial-messages",
            (AgentKind::Claude, Self::Restricted) => "--restricted",
            (AgentKind::Gemini, Self::SkipTrust) => "--skip-trust",
            _ => return None,
        })
    }

    /// Returns the options that are rejected without the capability. `None` if calls degrade gracefully.
    pub(crate) fn needed_for(self) -> Option<&'static str> {
        match self {
            Self::ForkSession => Some("a fork of a session"),
            Self::OutputSchema => Some("an output schema"),
            Self::Budget => Some("a limit on the cost"),
            Self::SettingSources => Some("mode `observe` and every policy, unless the workspace is trusted"),
            Self::StrictMcp => Some("mode `observe`, every policy and MCP servers"),
            Self::ChooseTools => Some("mode `observe` and the choice of no tools"),
            Self::AssignSession | Self::PartialMessages | Self::Restricted | Self::SkipTrust => None,
        }
    }

    /// All capabilities.
    pub const ALL: [Self; 10] = [
        Self::AssignSession,
        Self::ForkSession,
        Self::OutputSchema,
        Self::Budget,
        Self::SettingSources,
        Self::StrictMcp,
        Self::ChooseTools,
        Self::PartialMessages,
        Self::Restricted,
        Self::SkipTrust,
    ];
}

/// The capabilities of an installed agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capabilities {
    /// Not probed: assumes the capabilities that all tested versions share.
    #[default]
    NotAsked,
    /// Read from `--help`.
    Known(BTreeSet<Capability>),
}

impl Capabilities {
    /// Parses the output of `--help` (for codex: `codex exec --help`).
    pub fn from_help(kind: AgentKind, help: &str) -> Self {
        let words: BTreeSet<&str> = help.lines().filter_map(option_of_line).collect();
        let has = |capability: &Capability| capability.sign(kind).is_some_and(|sign| words.contains(sign));
        Self::Known(Capability::ALL.into_iter().filter(has).collect())
    }

    /// Returns the missing flags that calls are rejected for, each with the options that need it.
    pub fn lacks(&self, kind: AgentKind) -> Vec<(&'static str, &'static str)> {
        let lacking = Capability::ALL.into_iter().filter(|capability| !self.has(*capability));
        lacking.filter_map(|capability| Some((capability.sign(kind)?, capability.needed_for()?))).collect()
    }

    /// Returns whether the agent has a capability.
    pub fn has(&self, capability: Capability) -> bool {
        match self {
            // Only the newest tested version has it, and calls are safe without it.
            Self::NotAsked => capability != Capability::Restricted,
            Self::Known(known) => known.contains(&capability),
        }
    }
}

/// Returns the long flag or the subcommand that a line of a help text describes.
fn option_of_line(line: &str) -> Option<&str> {
    let mut words = line.split([' ', ',', '=', '[', '<']).filter(|word| !word.is_empty());
    let first = words.next()?;
    if first.starts_with('-') && !first.starts_with("--") {
        return words.next().filter(|word| word.starts_with("--"));
    }
    // An indented word in the first column of a list. Prose is indented further or not at all.
    line.starts_with("  ").then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_in_help_prose_are_ignored() {
        let help = "Options:\n  --session-id <uuid>   Use one\n  -r, --resume [value]  see --fork-session\n      \
                    --skip-trust  Trust\n";
        let claude = Capabilities::from_help(AgentKind::Claude, help);
        assert!(claude.has(Capability::AssignSession));
        assert!(!claude.has(Capability::ForkSession));
        assert!(Capabilities::from_help(AgentKind::Gemini, help).has(Capability::SkipTrust));
    }

    #[test]
    fn codex_fork_subcommand_is_a_capability() {
        let help = "Commands:\n  resume  Resume a previous session\n  fork    Fork a previous session\n";
        assert!(Capabilities::from_help(AgentKind::Codex, help).has(Capability::ForkSession));
        assert!(!Capabilities::from_help(AgentKind::Codex, "  resume  x\n").has(Capability::ForkSession));
    }

    #[test]
    fn unprobed_agent_lacks_newest_capability() {
        assert!(Capabilities::NotAsked.has(Capability::ForkSession));
        assert!(!Capabilities::NotAsked.has(Capability::Restricted));
    }
}
