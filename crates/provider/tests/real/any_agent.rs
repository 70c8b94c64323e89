//! The agents that speak the Agent Client Protocol, by their names.

use model_api::{ConversationRole, ModelTurn, Script};
use provider::{Access, AgentSpec, Context};

use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    request_is_answered;
    session_remembers_its_messages;
}

/// Answers each prompt, also where a helper of the agent sends requests in between.
fn answering() -> Script {
    Script::by(|request, _| match request.prompt().as_deref() {
        Some(prompt) if prompt.contains("Which word?") => ModelTurn::text("It is heron."),
        _ => ModelTurn::text("Noted."),
    })
}

fn request_is_answered(cli: &Pinned) {
    Harness::run(cli, answering(), async |harness| {
        let message = harness.provider().complete(&Context::new("The word is heron.")).await.unwrap();
        assert_eq!(message.text, "Noted.");
        assert!(message.metadata.session_id.is_some());
    });
}

fn session_remembers_its_messages(cli: &Pinned) {
    Harness::run(cli, answering(), async |harness| {
        let provider = harness.provider();
        // It takes no system prompt.
        let agent = AgentSpec { access: Access::Full, ..AgentSpec::new("") };
        let session = provider.create_session(&agent, &harness.workspace()).await.unwrap();
        let first = provider.send_message(&session, "The word is heron.").await.unwrap();
        let second = provider.send_message(&session, "Which word?").await.unwrap();
        assert_eq!((&*first.text, &*second.text), ("Noted.", "It is heron."));
        assert_eq!(first.metadata.session_id, second.metadata.session_id);
        let requests = harness.api.turns().into_iter();
        let said = |text: &str| text.contains("The word is heron.");
        let mut asked =
            requests.filter(|request| request.prompt().is_some_and(|text| text.contains("Which")));
        assert!(asked.any(|request| request.says(ConversationRole::User).iter().any(|text| said(text))));
    });
}
