//! Antigravity.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&[]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("antigravity"));
    AgentProfile {
        install: "install an ACP server for Antigravity that is named `antigravity-acp`".to_owned(),
        ..AgentProfile::acp(agent, "Antigravity", "antigravity-acp", rules)
    }
}
