//! What a provider does unless a request says otherwise, and where it finds things.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agents::{MAX_RESUME_ATTEMPTS, ModelTables};
use model::{AgentKind, CallPolicy, Limits};

/// The turns of one run of an agent that can be bounded so, unless somebody says otherwise.
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
    /// How many turns each run may take before it is continued. None for the provider's own: 25 for claude; codex and
    /// gemini cannot be bounded so, and refuse a number.
    pub max_turns: Option<u32>,
    /// The tools that the agent may use, by the vendor's names or rules; empty for all of them, without asking.
    pub allowed_tools: Vec<String>,
    /// How long a request may take in all, its continuations and their waits included.
    pub timeout: Duration,
    /// How long the agent may stay silent; none for as long as it likes.
    pub idle_timeout: Option<Duration>,
    /// The folder that the agent works in; none for that of this program.
    pub working_dir: Option<PathBuf>,
    /// How often a request whose turns are used up is continued.
    pub max_resume_attempts: u32,
    /// The model: an alias of the vendor such as `sonnet`, or a full name. None, or an empty text, leaves the choice to the agent.
    pub model: Option<String>,
    /// Aliases of your own for models. None are built in.
    pub models: ModelTables,
    /// Whether events come piece by piece while a text is written. Claude can; gemini always does; codex refuses.
    pub partial_messages: bool,
    /// What the agent may touch: by default `workspace`, as far as the machine can enforce it. `CallPolicy::off()` confines
    /// nothing. An agent of a session may have its own ([`crate::AgentSpec::policy`]).
    pub policy: CallPolicy,
    /// The agent's executable; none to look for it in `PATH`.
    pub program: Option<PathBuf>,
    /// The program that watches over each run.
    pub supervisor: SupervisorProgram,
    /// The environment that the agent's own is picked from (`PATH`, `HOME`, proxies, the vendor's own variables; never
    /// more). None for that of this program, as it is at each request.
    pub environment: Option<BTreeMap<String, String>>,
    /// Further variables that are passed on to the agent, by name.
    pub pass_on: BTreeSet<String>,
    /// Where the folders of running requests are made; none for the temporary folder of the environment.
    pub spools: Option<PathBuf>,
    /// Where sessions are written down for [`crate::Provider::resume_session`]; none for
    /// `$XDG_STATE_HOME/switchboard/sessions` or `~/.local/state/switchboard/sessions` of the environment.
    pub sessions: Option<PathBuf>,
}

/// Where the supervisor's program is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SupervisorProgram {
    /// This program itself, if it has called [`crate::run_if_asked`]; else the `switchboard-supervisor` beside it or in
    /// `PATH`.
    #[default]
    Auto,
    /// At this path.
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
    /// The turns of one run of this agent; none when it cannot be bounded so.
    pub(crate) fn turns_per_run(&self, kind: AgentKind) -> Option<u32> {
        let own = match kind {
            AgentKind::Claude | AgentKind::Rehearsal => Some(TURNS_PER_RUN),
            AgentKind::Codex | AgentKind::Gemini => None,
        };
        self.max_turns.or(own)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { wall: Some(self.timeout), idle: self.idle_timeout, ..Limits::default() }
    }

    /// The environment of the request: the given one, or this program's.
    pub(crate) fn surroundings(&self) -> BTreeMap<String, String> {
        self.environment.clone().unwrap_or_else(of_this_process)
    }
}

/// Every variable that is text. What is not cannot be handed on; of `PATH` only the folders that are not are lost.
fn of_this_process() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        let name = name.into_string().ok()?;
        let value =
            if name == "PATH" { value.to_string_lossy().into_owned() } else { value.into_string().ok()? };
        Some((name, value))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// The folder that a variable names, if it names one outright.
pub(crate) fn folder_of(surroundings: &BTreeMap<String, String>, name: &str) -> Option<PathBuf> {
    surroundings.get(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

/// Where Switchboard keeps what outlives a request, for the library and the command line alike.
pub(crate) fn state_folder(surroundings: &BTreeMap<String, String>) -> Option<PathBuf> {
    let state = folder_of(surroundings, "XDG_STATE_HOME")
        .or_else(|| Some(folder_of(surroundings, "HOME")?.join(".local/state")));
    Some(state?.join("switchboard"))
}

/// The folder of the running program, in which its companions stand.
pub(crate) fn own_folder() -> Option<PathBuf> {
    std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_design() {
        let config = ProviderConfig::default();
        assert_eq!(config.turns_per_run(AgentKind::Claude), Some(25));
        assert!(config.allowed_tools.is_empty() && config.working_dir.is_none() && config.model.is_none());
        assert_eq!(config.timeout, Duration::from_hours(1));
        assert_eq!(config.max_resume_attempts, 5);
        assert_eq!(config.limits().wall, Some(Duration::from_hours(1)));
    }

    #[test]
    fn agents_without_a_turn_limit_are_given_none_by_default() {
        for kind in [AgentKind::Codex, AgentKind::Gemini] {
            assert_eq!(ProviderConfig::default().turns_per_run(kind), None);
            // Asked for, it is passed on, so that the agent's refusal is heard.
            let asked = ProviderConfig { max_turns: Some(3), ..ProviderConfig::default() };
            assert_eq!(asked.turns_per_run(kind), Some(3));
        }
    }

    #[test]
    fn a_given_environment_takes_the_place_of_the_programs_own() {
        let given = BTreeMap::from([("HOME".to_owned(), "/home/ana".to_owned())]);
        let config = ProviderConfig { environment: Some(given.clone()), ..ProviderConfig::default() };
        assert_eq!(config.surroundings(), given);
        assert!(!ProviderConfig::default().surroundings().is_empty());
    }
}
