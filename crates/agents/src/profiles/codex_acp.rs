//! Codex (ACP).

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&[]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("codex-acp"));
    AgentProfile {
        install: "install it with `npm install -g @agentclientprotocol/codex-acp`".to_owned(),
        ..AgentProfile::acp(agent, "Codex (ACP)", "codex-acp", rules)
    }
}
