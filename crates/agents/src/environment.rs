//! Which variables of the caller an agent gets to see: an empty environment and a list of what may be added.
//!
//! Owns the lists. Reads no environment itself: what the caller has is a value.

use std::collections::BTreeMap;

use model::AgentKind;

/// What any program needs to find its files, speak the user's language and get through a proxy.
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
    // Where rustup's proxies in PATH find the toolchains.
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

/// What would run code in the agent, lend it another login, or tell it that it runs inside another agent.
const NEVER_PREFIXES: &[&str] =
    &["LD_", "DYLD_", "GIT_", "SSH_", "AWS_", "DBUS_", "DOCKER_", "NPM_CONFIG_", "npm_"];
const NEVER: &[&str] = &[
    "XDG_RUNTIME_DIR",
    "BASH_ENV",
    "ENV",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PYTHONSTARTUP",
    "PYTHONPATH",
    "PERL5OPT",
    "RUBYOPT",
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SSE_PORT",
    "SWITCHBOARD_RUN_ID",
];

/// Whether a variable is kept from every agent, even when the operator names it.
pub fn is_never_passed_on(name: &str) -> bool {
    NEVER.contains(&name) || NEVER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The variables of `inherited` that an agent may see: the common ones, and its own for login and configuration.
pub fn environment(kind: AgentKind, inherited: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = match kind {
        AgentKind::Claude => CLAUDE,
        AgentKind::Codex => CODEX,
        AgentKind::Gemini => GEMINI,
        AgentKind::Rehearsal => &[],
    };
    let may_pass = |name: &str| {
        COMMON.contains(&name)
            || COMMON_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || own.contains(&name)
            || (kind == AgentKind::Rehearsal && name.starts_with("REHEARSAL_"))
    };
    inherited
        .iter()
        .filter(|(name, _)| may_pass(name) && !is_never_passed_on(name))
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
    fn what_runs_code_or_lends_a_login_never_passes() {
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
        ];
        for kind in AgentKind::ALL {
            assert_eq!(passed(kind, &hostile), Vec::<String>::new(), "{kind}");
        }
    }

    #[test]
    fn each_agent_sees_its_own_key_and_no_other() {
        let keys = ["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"];
        assert_eq!(passed(AgentKind::Claude, &keys), ["ANTHROPIC_API_KEY"]);
        assert_eq!(passed(AgentKind::Codex, &keys), ["OPENAI_API_KEY"]);
        assert_eq!(passed(AgentKind::Gemini, &keys), ["GEMINI_API_KEY"]);
        assert_eq!(passed(AgentKind::Rehearsal, &keys), Vec::<String>::new());
    }

    #[test]
    fn language_proxy_and_folders_pass_for_all() {
        let common = ["HOME", "HTTPS_PROXY", "LC_ALL", "PATH", "XDG_CONFIG_HOME", "no_proxy"];
        for kind in AgentKind::ALL {
            assert_eq!(passed(kind, &common), common, "{kind}");
        }
    }
}
