//! Claude Code behind the adapter `claude-agent-acp`.

use model::{AgentKind, ProfileName};

use super::{claude, texts};
use crate::driver::UsageReport;
use crate::profile::{AcpRules, AgentFeature as Feature, AgentProfile, LoginRule, ProfileSupport};
use crate::{TestedRange, Version};

pub(super) fn profile() -> AgentProfile {
    let claude = claude::profile();
    let rules = AcpRules {
        // The mode without questions is not offered to root.
        unattended_mode: Some("acceptEdits".to_owned()),
        usage: UsageReport::PerPrompt,
        ..AcpRules::default()
    };
    let agent = AgentKind::Profiled(ProfileName::built_in("claude-agent-acp"));
    AgentProfile {
        install: "install it with `npm install -g @agentclientprotocol/claude-agent-acp`".to_owned(),
        support: ProfileSupport::Measured(TestedRange {
            oldest: Version(0, 99, 1),
            newest: Version(0, 99, 1),
        }),
        // The adapter has no command that prints the login.
        login: LoginRule { status: Vec::new(), ..claude.login },
        variables: claude.variables,
        base_urls: claude.base_urls,
        hosts: claude.hosts,
        states: claude.states,
        // Hooks, servers and variables. It has no flag that disables them.
        workspace_settings: texts(&[".claude", ".mcp.json"]),
        exposed: claude.exposed,
        features: [
            Feature::Resume,
            Feature::Fork,
            Feature::Model,
            Feature::Effort,
            Feature::Images,
            Feature::McpServers,
            Feature::AddDirs,
            Feature::Usage,
            Feature::Cost,
        ]
        .into(),
        ..AgentProfile::acp(agent, "Claude Agent (ACP)", "claude-agent-acp", rules)
    }
}
