//! Kimi Code.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&["acp"]), needs_terminals: true, ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("kimi"));
    AgentProfile {
        install: "install it with `npm install -g @moonshot-ai/kimi-code`".to_owned(),
        ..AgentProfile::acp(agent, "Kimi Code", "kimi", rules)
    }
}
