//! Gemini CLI.

use model::AgentKind;

use super::texts;
use crate::profile::{
    AgentFeature as Feature, AgentProfile, KeptRule, LaunchRules, LoginRule, ProfileSupport, StateRule,
    StateVariable,
};
use crate::prompt_limit::PromptLimit;
use crate::{DefaultVariables, TestedRange, Version};

/// The longest prompt. Above about 4.19 MB it sends no request, prints nothing and reports success.
pub(crate) const MAX_PROMPT_BYTES: usize = 4_000_000;

/// Entries of its state that are hidden from a run.
const DISCARDED: &[&str] = &[
    // Git repositories, whose configuration git obeys.
    "history", // Contains the downloaded search program besides the sessions.
    "tmp",
];

pub(super) fn profile() -> AgentProfile {
    AgentProfile {
        agent: AgentKind::Gemini,
        title: "Gemini CLI".to_owned(),
        description: None,
        program: "gemini".to_owned(),
        native: None,
        install: "install it with `npm install -g @google/gemini-cli`".to_owned(),
        version_args: texts(&["--version"]),
        support: ProfileSupport::Tested(TestedRange { oldest: Version(0, 61, 0), newest: Version(0, 61, 0) }),
        launch: LaunchRules::Gemini,
        login: LoginRule {
            variables: texts(&["GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"]),
            files: texts(&["oauth_creds.json"]),
            companions: texts(&["google_accounts.json"]),
            alternatives: texts(&["settings.json", ".env"]),
            remedy: "set GEMINI_API_KEY, or log in by starting `gemini` once".to_owned(),
            ..LoginRule::default()
        },
        variables: DefaultVariables::named(&[
            "GEMINI_API_KEY",
            "GEMINI_CLI_HOME",
            "GOOGLE_API_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_CLOUD_LOCATION",
            "GOOGLE_CLOUD_PROJECT",
            "GOOGLE_GEMINI_BASE_URL",
            "GOOGLE_GENAI_USE_GCA",
            "GOOGLE_GENAI_USE_VERTEXAI",
            "GOOGLE_VERTEX_BASE_URL",
        ]),
        base_urls: texts(&["GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"]),
        hosts: texts(&[
            "generativelanguage.googleapis.com",
            "cloudcode-pa.googleapis.com",
            "aiplatform.googleapis.com",
            "oauth2.googleapis.com",
        ]),
        states: vec![StateRule {
            path: ".gemini".to_owned(),
            variable: Some(StateVariable {
                name: "GEMINI_CLI_HOME".to_owned(),
                below: ".gemini".to_owned(),
                is_set: true,
            }),
            kept: KeptRule::Gemini,
            discarded: texts(DISCARDED),
        }],
        workspace_settings: texts(&[".gemini", ".env"]),
        exposed: texts(&[".agents"]),
        prompt_limit: PromptLimit::Bytes(MAX_PROMPT_BYTES),
        features: [
            Feature::Resume,
            Feature::Model,
            Feature::AddDirs,
            Feature::SystemPrompt,
            Feature::Tools,
            Feature::ReadOnly,
            Feature::Usage,
        ]
        .into(),
        models: texts(&["auto", "pro", "flash", "flash-lite"]),
    }
}
