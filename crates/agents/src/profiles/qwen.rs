//! Qwen Code.

use model::{AgentKind, ProfileName};

use super::texts;
use crate::driver::UsageReport;
use crate::profile::{
    AcpRules, AgentFeature as Feature, AgentProfile, LoginRule, ProfileSupport, StateRule, StateVariable,
};
use crate::{DefaultVariables, TestedRange, Version};

pub(super) fn profile() -> AgentProfile {
    let rules = AcpRules {
        args: texts(&["--acp"]),
        // In its default mode a model judges each command, at the cost of a request.
        unattended_mode: Some("yolo".to_owned()),
        usage: UsageReport::PerRequest,
        ..AcpRules::default()
    };
    let agent = AgentKind::Profiled(ProfileName::built_in("qwen"));
    AgentProfile {
        install: "install it with `npm install -g @qwen-code/qwen-code`".to_owned(),
        support: ProfileSupport::Tested(TestedRange { oldest: Version(0, 24, 4), newest: Version(0, 24, 4) }),
        login: LoginRule {
            variables: texts(&["OPENAI_API_KEY"]),
            // They may configure a provider, with its key.
            alternatives: texts(&["settings.json", ".env"]),
            remedy: "set OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL, or configure a provider by starting `qwen` once"
                .to_owned(),
            ..LoginRule::default()
        },
        variables: DefaultVariables::named(&["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "QWEN_HOME"]),
        base_urls: texts(&["OPENAI_BASE_URL"]),
        hosts: texts(&["dashscope.aliyuncs.com", "coding.dashscope.aliyuncs.com"]),
        states: vec![StateRule {
            variable: Some(StateVariable { name: "QWEN_HOME".to_owned(), below: String::new(), is_set: true }),
            ..StateRule::with_paths(".qwen", &["projects"], &[])
        }],
        // Hooks, servers and variables.
        workspace_settings: texts(&[".qwen", ".mcp.json", ".env"]),
        features: [
            Feature::Resume,
            Feature::Model,
            Feature::Effort,
            Feature::McpServers,
            Feature::Usage,
        ]
        .into(),
        ..AgentProfile::acp(agent, "Qwen Code", "qwen", rules)
    }
}
