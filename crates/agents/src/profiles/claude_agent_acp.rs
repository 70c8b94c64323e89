//! Claude Agent (ACP).

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&[]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("claude-agent-acp"));
    AgentProfile {
        install: "install it with `npm install -g @agentclientprotocol/claude-agent-acp`".to_owned(),
        ..AgentProfile::acp(agent, "Claude Agent (ACP)", "claude-agent-acp", rules)
    }
}
