//! Login checks by files and variables. Tests the existence of secrets and never reads them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::probe::{ProbeError, run_bounded};
use crate::{AgentProfile, environment};

/// The login state of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Login {
    /// Logged in through an environment variable.
    ByVariable,
    /// Logged in through a credentials file.
    ByFile,
    /// Logged in, as the agent reports.
    #[serde(rename = "by_its_word")]
    Reported,
    /// Not logged in: the agent reports so, or its credentials file is missing.
    LoggedOut,
    /// Unknown: the login may be in a keychain, a helper program or a custom provider.
    Unknown,
}

impl Login {
    /// Asks the agent if it can answer offline. Otherwise checks files and variables.
    pub(super) fn query(
        profile: &AgentProfile,
        program: &Path,
        inherited: &BTreeMap<String, String>,
    ) -> Self {
        let seen = Self::guess(profile, inherited);
        if seen != Self::Unknown || profile.login.status.is_empty() {
            return seen;
        }
        let arguments: Vec<&str> = profile.login.status.iter().map(String::as_str).collect();
        let result = run_bounded(program, &arguments, &environment(&profile.variables, inherited));
        let (Ok(status) | Err(ProbeError::Failed { output: status, .. })) = result else {
            return Self::Unknown;
        };
        match serde_json::from_str::<serde_json::Value>(&status)
            .ok()
            .and_then(|status| status["loggedIn"].as_bool())
        {
            Some(true) => Self::Reported,
            Some(false) => Self::LoggedOut,
            None => Self::Unknown,
        }
    }

    pub(super) fn guess(profile: &AgentProfile, inherited: &BTreeMap<String, String>) -> Self {
        let rule = &profile.login;
        let is_set = |name: &String| inherited.get(name).is_some_and(|value| !value.trim().is_empty());
        let state = profile.state_directory(inherited);
        let is_there = |file: &String| state.as_ref().is_some_and(|directory| directory.join(file).is_file());
        if rule.variables.iter().any(is_set) {
            Self::ByVariable
        } else if rule.files.iter().any(is_there) {
            Self::ByFile
        } else if rule.may_be_elsewhere || rule.alternatives.iter().any(is_there) {
            Self::Unknown
        } else {
            Self::LoggedOut
        }
    }
}

#[cfg(test)]
mod tests {
    use model::AgentKind;

    use super::*;
    use crate::AgentProfiles;

    fn guess(kind: AgentKind, variables: &[(&str, &str)]) -> Login {
        let inherited =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Login::guess(AgentProfiles::default().get(kind).unwrap(), &inherited)
    }

    #[test]
    fn empty_api_key_is_not_a_login() {
        let nowhere = ("HOME", "/nonexistent");
        assert_eq!(guess(AgentKind::Claude, &[("ANTHROPIC_API_KEY", "k")]), Login::ByVariable);
        assert_eq!(guess(AgentKind::Codex, &[nowhere, ("OPENAI_API_KEY", " ")]), Login::LoggedOut);
        assert_eq!(guess(AgentKind::Gemini, &[nowhere]), Login::LoggedOut);
        assert_eq!(guess(AgentKind::Claude, &[nowhere]), Login::Unknown);
    }
}
