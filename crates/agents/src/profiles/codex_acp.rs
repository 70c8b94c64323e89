//! Codex behind the adapter `codex-acp`.

use model::{AgentKind, ProfileName};

use super::{codex, texts};
use crate::driver::UsageReport;
use crate::profile::{AcpRules, AgentFeature as Feature, AgentProfile, ProfileSupport};
use crate::{TestedRange, Version};

pub(super) fn profile() -> AgentProfile {
    let codex = codex::profile();
    let rules = AcpRules {
        unattended_mode: Some("agent-full-access".to_owned()),
        usage: UsageReport::PerPrompt,
        ..AcpRules::default()
    };
    let agent = AgentKind::Profiled(ProfileName::built_in("codex-acp"));
    AgentProfile {
        install: "install it with `npm install -g @agentclientprotocol/codex-acp`".to_owned(),
        support: ProfileSupport::Measured(TestedRange { oldest: Version(2, 6, 0), newest: Version(2, 6, 0) }),
        login: codex.login,
        variables: codex.variables,
        base_urls: codex.base_urls,
        hosts: codex.hosts,
        states: codex.states,
        // It starts the servers in there without asking for trust in the workspace.
        workspace_settings: texts(&[".codex"]),
        exposed: codex.exposed,
        features: [
            Feature::Resume,
            Feature::Fork,
            Feature::Model,
            Feature::Effort,
            Feature::Images,
            Feature::McpServers,
            Feature::AddDirs,
            Feature::Usage,
        ]
        .into(),
        ..AgentProfile::acp(agent, "Codex (ACP)", "codex-acp", rules)
    }
}
