//! Login checks by files and variables. Tests the existence of secrets and never reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::AgentKind;
use serde::Serialize;

use super::probe::{ProbeError, run_bounded};
use crate::environment;

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
    /// Asks the agent if it can answer offline; only `claude auth status` can. Otherwise checks files and variables.
    pub(super) fn query(kind: AgentKind, program: &Path, inherited: &BTreeMap<String, String>) -> Self {
        let seen = Self::guess(kind, inherited);
        if (kind, seen) != (AgentKind::Claude, Self::Unknown) {
            return seen;
        }
        let result = run_bounded(program, &["auth", "status"], &environment(kind, inherited));
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

    pub(super) fn guess(kind: AgentKind, inherited: &BTreeMap<String, String>) -> Self {
        let set = |name: &&str| inherited.get(*name).is_some_and(|value| !value.trim().is_empty());
        let directory = |variable: &str, below_home: &str| -> Option<PathBuf> {
            let own = inherited.get(variable).filter(|directory| !directory.is_empty()).map(PathBuf::from);
            own.or_else(|| inherited.get("HOME").map(|home| Path::new(home).join(below_home)))
        };
        let there = |directory: &Option<PathBuf>, file: &str| {
            directory.as_ref().is_some_and(|directory| directory.join(file).is_file())
        };
        match kind {
            AgentKind::Claude => {
                let variables = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
                let home = directory("CLAUDE_CONFIG_DIR", ".claude");
                if variables.iter().any(&set) {
                    Self::ByVariable
                } else if there(&home, ".credentials.json") {
                    Self::ByFile
                } else {
                    // A keychain or an `apiKeyHelper` works as well.
                    Self::Unknown
                }
            }
            AgentKind::Codex => {
                let home = directory("CODEX_HOME", ".codex");
                if there(&home, "auth.json") {
                    Self::ByFile
                } else if ["CODEX_API_KEY", "OPENAI_API_KEY"].iter().any(&set) {
                    Self::ByVariable
                } else if there(&home, "config.toml") {
                    // It may configure a provider without a login, or a key in another variable.
                    Self::Unknown
                } else {
                    Self::LoggedOut
                }
            }
            AgentKind::Gemini => {
                let home = directory("GEMINI_CLI_HOME", "").map(|home| home.join(".gemini"));
                let variables = ["GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"];
                if variables.iter().any(&set) {
                    Self::ByVariable
                } else if there(&home, "oauth_creds.json") {
                    Self::ByFile
                } else if there(&home, "settings.json") || there(&home, ".env") {
                    Self::Unknown
                } else {
                    Self::LoggedOut
                }
            }
            AgentKind::Rehearsal => Self::ByVariable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(kind: AgentKind, variables: &[(&str, &str)]) -> Login {
        let inherited =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Login::guess(kind, &inherited)
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
