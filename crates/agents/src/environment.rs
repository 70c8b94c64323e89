//! The environment of an agent: empty, plus an allowlist of the caller's variables.
//!
//! Owns the lists. The caller's environment is passed in.

use std::collections::BTreeMap;

/// Variables that any program needs: paths, locale, proxies.
const COMMON: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "TMPDIR",
    // The toolchains of rustup's proxies in PATH.
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
];
const COMMON_PREFIXES: &[&str] = &["LC_", "XDG_"];

/// Matches an allowed prefix, but is a directory of sockets.
const NOT_BY_PREFIX: &str = "XDG_RUNTIME_DIR";

const RUNS_CODE: &str = "it would run code in the agent before any policy applies";
const SET_BY_US: &str = "Switchboard sets it itself";
const NESTED: &str = "it would tell the agent that it runs inside another agent";

/// Returns the reason why a variable is never passed to an agent, even if the operator lists it.
pub fn forbidden_variable(name: &str) -> Option<&'static str> {
    match name {
        "BASH_ENV" | "ENV" | "NODE_OPTIONS" => Some(RUNS_CODE),
        "CLAUDECODE" | "CLAUDE_CODE_ENTRYPOINT" | "CLAUDE_CODE_SSE_PORT" => Some(NESTED),
        "SWITCHBOARD_RUN_ID" | "FILE_TOOLS_ROOT" => Some(SET_BY_US),
        _ if name.starts_with("GIT_CONFIG_") => Some(SET_BY_US),
        _ if name.starts_with("LD_") || name.starts_with("DYLD_") => Some(RUNS_CODE),
        _ => None,
    }
}

/// Variables that an agent gets by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefaultVariables {
    /// Exact names.
    pub names: Vec<String>,
    /// Prefixes of names.
    pub prefixes: Vec<String>,
}

impl DefaultVariables {
    /// Returns variables without prefixes.
    pub(crate) fn named(names: &[&str]) -> Self {
        Self { names: names.iter().map(|name| (*name).to_owned()).collect(), prefixes: Vec::new() }
    }

    /// Returns the variables of every agent, except for `XDG_RUNTIME_DIR`.
    pub fn common() -> Self {
        let prefixes = COMMON_PREFIXES.iter().map(|prefix| (*prefix).to_owned()).collect();
        Self { prefixes, ..Self::named(COMMON) }
    }

    fn contain(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

fn is_common(name: &str) -> bool {
    name != NOT_BY_PREFIX
        && (COMMON.contains(&name) || COMMON_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

/// Returns the variables of `inherited` that an agent with these variables of its own gets by default.
pub fn environment(own: &DefaultVariables, inherited: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let may_pass = |name: &str| is_common(name) || own.contain(name) && forbidden_variable(name).is_none();
    inherited
        .iter()
        .filter(|(name, _)| may_pass(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use model::AgentKind;

    use super::*;
    use crate::{AgentProfile, AgentProfiles};

    fn passed(agent: &AgentProfile, names: &[&str]) -> Vec<String> {
        let inherited = names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect();
        environment(&agent.variables, &inherited).into_keys().collect()
    }

    #[test]
    fn foreign_keys_and_code_variables_are_dropped() {
        let hostile = [
            "LD_PRELOAD",
            "DYLD_INSERT_LIBRARIES",
            "BASH_ENV",
            "NODE_OPTIONS",
            "GIT_SSH_COMMAND",
            "SSH_AUTH_SOCK",
            "AWS_SECRET_ACCESS_KEY",
            "GH_TOKEN",
            "DOCKER_HOST",
            "DBUS_SESSION_BUS_ADDRESS",
            "CLAUDECODE",
            "SOME_SECRET",
            "SWITCHBOARD_RUN_ID",
            "XDG_RUNTIME_DIR",
        ];
        for agent in AgentProfiles::default().iter() {
            assert_eq!(passed(agent, &hostile), Vec::<String>::new(), "{}", agent.title);
        }
    }

    #[test]
    fn agent_gets_only_its_own_api_key() {
        let keys = ["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"];
        let profiles = AgentProfiles::default();
        let passed = |kind, names: &[&str]| passed(profiles.get(kind).unwrap(), names);
        assert_eq!(passed(AgentKind::Claude, &keys), ["ANTHROPIC_API_KEY"]);
        assert_eq!(passed(AgentKind::Codex, &keys), ["OPENAI_API_KEY"]);
        assert_eq!(passed(AgentKind::Gemini, &keys), ["GEMINI_API_KEY"]);
        assert_eq!(passed(AgentKind::Rehearsal, &keys), Vec::<String>::new());
    }

    #[test]
    fn locale_proxy_and_path_variables_pass() {
        let common = ["HOME", "HTTPS_PROXY", "LC_ALL", "PATH", "XDG_CONFIG_HOME", "no_proxy"];
        for agent in AgentProfiles::default().iter() {
            assert_eq!(passed(agent, &common), common, "{}", agent.title);
        }
    }

    #[test]
    fn operator_cannot_pass_code_variables() {
        for name in ["GH_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "GIT_AUTHOR_NAME", "PYTHONPATH"] {
            assert_eq!(forbidden_variable(name), None, "{name}");
        }
        for name in ["LD_PRELOAD", "DYLD_X", "BASH_ENV", "NODE_OPTIONS", "CLAUDECODE", "GIT_CONFIG_COUNT"] {
            assert!(forbidden_variable(name).is_some(), "{name}");
        }
    }
}
