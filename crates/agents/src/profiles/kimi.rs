//! Kimi Code.

use std::collections::BTreeMap;

use model::{AgentKind, ProfileName};

use super::texts;
use crate::driver::ModelErrorReport;
use crate::profile::{
    AcpRules, AgentFeature as Feature, AgentProfile, LoginRule, ProfileSupport, StateRule, StateVariable,
};
use crate::prompt_limit::PromptLimit;
use crate::{DefaultVariables, TestedRange, Version};

/// The longest prompt. It replaces one that exceeds the context of its model by its start and its end, without an error: one of 800 kB
/// arrived whole at a model with 262,144 tokens, one of 1 MB did not.
const MAX_PROMPT_BYTES: usize = 800_000;

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules {
        args: texts(&["acp"]),
        set: BTreeMap::from([("KIMI_CODE_NO_AUTO_UPDATE".to_owned(), "1".to_owned())]),
        unattended_mode: Some("yolo".to_owned()),
        needs_terminals: true,
        errors: ModelErrorReport::Silence,
        ..AcpRules::default()
    };
    let agent = AgentKind::Profiled(ProfileName::built_in("kimi"));
    AgentProfile {
        install: "install it with `npm install -g @moonshot-ai/kimi-code`".to_owned(),
        support: ProfileSupport::Tested(TestedRange { oldest: Version(2, 1, 0), newest: Version(2, 1, 0) }),
        login: LoginRule {
            variables: texts(&["KIMI_MODEL_API_KEY"]),
            // The logins of accounts are in a directory; the configuration may have the key of a provider.
            alternatives: texts(&["credentials", "config.toml"]),
            remedy: "log in with `kimi login`, or set KIMI_MODEL_NAME and KIMI_MODEL_API_KEY".to_owned(),
            ..LoginRule::default()
        },
        variables: DefaultVariables::named(&[
            "KIMI_CODE_HOME",
            "KIMI_MODEL_API_KEY",
            "KIMI_MODEL_BASE_URL",
            "KIMI_MODEL_NAME",
            "KIMI_MODEL_PROVIDER_TYPE",
        ]),
        base_urls: texts(&["KIMI_MODEL_BASE_URL"]),
        hosts: texts(&["api.kimi.com", "api.moonshot.ai", "auth.kimi.com"]),
        states: vec![StateRule {
            variable: Some(StateVariable {
                name: "KIMI_CODE_HOME".to_owned(),
                below: String::new(),
                is_set: true,
            }),
            ..StateRule::with_paths(".kimi-code", &["sessions", "credentials"], &[])
        }],
        // Servers. It asks for trust in a workspace before it starts them.
        workspace_settings: texts(&[".kimi-code", ".mcp.json"]),
        prompt_limit: PromptLimit::Bytes(MAX_PROMPT_BYTES),
        features: [
            Feature::Resume,
            Feature::Fork,
            Feature::Model,
            Feature::Images,
            Feature::McpServers,
            Feature::AddDirs,
        ]
        .into(),
        ..AgentProfile::acp(agent, "Kimi Code", "kimi", rules)
    }
}
