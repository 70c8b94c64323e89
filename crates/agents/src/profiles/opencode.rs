//! `OpenCode`.

use std::collections::BTreeMap;

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{
    AcpRules, AgentFeature as Feature, AgentProfile, KeptRule, LoginRule, ProfileSupport, StateRule,
};
use crate::{DefaultVariables, TestedRange, Version};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules {
        args: texts(&["acp"]),
        set: BTreeMap::from([("OPENCODE_DISABLE_AUTOUPDATE".to_owned(), "1".to_owned())]),
        // It would stop if it could not write to a hidden `.opencode`.
        set_untrusted: BTreeMap::from([("OPENCODE_DISABLE_PROJECT_CONFIG".to_owned(), "1".to_owned())]),
        needs_loopback: true,
        trims_prompts: true,
        // Its token counts are those of the last request to the model.
        ..AcpRules::default()
    };
    let agent = AgentKind::Profiled(ProfileName::built_in("opencode"));
    AgentProfile {
        install: "install it with `npm install -g opencode-ai`".to_owned(),
        support: ProfileSupport::Tested(TestedRange {
            oldest: Version(1, 18, 33),
            newest: Version(1, 18, 33),
        }),
        login: LoginRule {
            variables: texts(&["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENCODE_API_KEY"]),
            files: texts(&["auth.json"]),
            // A configured provider needs none, and neither do the free models of its vendor, the default.
            may_be_elsewhere: true,
            remedy: "log in with `opencode auth login`, or set the key of a provider".to_owned(),
            ..LoginRule::default()
        },
        variables: DefaultVariables::named(&[
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "OPENCODE_API_KEY",
            "OPENCODE_CONFIG",
            "OPENCODE_CONFIG_CONTENT",
            "OPENCODE_CONFIG_DIR",
            "OPENCODE_DISABLE_MODELS_FETCH",
        ]),
        hosts: texts(&["opencode.ai", "models.opencode.ai"]),
        states: vec![
            StateRule {
                // Sessions are in a database, whose log is beside it.
                kept: KeptRule::All,
                // Git repositories, whose configuration git obeys.
                discarded: texts(&["snapshot"]),
                ..StateRule::with_paths(".local/share/opencode", &[], &[])
                    .below_variable("XDG_DATA_HOME", "opencode")
            },
            StateRule::with_paths(".config/opencode", &[], &[]).below_variable("XDG_CONFIG_HOME", "opencode"),
            StateRule::with_paths(".local/state/opencode", &[], &[])
                .below_variable("XDG_STATE_HOME", "opencode"),
            StateRule::with_paths(".cache/opencode", &[], &[]).below_variable("XDG_CACHE_HOME", "opencode"),
        ],
        // Plugins and instructions: the variable disables only `opencode.json`.
        workspace_settings: texts(&[".opencode"]),
        features: [
            Feature::Resume,
            Feature::Fork,
            Feature::Model,
            Feature::Effort,
            Feature::Images,
            Feature::McpServers,
        ]
        .into(),
        ..AgentProfile::acp(agent, "OpenCode", "opencode", rules)
    }
}
