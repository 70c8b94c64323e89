//! Codex.

use model::AgentKind;

use super::texts;
use crate::profile::{
    AgentFeature as Feature, AgentProfile, KeptRule, LaunchRules, LoginRule, NativeProgram, ProfileSupport,
    StateRule, StateVariable,
};
use crate::prompt_limit::PromptLimit;
use crate::{DefaultVariables, TestedRange, Version};

/// The longest prompt, in characters.
pub(crate) const MAX_PROMPT_CHARS: usize = 1_048_576;

/// Entries of its state that are hidden from a run. Its databases are rebuilt from the sessions and cannot be copied: a write-ahead log
/// would not match the copy.
pub(super) const DISCARDED: &[&str] = &[
    // Helper programs, first in the `PATH` of a running codex.
    "tmp",
    ".tmp",
    // Sourced by the shell of every tool call.
    "shell_snapshots",
    "cache",
    "log",
    "*.sqlite",
    "*.sqlite-journal",
    "*.sqlite-shm",
    "*.sqlite-wal",
];

pub(super) fn profile() -> AgentProfile {
    AgentProfile {
        agent: AgentKind::Codex,
        title: "Codex".to_owned(),
        description: None,
        program: "codex".to_owned(),
        native: Some(NativeProgram { scope: "@openai".to_owned(), name: "codex".to_owned() }),
        install: "install it with `npm install -g @openai/codex`".to_owned(),
        version_args: texts(&["--version"]),
        support: ProfileSupport::Tested(TestedRange {
            oldest: Version(0, 166, 0),
            newest: Version(0, 166, 0),
        }),
        launch: LaunchRules::Codex,
        login: LoginRule {
            variables: texts(&["CODEX_API_KEY", "OPENAI_API_KEY"]),
            files: texts(&["auth.json"]),
            // It may configure a provider without a login, or a key in another variable.
            alternatives: texts(&["config.toml"]),
            remedy: "log in with `codex login`, or set OPENAI_API_KEY".to_owned(),
            ..LoginRule::default()
        },
        variables: variables(),
        base_urls: texts(&["OPENAI_BASE_URL"]),
        hosts: hosts(),
        states: vec![state()],
        workspace_settings: Vec::new(),
        exposed: texts(&[".agents"]),
        prompt_limit: PromptLimit::Chars(MAX_PROMPT_CHARS),
        features: [
            Feature::Resume,
            Feature::Fork,
            Feature::Schema,
            Feature::Model,
            Feature::Effort,
            Feature::Images,
            Feature::McpServers,
            Feature::AddDirs,
            Feature::SystemPrompt,
            Feature::ReadOnly,
            Feature::Steer,
            Feature::Ask,
            Feature::Usage,
        ]
        .into(),
        models: Vec::new(),
    }
}

pub(super) fn variables() -> DefaultVariables {
    DefaultVariables::named(&[
        "CODEX_API_KEY",
        "CODEX_CA_CERTIFICATE",
        "CODEX_HOME",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_ORGANIZATION",
        "OPENAI_PROJECT",
    ])
}

pub(super) fn hosts() -> Vec<String> {
    texts(&["api.openai.com", "chatgpt.com", "auth.openai.com"])
}

pub(super) fn state() -> StateRule {
    StateRule {
        path: ".codex".to_owned(),
        variable: Some(StateVariable { name: "CODEX_HOME".to_owned(), below: String::new(), is_set: true }),
        kept: KeptRule::Codex,
        discarded: texts(DISCARDED),
    }
}
