//! The CLIs that the trials run with: exactly these versions, from the project's own folder of tools, never from PATH.

use std::fmt;
use std::path::PathBuf;

use model::AgentKind;
use model_api::cli::{Agent, Cli};

/// What to do about one that is missing.
pub const REMEDY: &str = "not installed: run scripts/agents-install";

/// The newest tested version of each, and the oldest claude, whose stream says less.
const VERSIONS: [(AgentKind, &str); 4] = [
    (AgentKind::Claude, "2.1.325"),
    (AgentKind::Claude, "2.1.197"),
    (AgentKind::Codex, "0.166.0"),
    (AgentKind::Gemini, "0.61.0"),
];

/// A CLI that the trials are written for.
#[derive(Clone, Debug)]
pub struct Pinned {
    pub kind: AgentKind,
    pub version: &'static str,
    /// As it was found; none when it was not.
    pub installed: Option<Cli>,
}

impl fmt::Display for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.kind, self.version)
    }
}

/// All of them, installed or not.
pub fn all() -> Vec<Pinned> {
    let found = tools().map(|tools| Cli::installed(&tools)).unwrap_or_default();
    VERSIONS.map(|(kind, version)| Pinned { kind, version, installed: pick(&found, kind, version) }).into()
}

fn pick(found: &[Cli], kind: AgentKind, version: &str) -> Option<Cli> {
    found.iter().find(|cli| kind_of(cli.agent) == kind && cli.version == version).cloned()
}

fn kind_of(agent: Agent) -> AgentKind {
    match agent {
        Agent::Claude => AgentKind::Claude,
        Agent::Codex => AgentKind::Codex,
        Agent::Gemini => AgentKind::Gemini,
    }
}

/// Where `scripts/agents-install` puts them.
fn tools() -> Option<PathBuf> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))
}
