//! Auggie.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&["--acp"]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("auggie"));
    AgentProfile {
        install: "install it with `npm install -g @augmentcode/auggie`".to_owned(),
        ..AgentProfile::acp(agent, "Auggie", "auggie", rules)
    }
}
