//! Defaults of a provider, and the location of its programs and files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agents::{AgentProfiles, MAX_RESUME_ATTEMPTS, ModelTables};
use model::{AgentKind, CallPolicy, Limits};

/// The default turn limit of one run, for agents that have one.
const TURNS_PER_RUN: u32 = 25;

/// The settings of a provider.
///
/// ```
/// use std::time::Duration;
/// use provider::{ClaudeCodeProvider, ProviderConfig};
///
/// let provider = ClaudeCodeProvider::from_config(ProviderConfig {
///     timeout: Duration::from_mins(10),
///     model: Some("sonnet".to_owned()),
///     ..ProviderConfig::default()
/// });
/// assert_eq!(provider.max_turns(), Some(25));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderConfig {
    /// The turns of each run before it is resumed. `None` for the default: 25 for claude; codex and gemini have no turn limit
    /// and reject a number.
    pub max_turns: Option<u32>,
    /// The tools that the agent may use, by the vendor's names or rules; empty for all of them, without permission prompts.
    pub allowed_tools: Vec<String>,
    /// The time limit of a request, including resumes and waits.
    pub timeout: Duration,
    /// The maximum time without output; `None` for no limit.
    pub idle_timeout: Option<Duration>,
    /// The working directory of the agent; `None` for that of this program.
    pub working_dir: Option<PathBuf>,
    /// The maximum number of resumes after a used-up turn limit.
    pub max_resume_attempts: u32,
    /// The model: a vendor alias such as `sonnet`, or a full name. `None` or an empty string leaves the choice to the agent.
    pub model: Option<String>,
    /// The known agents: the built-in ones, and those that you add.
    pub profiles: AgentProfiles,
    /// Your own model aliases. None are built in.
    pub models: ModelTables,
    /// Streams text while it is generated. Supported by claude; gemini always does; codex rejects it.
    pub partial_messages: bool,
    /// The sandbox policy: by default `workspace`, as far as the machine can enforce it. `CallPolicy::off()` disables the
    /// sandbox. The agent of a session can have its own ([`crate::AgentSpec::policy`]).
    pub policy: CallPolicy,
    /// The agent's executable; `None` to search in `PATH`.
    pub program: Option<PathBuf>,
    /// The supervisor program.
    pub supervisor: SupervisorProgram,
    /// The environment from which the agent's variables are selected (`PATH`, `HOME`, proxies, vendor variables; no others).
    /// `None` for that of this program at each request.
    pub environment: Option<BTreeMap<String, String>>,
    /// Further variables that are passed to the agent.
    pub pass_on: BTreeSet<String>,
    /// The parent directory of request directories; `None` for the temporary directory of the environment.
    pub spools: Option<PathBuf>,
    /// The directory of session records for [`crate::Provider::resume_session`]; `None` for
    /// `$XDG_STATE_HOME/switchboard/sessions` or `~/.local/state/switchboard/sessions` of the environment.
    pub sessions: Option<PathBuf>,
}

/// The location of the supervisor program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SupervisorProgram {
    /// This program itself, if it has called [`crate::run_if_asked`]; else `switchboard-supervisor` beside it or in `PATH`.
    #[default]
    Auto,
    /// This path.
    At(PathBuf),
}

impl Default for ProviderConfig {
    fn default() -> Self {
        Self {
            max_turns: None,
            allowed_tools: Vec::new(),
            timeout: Duration::from_hours(1),
            idle_timeout: None,
            working_dir: None,
            max_resume_attempts: MAX_RESUME_ATTEMPTS,
            model: None,
            profiles: AgentProfiles::default(),
            models: ModelTables::default(),
            partial_messages: false,
            policy: CallPolicy::default(),
            program: None,
            supervisor: SupervisorProgram::Auto,
            environment: None,
            pass_on: BTreeSet::new(),
            spools: None,
            sessions: None,
        }
    }
}

impl ProviderConfig {
    /// Returns the turn limit of one run; `None` for an agent without one.
    pub(crate) fn turns_per_run(&self, kind: AgentKind) -> Option<u32> {
        let own = match kind {
            AgentKind::Claude | AgentKind::Rehearsal => Some(TURNS_PER_RUN),
            AgentKind::Codex | AgentKind::Gemini | AgentKind::Profiled(_) => None,
        };
        self.max_turns.or(own)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { wall: Some(self.timeout), idle: self.idle_timeout, ..Limits::default() }
    }

    /// Returns the environment of the request: the configured one, or this program's.
    pub(crate) fn resolve_environment(&self) -> BTreeMap<String, String> {
        self.environment.clone().unwrap_or_else(process_environment)
    }
}

/// Returns all variables that are valid UTF-8. Other values cannot be passed on; from `PATH` only invalid directories are
/// dropped.
fn process_environment() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok()?;
        let value =
            if name == "PATH" { value.to_string_lossy().into_owned() } else { value.into_string().ok()? };
        Some((name, value))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Returns the directory in a variable, if it is an absolute path.
pub(crate) fn directory_variable(environment: &BTreeMap<String, String>, name: &str) -> Option<PathBuf> {
    environment.get(name).map(PathBuf::from).filter(|directory| directory.is_absolute())
}

/// Returns the state directory, the same for the library and the command line.
pub(crate) fn state_directory(environment: &BTreeMap<String, String>) -> Option<PathBuf> {
    let state = directory_variable(environment, "XDG_STATE_HOME")
        .or_else(|| Some(directory_variable(environment, "HOME")?.join(".local/state")));
    Some(state?.join("switchboard"))
}

/// Returns the directory of this program.
pub(crate) fn own_directory() -> Option<PathBuf> {
    std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_config_has_documented_values() {
        let config = ProviderConfig::default();
        assert_eq!(config.turns_per_run(AgentKind::Claude), Some(25));
        assert!(config.allowed_tools.is_empty() && config.working_dir.is_none() && config.model.is_none());
        assert_eq!(config.timeout, Duration::from_hours(1));
        assert_eq!(config.max_resume_attempts, 5);
        assert_eq!(config.limits().wall, Some(Duration::from_hours(1)));
    }

    #[test]
    fn agents_without_turn_limit_get_none_by_default() {
        for kind in [AgentKind::Codex, AgentKind::Gemini] {
            assert_eq!(ProviderConfig::default().turns_per_run(kind), None);
            // An explicit limit is passed on, so that the agent's rejection is returned.
            let asked = ProviderConfig { max_turns: Some(3), ..ProviderConfig::default() };
            assert_eq!(asked.turns_per_run(kind), Some(3));
        }
    }

    #[test]
    fn configured_environment_replaces_the_programs() {
        let given = BTreeMap::from([("HOME".to_owned(), "/home/ana".to_owned())]);
        let config = ProviderConfig { environment: Some(given.clone()), ..ProviderConfig::default() };
        assert_eq!(config.resolve_environment(), given);
        assert!(!ProviderConfig::default().resolve_environment().is_empty());
    }
}
