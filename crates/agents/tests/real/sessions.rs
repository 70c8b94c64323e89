//! Sessions: started with a known id, resumed, forked and not found.

use model::{AgentKind, CallSpec, ExpectedSession, FailureKind, SessionChoice, SessionId, Usage};
use model_api::{ConversationRole, ModelApi, ModelRequest, ModelTurn, Script};

use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    new_session_has_known_id;
    resumed_session_remembers;
    latest_session_of_directory_is_continued;
    unknown_session_is_reported;
    fork_leaves_original_session_unchanged, not for Gemini: "gemini has no fork";
}

/// A word in the session's history.
const TOLD: &str = "The word is heron.";

fn new_session_has_known_id(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Hello from the model.")).await;
        let done = harness.ask(&api, &harness.spec("Say hello.")).await;
        let outcome = done.succeeded();
        assert_eq!(outcome.text, "Hello from the model.", "{done}");
        assert_eq!(api.turns().len(), 1, "{done}");
        assert_eq!(api.turns()[0].prompt().as_deref(), Some("Say hello."));
        assert!(done.session().as_uuid().is_some(), "{done}");
        match &done.launch.session {
            ExpectedSession::Assigned(id) => assert_eq!(*id, done.session(), "{done}"),
            // Codex assigns its ids itself.
            expected => assert_eq!((harness.kind(), expected), (AgentKind::Codex, &ExpectedSession::Any)),
        }
        assert_eq!(outcome.usage, Some(usage_of_one_turn(harness)), "{done}");
        assert_eq!(
            outcome.cost_usd.is_some_and(|usd| usd > 0.0),
            harness.kind() == AgentKind::Claude,
            "{done}"
        );
    });
}

/// The usage that the scripted model reports for one answer, as far as the agent passes it on.
fn usage_of_one_turn(harness: &Harness) -> Usage {
    match harness.kind() {
        // Claude does not report reasoning separately.
        AgentKind::Claude => Usage { input: 100, output: 20, cached: 40, reasoning: 0 },
        // Gemini's routing model also uses tokens.
        AgentKind::Gemini => Usage { input: 200, output: 40, cached: 80, reasoning: 10 },
        _ => Usage { input: 100, output: 20, cached: 40, reasoning: 5 },
    }
}

fn resumed_session_remembers(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let (api, first) = told(harness).await;
        let resumed =
            CallSpec { session: SessionChoice::Resume(first.session()), ..harness.spec("Which word?") };
        let started = harness.place(&api, &resumed).await;
        let second = started.end(first.outcome.session_totals).await;
        assert_eq!(second.succeeded().session, first.outcome.session, "{second}");
        assert!(remembers(&last(&api), TOLD), "{second}");
        assert_eq!(last(&api).prompt().as_deref(), Some("Which word?"));
        // Some agents count the whole session; the outcome has only this run's share.
        assert_eq!(second.outcome.usage, Some(usage_of_one_turn(harness)), "{second}");
    });
}

fn latest_session_of_directory_is_continued(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let (api, first) = told(harness).await;
        let elsewhere = harness.directory().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let newer = CallSpec { cwd: elsewhere, ..harness.spec("The word is crane.") };
        harness.ask(&api, &newer).await.succeeded();
        let latest = CallSpec { session: SessionChoice::ContinueLatest, ..harness.spec("Which word?") };
        let third = harness.ask(&api, &latest).await;
        assert_eq!(third.succeeded().session, first.outcome.session, "{third}");
        assert!(remembers(&last(&api), TOLD) && !remembers(&last(&api), "crane"), "{third}");
    });
}

fn unknown_session_is_reported(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Hello from the model.")).await;
        let nobody = SessionId::from(uuid::Uuid::new_v4());
        let spec = CallSpec { session: SessionChoice::Resume(nobody), ..harness.spec("Which word?") };
        let done = harness.ask(&api, &spec).await;
        assert_eq!(*done.failed(), FailureKind::SessionNotFound, "{done}");
        assert_eq!(done.outcome.session, None, "{done}");
        assert_eq!(api.turns().len(), 0, "{done}");
    });
}

fn fork_leaves_original_session_unchanged(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let (api, first) = told(harness).await;
        let old = first.session();
        let forked = CallSpec { session: SessionChoice::Fork(old.clone()), ..harness.spec("What else?") };
        let fork = harness.ask(&api, &forked).await;
        assert_ne!(fork.succeeded().session, Some(old.clone()), "{fork}");
        assert!(fork.launch.session.known().is_none_or(|id| *id == fork.session()), "{fork}");
        assert!(remembers(&last(&api), TOLD), "{fork}");
        let resumed = CallSpec { session: SessionChoice::Resume(old), ..harness.spec("Which word?") };
        let done = harness.ask(&api, &resumed).await;
        done.succeeded();
        assert!(remembers(&last(&api), TOLD) && !remembers(&last(&api), "What else?"), "{done}");
    });
}

/// Returns a session with the word in its history.
async fn told(harness: &Harness) -> (ModelApi, crate::story::Done) {
    let api =
        ModelApi::start(Script::turns(vec![ModelTurn::text("Noted."), ModelTurn::text("It is heron.")]))
            .await;
    let first = harness.ask(&api, &harness.spec(TOLD)).await;
    assert_eq!(first.succeeded().text, "Noted.", "{first}");
    (api, first)
}

fn last(api: &ModelApi) -> ModelRequest {
    api.turns().pop().unwrap()
}

/// Returns whether a request contains both this prompt and an earlier answer.
fn remembers(request: &ModelRequest, prompt: &str) -> bool {
    let asked = request.says(ConversationRole::User).iter().any(|text| text.contains(prompt));
    asked && request.says(ConversationRole::Model).iter().any(|text| text == "Noted.")
}
