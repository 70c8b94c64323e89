//! Amp.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&[]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("amp"));
    AgentProfile {
        install: "install an ACP server for Amp that is named `amp-acp`".to_owned(),
        ..AgentProfile::acp(agent, "Amp", "amp-acp", rules)
    }
}
