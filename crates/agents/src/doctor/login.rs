//! Whether an agent is logged in, as far as its files and variables tell. No secret is read, only whether one is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::AgentKind;
use serde::Serialize;

use super::probe::{ProbeError, run};
use crate::environment;

/// Whether an agent is logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Login {
    /// By a variable of the environment.
    ByVariable,
    /// By a login that it keeps in a file.
    ByFile,
    /// By its own word.
    ByItsWord,
    /// By its own word it is not, or nothing was found where it keeps its login.
    LoggedOut,
    /// It may keep its login where only it can look (a keychain, a helper program, a provider of one's own).
    Unknown,
}

impl Login {
    /// Asks the agent itself where it can be asked for nothing: only `claude auth status` answers without a network.
    pub(super) fn ask(kind: AgentKind, program: &Path, inherited: &BTreeMap<String, String>) -> Self {
        let seen = Self::look(kind, inherited);
        if (kind, seen) != (AgentKind::Claude, Self::Unknown) {
            return seen;
        }
        let said = run(program, &["auth", "status"], &environment(kind, inherited));
        let (Ok(status) | Err(ProbeError::Failed { said: status, .. })) = said else { return Self::Unknown };
        match serde_json::from_str::<serde_json::Value>(&status)
            .ok()
            .and_then(|said| said["loggedIn"].as_bool())
        {
            Some(true) => Self::ByItsWord,
            Some(false) => Self::LoggedOut,
            None => Self::Unknown,
        }
    }

    pub(super) fn look(kind: AgentKind, inherited: &BTreeMap<String, String>) -> Self {
        let set = |name: &&str| inherited.get(*name).is_some_and(|value| !value.trim().is_empty());
        let folder = |variable: &str, below_home: &str| -> Option<PathBuf> {
            let own = inherited.get(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from);
            own.or_else(|| inherited.get("HOME").map(|home| Path::new(home).join(below_home)))
        };
        let there = |folder: &Option<PathBuf>, file: &str| {
            folder.as_ref().is_some_and(|folder| folder.join(file).is_file())
        };
        match kind {
            AgentKind::Claude => {
                let variables = ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"];
                let home = folder("CLAUDE_CONFIG_DIR", ".claude");
                if variables.iter().any(&set) {
                    Self::ByVariable
                } else if there(&home, ".credentials.json") {
                    Self::ByFile
                } else {
                    // A keychain or an `apiKeyHelper` serves as well.
                    Self::Unknown
                }
            }
            AgentKind::Codex => {
                let home = folder("CODEX_HOME", ".codex");
                if there(&home, "auth.json") {
                    Self::ByFile
                } else if ["CODEX_API_KEY", "OPENAI_API_KEY"].iter().any(&set) {
                    Self::ByVariable
                } else if there(&home, "config.toml") {
                    // It may name a provider that needs no login, or a key in a variable of another name.
                    Self::Unknown
                } else {
                    Self::LoggedOut
                }
            }
            AgentKind::Gemini => {
                let home = folder("GEMINI_CLI_HOME", "").map(|home| home.join(".gemini"));
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

    fn look(kind: AgentKind, variables: &[(&str, &str)]) -> Login {
        let inherited =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Login::look(kind, &inherited)
    }

    #[test]
    fn a_key_in_the_environment_is_a_login_and_an_empty_one_is_not() {
        let nowhere = ("HOME", "/nonexistent");
        assert_eq!(look(AgentKind::Claude, &[("ANTHROPIC_API_KEY", "k")]), Login::ByVariable);
        assert_eq!(look(AgentKind::Codex, &[nowhere, ("OPENAI_API_KEY", " ")]), Login::LoggedOut);
        assert_eq!(look(AgentKind::Gemini, &[nowhere]), Login::LoggedOut);
        assert_eq!(look(AgentKind::Claude, &[nowhere]), Login::Unknown);
    }
}
