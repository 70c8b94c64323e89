//! The CLIs of the trials: exactly these versions, from the project's tools directory, never from PATH.

use std::fmt;
use std::path::PathBuf;

use agents::{AgentProfiles, LaunchRules};
use model::AgentKind;
use model_api::cli::{Agent, Cli};

/// The remedy for a missing CLI.
pub const REMEDY: &str = "not installed: run scripts/agents-install";

/// The newest tested version of each, and the oldest claude, which reports less.
const VERSIONS: [(Agent, &str); 7] = [
    (Agent::Claude, "2.1.325"),
    (Agent::Claude, "2.1.197"),
    (Agent::Codex, "0.166.0"),
    (Agent::Gemini, "0.61.0"),
    (Agent::OpenCode, "1.18.33"),
    (Agent::Qwen, "0.24.4"),
    (Agent::Kimi, "2.1.0"),
];

/// A pinned CLI.
#[derive(Clone, Debug)]
pub struct Pinned {
    pub kind: AgentKind,
    pub version: &'static str,
    /// The installation. `None` if it is missing.
    pub installed: Option<Cli>,
}

impl fmt::Display for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.kind, self.version)
    }
}

/// Returns all of them, installed or not.
pub fn all() -> Vec<Pinned> {
    let found = tools().map(|tools| Cli::installed(&tools)).unwrap_or_default();
    let installed = |agent: Agent, version: &str| {
        found.iter().find(|cli| cli.agent == agent && cli.version == version).cloned()
    };
    VERSIONS
        .map(|(agent, version)| Pinned {
            kind: kind_of(agent),
            version,
            installed: installed(agent, version),
        })
        .into()
}

impl Pinned {
    /// Returns whether it leaves its commands to the client.
    pub fn needs_terminals(&self) -> bool {
        let profiles = AgentProfiles::default();
        let launch = profiles.get(self.kind).map(|profile| &profile.launch);
        matches!(launch, Some(LaunchRules::Acp(rules)) if rules.needs_terminals)
    }

    /// Returns whether it is driven through the Agent Client Protocol.
    pub fn speaks_acp(&self) -> bool {
        matches!(self.kind, AgentKind::Profiled(_))
    }
}

fn kind_of(agent: Agent) -> AgentKind {
    match agent {
        Agent::Claude => AgentKind::Claude,
        Agent::Codex => AgentKind::Codex,
        Agent::Gemini => AgentKind::Gemini,
        acp => acp.name().parse().unwrap(),
    }
}

/// Returns the directory of `scripts/agents-install`.
fn tools() -> Option<PathBuf> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))
}
