//! Cursor.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&["acp"]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("cursor"));
    AgentProfile {
        install: "install Cursor and its command line `cursor-agent`".to_owned(),
        ..AgentProfile::acp(agent, "Cursor", "cursor-agent", rules)
    }
}
