//! Cline.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&["--acp"]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("cline"));
    AgentProfile {
        install: "install it with `npm install -g cline`".to_owned(),
        ..AgentProfile::acp(agent, "Cline", "cline", rules)
    }
}
