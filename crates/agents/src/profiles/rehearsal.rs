//! Switchboard's scripted agent, which prints the format of Claude Code.

use model::AgentKind;

use crate::profile::{AgentFeature, AgentProfile, LaunchRules, LoginRule, ProfileSupport};
use crate::{DefaultVariables, PromptLimit};

pub(super) fn profile() -> AgentProfile {
    AgentProfile {
        agent: AgentKind::Rehearsal,
        title: "Rehearsal".to_owned(),
        description: None,
        program: "rehearsal".to_owned(),
        native: None,
        install: "install all of Switchboard: `cargo install --path crates/switchboard`".to_owned(),
        version_args: Vec::new(),
        support: ProfileSupport::Own,
        launch: LaunchRules::Claude,
        login: LoginRule {
            may_be_elsewhere: true,
            remedy: "the script plays a failed login; nothing is wrong".to_owned(),
            ..LoginRule::default()
        },
        variables: DefaultVariables { names: Vec::new(), prefixes: vec!["REHEARSAL_".to_owned()] },
        base_urls: Vec::new(),
        hosts: Vec::new(),
        states: Vec::new(),
        workspace_settings: Vec::new(),
        exposed: Vec::new(),
        prompt_limit: PromptLimit::default(),
        features: AgentFeature::ALL.into(),
        models: Vec::new(),
    }
}
