//! What is known about one installed agent on this machine, as a value.
//!
//! Owns the shape; [`crate::doctor`] finds the values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use model::{AgentKind, CallPolicy, SessionId};
use serde::{Deserialize, Serialize};

use crate::{ModelTables, Version, WorkspaceFiles, environment};

/// Everything [`crate::launch`] needs beside the call itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSetup {
    /// The executable, as an absolute path.
    pub program: PathBuf,
    /// Its version, when it was asked.
    pub version: Option<Version>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The names of models.
    pub models: ModelTables,
    /// The whole environment of the caller; the agent gets what [`environment`] lets through.
    pub inherited: BTreeMap<String, String>,
    /// Further variables that the operator passes on by name; one of [`crate::forbidden_variable`] is refused.
    pub pass_on: BTreeSet<String>,
    /// The folder in which the run's private files will stand: `<spool>/private`, as an absolute path.
    pub private_folder: PathBuf,
    /// The files of the call's workspace ([`crate::inspect_workspace`]).
    pub workspace: WorkspaceFiles,
    /// How long a call of an MCP tool may take when the call itself sets no limit; applied where the agent can be held to it.
    pub tool_timeout: Option<Duration>,
    /// The id for a new session, freshly made: a UUID, which claude insists on.
    pub new_session: SessionId,
    /// What is Switchboard's own on this machine.
    pub host: HostConfig,
}

/// What of a machine is Switchboard's own, and what its operator allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Folders that no confined agent sees: job files, database, configuration.
    pub state: Vec<PathBuf>,
    /// The directory of proofs that a sandbox holds and of the lists of active runs; below one of the directories above, or agents could
    /// forge them.
    pub proofs: Option<PathBuf>,
    /// Where the state folders of policies are made that have their own ([`CallPolicy::private_state`]).
    pub private_state: Option<PathBuf>,
    /// Where the caches of package managers are that confined runs share; none for caches that go with each run.
    pub caches: Option<PathBuf>,
    /// The program `file-tools`, for agents without a shell.
    pub file_tools: Option<PathBuf>,
    /// What no call can go beyond.
    pub ceiling: CallPolicy,
    /// Paths of the home directory that confined agents may read; the rest of it is absent.
    pub expose: Vec<PathBuf>,
    /// Directories of state and configuration that no confined call works in, or above.
    pub guarded: Vec<PathBuf>,
}

impl Default for HostConfig {
    /// Nothing of our own, and no ceiling.
    fn default() -> Self {
        Self {
            state: Vec::new(),
            proofs: None,
            private_state: None,
            caches: None,
            file_tools: None,
            ceiling: CallPolicy::off(),
            expose: Vec::new(),
            guarded: Vec::new(),
        }
    }
}

impl LaunchSetup {
    /// The environment that an agent starts with, before its own additions.
    pub(crate) fn base_environment(&self, kind: AgentKind) -> BTreeMap<String, String> {
        let mut env = environment(kind, &self.inherited);
        env.extend(
            self.pass_on.iter().filter_map(|name| Some((name.clone(), self.inherited.get(name)?.clone()))),
        );
        env
    }
}

/// Something that some versions of an agent can do and others cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Name a new session before it starts.
    AssignSession,
    /// Begin a new session that remembers another.
    ForkSession,
    /// Keep to a JSON Schema.
    OutputSchema,
    /// Stop at a cost.
    Budget,
    /// Ignore settings files by kind.
    SettingSources,
    /// Use the MCP servers of the call and no others.
    StrictMcp,
    /// Say which built-in tools exist.
    ChooseTools,
    /// Send texts piece by piece.
    PartialMessages,
    /// Run with no code-running tool and no settings file (`claude --restricted`).
    Restricted,
    /// Run in a folder that was never trusted by hand.
    SkipTrust,
}

impl Capability {
    /// How the `--help` of an agent shows that it is there.
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

    /// What calls need it for that are refused without; none when they only do with less.
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

    /// All of them.
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

/// What an installed agent can do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capabilities {
    /// It was not asked: taken to be able to do what every tested version can.
    #[default]
    NotAsked,
    /// This, by its own `--help`.
    Known(BTreeSet<Capability>),
}

impl Capabilities {
    /// Reads them from what `--help` prints (for codex: `codex exec --help`).
    pub fn from_help(kind: AgentKind, help: &str) -> Self {
        let words: BTreeSet<&str> = help.lines().filter_map(option_of_line).collect();
        let has = |capability: &Capability| capability.sign(kind).is_some_and(|sign| words.contains(sign));
        Self::Known(Capability::ALL.into_iter().filter(has).collect())
    }

    /// What an agent of this kind could have and lacks, and calls are refused for: the flag, and what needs it.
    pub fn lacks(&self, kind: AgentKind) -> Vec<(&'static str, &'static str)> {
        let lacking = Capability::ALL.into_iter().filter(|capability| !self.has(*capability));
        lacking.filter_map(|capability| Some((capability.sign(kind)?, capability.needed_for()?))).collect()
    }

    /// Whether the agent can do this.
    pub fn has(&self, capability: Capability) -> bool {
        match self {
            // Only the newest tested version has it, and a call is safe without.
            Self::NotAsked => capability != Capability::Restricted,
            Self::Known(known) => known.contains(&capability),
        }
    }
}

/// The long flag or the subcommand that a line of a help text is about.
fn option_of_line(line: &str) -> Option<&str> {
    let mut words = line.split([' ', ',', '=', '[', '<']).filter(|word| !word.is_empty());
    let first = words.next()?;
    if first.starts_with('-') && !first.starts_with("--") {
        return words.next().filter(|word| word.starts_with("--"));
    }
    // An indented word in the first column of a list; prose is indented further or not at all.
    line.starts_with("  ").then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_from_their_own_lines_and_not_from_prose() {
        let help = "Options:\n  --session-id <uuid>   Use one\n  -r, --resume [value]  see --fork-session\n      \
                    --skip-trust  Trust\n";
        let claude = Capabilities::from_help(AgentKind::Claude, help);
        assert!(claude.has(Capability::AssignSession));
        assert!(!claude.has(Capability::ForkSession));
        assert!(Capabilities::from_help(AgentKind::Gemini, help).has(Capability::SkipTrust));
    }

    #[test]
    fn the_subcommand_of_codex_is_a_capability() {
        let help = "Commands:\n  resume  Resume a previous session\n  fork    Fork a previous session\n";
        assert!(Capabilities::from_help(AgentKind::Codex, help).has(Capability::ForkSession));
        assert!(!Capabilities::from_help(AgentKind::Codex, "  resume  x\n").has(Capability::ForkSession));
    }

    #[test]
    fn an_agent_that_was_not_asked_is_not_taken_for_the_newest() {
        assert!(Capabilities::NotAsked.has(Capability::ForkSession));
        assert!(!Capabilities::NotAsked.has(Capability::Restricted));
    }
}
