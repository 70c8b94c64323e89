//! The conversations of claude and codex over stdin and stdout, with the real programs.

use model::{AgentEvent, CallPolicy, CallSpec, FailureKind, SessionChoice};
use model_api::{Call, ConversationRole, ModelApi, ModelTurn, Script};

use crate::confined::can_confine;
use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    live_tool_call_runs, not for Gemini: "it is called with one prompt";
    live_session_is_resumed, not for Gemini: "it is called with one prompt";
    live_error_of_the_model_is_a_failure, not for Gemini: "it is called with one prompt";
}

fn live(harness: &Harness, prompt: &str) -> CallSpec {
    CallSpec { live: true, ..harness.spec(prompt) }
}

fn live_tool_call_runs(cli: &Pinned) {
    for policy in [CallPolicy::off(), CallPolicy::default()] {
        if !policy.is_off() && !can_confine() {
            return;
        }
        Harness::play(cli, async |harness| {
            let call = Call::Shell { command: "echo heron > word; cat word".to_owned() };
            let api = ModelApi::start(Script::call_then_text(call, "It ran.")).await;
            let spec = CallSpec { policy: policy.clone(), ..live(harness, "Run it.") };
            let done = harness.ask(&api, &spec).await;
            assert_eq!(done.succeeded().text, "It ran.", "{done}");
            assert!(harness.has_file("word"), "{done}");
            assert!(done.outcome.usage.is_some() && done.outcome.session.is_some(), "{done}");
            let has = |wanted: fn(&AgentEvent<'_>) -> bool| done.events.iter().any(wanted);
            assert!(has(|event| matches!(event, AgentEvent::ToolUse { .. })), "{done}");
            assert!(has(|event| matches!(event, AgentEvent::ToolResult { is_error: false, .. })), "{done}");
        });
    }
}

fn live_session_is_resumed(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let answers =
            vec![ModelTurn::text("Noted."), ModelTurn::text("It is heron."), ModelTurn::text("Heron.")];
        let api = ModelApi::start(Script::turns(answers)).await;
        let first = harness.ask(&api, &live(harness, "The word is heron.")).await;
        assert_eq!(first.succeeded().text, "Noted.", "{first}");
        // Both ways to start the agent use the same sessions.
        for is_live in [true, false] {
            let session = SessionChoice::Resume(first.session());
            let spec = CallSpec { session, live: is_live, ..harness.spec("Which word?") };
            let done = harness.ask(&api, &spec).await;
            assert_eq!(done.succeeded().session, first.outcome.session, "{done}");
            let said = api.turns().pop().unwrap().says(ConversationRole::User);
            assert!(said.iter().any(|text| text.contains("The word is heron.")), "{said:?}\n{done}");
        }
    });
}

fn live_error_of_the_model_is_a_failure(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::refuse(401))).await;
        let done = harness.ask(&api, &live(harness, "Say hello.")).await;
        assert_eq!(*done.failed(), FailureKind::Auth, "{done}");
    });
}
