//! Conversations: begun under a known id, taken up again, forked, and not found.

use model::{AgentKind, CallSpec, ExpectedSession, FailureKind, SessionChoice, SessionId, Usage};
use model_api::{ModelApi, ModelRequest, Role, Script, Turn};

use crate::desk::Desk;
use crate::pinned::Pinned;

crate::scenarios! {
    a_new_session_answers_under_a_known_id;
    a_resumed_session_remembers;
    the_latest_session_of_the_folder_is_continued;
    an_unknown_session_is_told_as_such;
    a_fork_remembers_and_leaves_the_old_session_alone, not for Gemini: "gemini has no fork";
}

/// The word that a session is told, and is to know later.
const TOLD: &str = "The word is heron.";

fn a_new_session_answers_under_a_known_id(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("Hello from the model.")).await;
        let done = desk.ask(&api, &desk.spec("Say hello.")).await;
        let outcome = done.succeeded();
        assert_eq!(outcome.text, "Hello from the model.", "{done}");
        assert_eq!(api.turns().len(), 1, "{done}");
        assert_eq!(api.turns()[0].prompt().as_deref(), Some("Say hello."));
        assert!(done.session().as_uuid().is_some(), "{done}");
        match &done.launch.session {
            ExpectedSession::Assigned(id) => assert_eq!(*id, done.session(), "{done}"),
            // Codex chooses its ids itself.
            expected => assert_eq!((desk.kind(), expected), (AgentKind::Codex, &ExpectedSession::Any)),
        }
        assert_eq!(outcome.usage, Some(usage_of_one_turn(desk)), "{done}");
        assert_eq!(outcome.cost_usd.is_some_and(|usd| usd > 0.0), desk.kind() == AgentKind::Claude, "{done}");
    });
}

/// What the scripted model claims for one answer, as far as the agent passes it on.
fn usage_of_one_turn(desk: &Desk) -> Usage {
    match desk.kind() {
        // Claude does not tell reasoning apart.
        AgentKind::Claude => Usage { input: 100, output: 20, cached: 40, reasoning: 0 },
        // Gemini asks a smaller model first which one is to answer, and that costs as well.
        AgentKind::Gemini => Usage { input: 200, output: 40, cached: 80, reasoning: 10 },
        _ => Usage { input: 100, output: 20, cached: 40, reasoning: 5 },
    }
}

fn a_resumed_session_remembers(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let (api, first) = told(desk).await;
        let resumed =
            CallSpec { session: SessionChoice::Resume(first.session()), ..desk.spec("Which word?") };
        let placed = desk.place(&api, &resumed).await;
        let second = placed.end(first.outcome.session_totals).await;
        assert_eq!(second.succeeded().session, first.outcome.session, "{second}");
        assert!(remembers(&last(&api), TOLD), "{second}");
        assert_eq!(last(&api).prompt().as_deref(), Some("Which word?"));
        // Some count the whole session: what is told is this run's own share.
        assert_eq!(second.outcome.usage, Some(usage_of_one_turn(desk)), "{second}");
    });
}

fn the_latest_session_of_the_folder_is_continued(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let (api, first) = told(desk).await;
        let elsewhere = desk.folder().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let newer = CallSpec { cwd: elsewhere, ..desk.spec("The word is crane.") };
        desk.ask(&api, &newer).await.succeeded();
        let latest = CallSpec { session: SessionChoice::ContinueLatest, ..desk.spec("Which word?") };
        let third = desk.ask(&api, &latest).await;
        assert_eq!(third.succeeded().session, first.outcome.session, "{third}");
        assert!(remembers(&last(&api), TOLD) && !remembers(&last(&api), "crane"), "{third}");
    });
}

fn an_unknown_session_is_told_as_such(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("Hello from the model.")).await;
        let nobody = SessionId::from(uuid::Uuid::new_v4());
        let spec = CallSpec { session: SessionChoice::Resume(nobody), ..desk.spec("Which word?") };
        let done = desk.ask(&api, &spec).await;
        assert_eq!(*done.failed(), FailureKind::SessionNotFound, "{done}");
        assert_eq!(done.outcome.session, None, "{done}");
        assert_eq!(api.turns().len(), 0, "{done}");
    });
}

fn a_fork_remembers_and_leaves_the_old_session_alone(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let (api, first) = told(desk).await;
        let old = first.session();
        let forked = CallSpec { session: SessionChoice::Fork(old.clone()), ..desk.spec("What else?") };
        let fork = desk.ask(&api, &forked).await;
        assert_ne!(fork.succeeded().session, Some(old.clone()), "{fork}");
        assert!(fork.launch.session.known().is_none_or(|id| *id == fork.session()), "{fork}");
        assert!(remembers(&last(&api), TOLD), "{fork}");
        let resumed = CallSpec { session: SessionChoice::Resume(old), ..desk.spec("Which word?") };
        let done = desk.ask(&api, &resumed).await;
        done.succeeded();
        assert!(remembers(&last(&api), TOLD) && !remembers(&last(&api), "What else?"), "{done}");
    });
}

/// A desk with a session that was told the word.
async fn told(desk: &Desk) -> (ModelApi, crate::story::Done) {
    let api = ModelApi::start(Script::turns(vec![Turn::text("Noted."), Turn::text("It is heron.")])).await;
    let first = desk.ask(&api, &desk.spec(TOLD)).await;
    assert_eq!(first.succeeded().text, "Noted.", "{first}");
    (api, first)
}

fn last(api: &ModelApi) -> ModelRequest {
    api.turns().pop().unwrap()
}

/// Whether the conversation of a request has both this prompt and an earlier answer in it.
fn remembers(request: &ModelRequest, prompt: &str) -> bool {
    let asked = request.says(Role::User).iter().any(|text| text.contains(prompt));
    asked && request.says(Role::Model).iter().any(|text| text == "Noted.")
}
