//! Claude Code.

use model::AgentKind;

use super::texts;
use crate::profile::{
    AgentFeature as Feature, AgentProfile, KeptRule, LaunchRules, LoginRule, NativeProgram, ProfileSupport,
    StateRule, StateVariable,
};
use crate::prompt_limit::PromptLimit;
use crate::{DefaultVariables, TestedRange, Version};

/// Entries of its state that are hidden from a run.
const DISCARDED: &[&str] = &[
    // Sourced by the shell of every tool call.
    "session-env",
    "shell-snapshots",
    // Tokens for running editors.
    "ide",
    // Processes of this machine, which a sandboxed run cannot see.
    "daemon",
    "jobs",
    "sessions",
    "backups",
    "cache",
    "debug",
    "file-history",
    "image-cache",
    "paste-cache",
    "projects",
    "statsig",
    "tasks",
    "telemetry",
    "todos",
];

pub(super) fn profile() -> AgentProfile {
    AgentProfile {
        agent: AgentKind::Claude,
        title: "Claude Code".to_owned(),
        description: None,
        program: "claude".to_owned(),
        native: Some(NativeProgram { scope: "@anthropic-ai".to_owned(), name: "claude".to_owned() }),
        install: "install it with `npm install -g @anthropic-ai/claude-code`".to_owned(),
        version_args: texts(&["--version"]),
        support: ProfileSupport::Tested(TestedRange {
            oldest: Version(2, 1, 197),
            newest: Version(2, 1, 325),
        }),
        launch: LaunchRules::Claude,
        login: LoginRule {
            variables: texts(&["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"]),
            files: texts(&[".credentials.json"]),
            // A keychain or an `apiKeyHelper` works as well.
            may_be_elsewhere: true,
            status: texts(&["auth", "status"]),
            remedy: "log in with `claude` and then `/login`, or set ANTHROPIC_API_KEY".to_owned(),
            ..LoginRule::default()
        },
        variables: DefaultVariables::named(&[
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
        ]),
        base_urls: texts(&["ANTHROPIC_BASE_URL"]),
        hosts: texts(&["api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai"]),
        states: vec![StateRule {
            path: ".claude".to_owned(),
            // Set even to the default, or claude would write `~/.claude.json`, which is outside of it.
            variable: Some(StateVariable {
                name: "CLAUDE_CONFIG_DIR".to_owned(),
                below: String::new(),
                is_set: true,
            }),
            kept: KeptRule::Claude,
            discarded: texts(DISCARDED),
        }],
        workspace_settings: Vec::new(),
        exposed: texts(&[".config/anthropic"]),
        prompt_limit: PromptLimit::default(),
        features: [
            Feature::Resume,
            Feature::Fork,
            Feature::Schema,
            Feature::Model,
            Feature::Effort,
            Feature::TurnLimit,
            Feature::Budget,
            Feature::Images,
            Feature::McpServers,
            Feature::AddDirs,
            Feature::SystemPrompt,
            Feature::Tools,
            Feature::ReadOnly,
            Feature::Steer,
            Feature::Ask,
            Feature::Usage,
            Feature::Cost,
        ]
        .into(),
        models: texts(&["haiku", "sonnet", "opus"]),
    }
}
