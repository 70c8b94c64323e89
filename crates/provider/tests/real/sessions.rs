//! Sessions with the real CLIs: they remember, also after a restart of the program.

use model_api::{ConversationRole, ModelRequest, ModelTurn, Script};
use provider::{Access, AgentSpec, ProviderError};

use crate::harness::Harness;
use crate::pinned::Pinned;
use crate::program;

crate::scenarios! {
    a_session_remembers_and_counts_each_message_for_itself;
    a_session_goes_on_after_the_program_was_restarted;
    a_session_whose_first_message_failed_begins_anew;
    an_unknown_session_is_told_as_such;
}

/// The message that the session must remember.
const TOLD: &str = "The word is heron.";

fn full() -> AgentSpec {
    AgentSpec { access: Access::Full, ..AgentSpec::new("You are terse.") }
}

fn two_answers() -> Script {
    Script::turns(vec![ModelTurn::text("Noted."), ModelTurn::text("It is heron.")])
}

/// Returns whether a request contains both the message and the earlier answer.
fn remembers(request: &ModelRequest) -> bool {
    let asked = request.says(ConversationRole::User).iter().any(|text| text.contains(TOLD));
    asked && request.says(ConversationRole::Model).iter().any(|text| text == "Noted.")
}

fn a_session_remembers_and_counts_each_message_for_itself(cli: &Pinned) {
    Harness::run(cli, two_answers(), async |harness| {
        let provider = harness.provider();
        let session = provider.create_session(&full(), &harness.workspace()).await.unwrap();
        let first = provider.send_message(&session, TOLD).await.unwrap();
        assert_eq!(first.text, "Noted.");
        let second = provider.send_message(&session, "Which word?").await.unwrap();
        assert_eq!(second.text, "It is heron.");
        assert_eq!(first.metadata.session_id, second.metadata.session_id);
        assert_eq!(first.metadata.session_id, session.id());
        let last = harness.api.turns().pop().unwrap();
        assert!(remembers(&last), "{:?}", last.conversation());
        assert_eq!(last.prompt().as_deref(), Some("Which word?"));
        // Some CLIs count per session: the reported tokens are the share of this message.
        assert_eq!(first.metadata.tokens, second.metadata.tokens);
        assert!(second.metadata.tokens.is_some());
        // The agent's prompt is part of both.
        for request in harness.api.turns() {
            assert!(request.body.to_string().contains("You are terse."), "{}", request.body);
        }
    });
}

fn a_session_goes_on_after_the_program_was_restarted(cli: &Pinned) {
    Harness::run(cli, two_answers(), async |harness| {
        let first = program::talk(harness, TOLD, None).await;
        assert_eq!(first["text"], "Noted.");
        let id = first["id"].as_str().unwrap().to_owned();
        let second = program::talk(harness, "Which word?", Some(&id)).await;
        assert_eq!((second["text"].as_str(), second["id"].as_str()), (Some("It is heron."), Some(&*id)));
        assert!(remembers(&harness.api.turns().pop().unwrap()));
    });
}

fn a_session_whose_first_message_failed_begins_anew(cli: &Pinned) {
    let script = Script::turns(vec![
        ModelTurn::refuse(401),
        ModelTurn::text("Noted."),
        ModelTurn::text("It is heron."),
    ]);
    Harness::run(cli, script, async |harness| {
        let provider = harness.provider();
        let session = provider.create_session(&full(), &harness.workspace()).await.unwrap();
        let error = provider.send_message(&session, "Hello.").await.unwrap_err();
        assert!(matches!(error, ProviderError::Authentication { .. }), "{error:?}");
        assert_eq!(provider.send_message(&session, TOLD).await.unwrap().text, "Noted.");
        assert_eq!(provider.send_message(&session, "Which word?").await.unwrap().text, "It is heron.");
        assert!(remembers(&harness.api.turns().pop().unwrap()));
    });
}

fn an_unknown_session_is_told_as_such(cli: &Pinned) {
    Harness::run(cli, Script::text("Hello."), async |harness| {
        let provider = harness.provider();
        let nobody = uuid::Uuid::new_v4();
        assert!(provider.resume_session(&nobody.to_string()).await.unwrap().is_none());
        let adopted = provider::Session::adopt(provider.name(), nobody.into(), full(), harness.workspace());
        let error = provider.send_message(&adopted, "Which word?").await.unwrap_err();
        assert!(matches!(error, ProviderError::SessionNotFound { .. }), "{error:?}");
        assert!(error.to_string().contains("no such session"), "{error}");
    });
}
