//! The environment of an agent: empty, plus an allowlist of the caller's variables.
//!
//! Owns the lists. The caller's environment is passed in.

use std::collections::BTreeMap;

use model::AgentKind;

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

const CLAUDE: &[&str] = &[
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_CUSTOM_HEADERS",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "API_TIMEOUT_MS",
    "BASH_DEFAULT_TIMEOUT_MS",
    "BASH_MAX_TIMEOUT_MS",
    "CLAUDE_CODE_API_KEY_HELPER_TTL_MS",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    "CLAUDE_CODE_MAX_RETRIES",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_TMPDIR",
    "CLAUDE_CONFIG_DIR",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
    "DISABLE_TELEMETRY",
    "IS_SANDBOX",
    "MAX_MCP_OUTPUT_TOKENS",
    "MAX_THINKING_TOKENS",
    "MCP_TIMEOUT",
];
const CODEX: &[&str] = &[
    "CODEX_API_KEY",
    "CODEX_CA_CERTIFICATE",
    "CODEX_HOME",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_ORGANIZATION",
    "OPENAI_PROJECT",
];
const GEMINI: &[&str] = &[
    "GEMINI_API_KEY",
    "GEMINI_CLI_HOME",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_GENAI_USE_GCA",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_VERTEX_BASE_URL",
];

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

/// The variables that an agent gets by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultVariables {
    /// Exact names.
    pub names: &'static [&'static str],
    /// Prefixes of names.
    pub prefixes: &'static [&'static str],
}

impl DefaultVariables {
    /// The variables of every agent, except for `XDG_RUNTIME_DIR`.
    pub const COMMON: Self = Self { names: COMMON, prefixes: COMMON_PREFIXES };

    fn contain(&self, name: &str) -> bool {
        self.names.contains(&name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// Returns the additional variables of one agent: its login and configuration.
pub fn default_variables(kind: AgentKind) -> DefaultVariables {
    let (names, prefixes): (_, &[&str]) = match kind {
        AgentKind::Claude => (CLAUDE, &[]),
        AgentKind::Codex => (CODEX, &[]),
        AgentKind::Gemini => (GEMINI, &[]),
        AgentKind::Rehearsal => (&[] as &[&str], &["REHEARSAL_"]),
    };
    DefaultVariables { names, prefixes }
}

/// Returns the variables of `inherited` that an agent gets by default.
pub fn environment(kind: AgentKind, inherited: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = default_variables(kind);
    let may_pass =
        |name: &str| name != NOT_BY_PREFIX && (DefaultVariables::COMMON.contain(name) || own.contain(name));
    inherited
        .iter()
        .filter(|(name, _)| may_pass(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(kind: AgentKind, names: &[&str]) -> Vec<String> {
        let inherited = names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect();
        environment(kind, &inherited).into_keys().collect()
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
        for kind in AgentKind::ALL {
            assert_eq!(passed(kind, &hostile), Vec::<String>::new(), "{kind}");
        }
    }

    #[test]
    fn agent_gets_only_its_own_api_key() {
        let keys = ["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"];
        assert_eq!(passed(AgentKind::Claude, &keys), ["ANTHROPIC_API_KEY"]);
        assert_eq!(passed(AgentKind::Codex, &keys), ["OPENAI_API_KEY"]);
        assert_eq!(passed(AgentKind::Gemini, &keys), ["GEMINI_API_KEY"]);
        assert_eq!(passed(AgentKind::Rehearsal, &keys), Vec::<String>::new());
    }

    #[test]
    fn locale_proxy_and_path_variables_pass() {
        let common = ["HOME", "HTTPS_PROXY", "LC_ALL", "PATH", "XDG_CONFIG_HOME", "no_proxy"];
        for kind in AgentKind::ALL {
            assert_eq!(passed(kind, &common), common, "{kind}");
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
