//! A model that cannot be reached or refuses: every way is told as its own kind, and never as a success.

use std::time::Duration;

use model::{AgentKind, CallSpec, Deadline, End, Exit, FailureKind, Limits, RunPlan};
use model_api::{ModelApi, Script, Turn};

use crate::desk::Desk;
use crate::pinned::Pinned;

crate::scenarios! {
    a_refused_key_is_an_auth_failure;
    refused_login_is_auth_without_the_agents_retries,
        not for Codex: "codex gives up by itself within seconds", not for Gemini: "gemini exits at once";
    a_rate_limit_is_told_as_one;
    a_broken_server_is_the_agents_error;
    an_overloaded_server_is_told_as_one;
    a_cut_connection_is_a_network_failure;
    timeout_names_the_limit_that_the_agent_kept_meeting, not for Codex: "codex retries for seconds and says nothing of it";
}

fn a_refused_key_is_an_auth_failure(cli: &Pinned) {
    fails(cli, Turn::refuse(401), &FailureKind::Auth);
}

fn refused_login_is_auth_without_the_agents_retries(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::always(Turn::refuse(401))).await;
        // As for a user: the ten retries of the CLI, which take three minutes.
        let retrying = |plan: &mut RunPlan| drop(plan.env.remove("CLAUDE_CODE_MAX_RETRIES"));
        let done = desk.place_with(&api, &desk.spec("Say hello."), retrying).await.end(None).await;
        assert_eq!(*done.failed(), FailureKind::Auth, "{done}");
        assert_eq!(done.report.end, End::Stopped, "{done}");
        assert!(api.turns().len() < 5, "{} requests\n{done}", api.turns().len());
    });
}

fn a_rate_limit_is_told_as_one(cli: &Pinned) {
    let wait = Duration::from_secs(30);
    // Only gemini passes on how long to wait.
    let retry_after = (cli.kind == AgentKind::Gemini).then_some(wait);
    fails(cli, Turn::rate_limited(Some(wait)), &FailureKind::RateLimit { retry_after });
}

fn a_broken_server_is_the_agents_error(cli: &Pinned) {
    // Codex says of any 500 that demand is high.
    let kind = if cli.kind == AgentKind::Codex { FailureKind::Overloaded } else { FailureKind::AgentError };
    fails(cli, Turn::refuse(500), &kind);
}

fn an_overloaded_server_is_told_as_one(cli: &Pinned) {
    fails(cli, Turn::Overloaded, &FailureKind::Overloaded);
}

fn a_cut_connection_is_a_network_failure(cli: &Pinned) {
    fails(cli, Turn::cut_after("Half of an answer"), &FailureKind::Network);
}

fn fails(cli: &Pinned, turn: Turn, kind: &FailureKind) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::always(turn)).await;
        let done = desk.ask(&api, &desk.spec("Say hello.")).await;
        assert_eq!(done.failed(), kind, "{done}");
        assert!(matches!(done.report.exit, Some(Exit::Code(code)) if code != 0), "{done}");
        assert!(!api.turns().is_empty(), "{done}");
        // The session outlives the failure: the hint is to take it up again.
        assert!(done.outcome.session.is_some(), "{done}");
    });
}

/// As for a user: with the retries of the CLI, which take minutes.
fn timeout_names_the_limit_that_the_agent_kept_meeting(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::always(Turn::rate_limited(None))).await;
        let limits = Limits { wall: Some(Duration::from_secs(20)), ..desk.spec("").limits };
        let spec = CallSpec { limits, ..desk.spec("Say hello.") };
        let retrying = |plan: &mut RunPlan| {
            plan.env.remove("CLAUDE_CODE_MAX_RETRIES");
            let settings = desk.folder().join("home/.gemini/settings.json");
            if let Ok(text) = std::fs::read_to_string(&settings) {
                std::fs::write(&settings, text.replace("maxAttempts", "unused")).unwrap();
            }
        };
        let done = desk.place_with(&api, &spec, retrying).await.end(None).await;
        assert_eq!(*done.failed(), FailureKind::Deadline { which: Deadline::Wall }, "{done}");
        let message = &done.outcome.failure().unwrap().message;
        assert!(message.starts_with("wall deadline; before that: "), "{done}");
        assert!(message.ends_with("(HTTP 429)"), "{done}");
    });
}
