//! GitHub Copilot CLI.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&["--acp"]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("copilot"));
    AgentProfile {
        install: "install it with `npm install -g @github/copilot`".to_owned(),
        ..AgentProfile::acp(agent, "GitHub Copilot CLI", "copilot", rules)
    }
}
