//! Qwen Code.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::profile::{AcpRules, AgentProfile};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules { args: texts(&["--acp"]), ..AcpRules::default() };
    let agent = AgentKind::Profiled(ProfileName::built_in("qwen"));
    AgentProfile {
        install: "install it with `npm install -g @qwen-code/qwen-code`".to_owned(),
        ..AgentProfile::acp(agent, "Qwen Code", "qwen", rules)
    }
}
