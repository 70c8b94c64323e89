//! GitHub Copilot CLI.

use std::collections::BTreeMap;

use model::{AgentKind, ProfileName};

use super::texts;
use crate::driver::{ModelErrorReport, UsageReport};
use crate::profile::{
    AcpRules, AgentFeature as Feature, AgentProfile, LoginRule, ProfileSupport, StateRule, StateVariable,
};
use crate::{DefaultVariables, TestedRange, Version};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules {
        args: texts(&["--acp"]),
        set: BTreeMap::from([("COPILOT_AUTO_UPDATE".to_owned(), "false".to_owned())]),
        usage: UsageReport::PerProcess,
        errors: ModelErrorReport::Text,
        ..AcpRules::default()
    };
    let agent = AgentKind::Profiled(ProfileName::built_in("copilot"));
    AgentProfile {
        install: "install it with `npm install -g @github/copilot`".to_owned(),
        support: ProfileSupport::Measured(TestedRange {
            oldest: Version(1, 0, 102),
            newest: Version(1, 0, 102),
        }),
        login: LoginRule {
            variables: texts(&["COPILOT_GITHUB_TOKEN", "COPILOT_PROVIDER_BASE_URL"]),
            // A keychain.
            may_be_elsewhere: true,
            remedy: "log in with `copilot login`".to_owned(),
            ..LoginRule::default()
        },
        variables: DefaultVariables::named(&[
            "COPILOT_GITHUB_TOKEN",
            "COPILOT_HOME",
            "COPILOT_MODEL",
            "COPILOT_OFFLINE",
            "COPILOT_PROVIDER_API_KEY",
            "COPILOT_PROVIDER_BASE_URL",
            "COPILOT_PROVIDER_TYPE",
        ]),
        base_urls: texts(&["COPILOT_PROVIDER_BASE_URL"]),
        hosts: texts(&["api.github.com", "github.com"]),
        states: vec![
            StateRule {
                variable: Some(StateVariable {
                    name: "COPILOT_HOME".to_owned(),
                    below: String::new(),
                    is_set: true,
                }),
                ..StateRule::with_paths(".copilot", &["session-state"], &["config.json"])
            },
            // The program unpacks itself there.
            StateRule::with_paths(".cache/copilot", &[], &[]),
        ],
        // Hooks, servers and language servers.
        workspace_settings: texts(&[".github/hooks", ".github/lsp.json", ".github/copilot", ".mcp.json"]),
        features: [Feature::Resume, Feature::Images, Feature::Usage].into(),
        ..AgentProfile::acp(agent, "GitHub Copilot CLI", "copilot", rules)
    }
}
