//! goose.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&["acp"]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("goose"));
    AgentProfile {
        install: "install goose and its command line `goose`".to_owned(),
        ..AgentProfile::acp(agent, "goose", "goose", rules)
    }
}
