//! An unreachable or rejecting model: each failure has its own kind and is never a success.

use std::time::Duration;

use model::{AgentKind, CallSpec, Deadline, End, Exit, FailureKind, Limits, RunPlan};
use model_api::{ModelApi, ModelTurn, Script};

use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    rejected_key_is_auth_failure;
    rejected_login_stops_agent_retries,
        not for Codex: "codex gives up by itself within seconds", not for Gemini: "gemini exits at once";
    rate_limit_is_recognized;
    server_error_is_agent_error;
    overload_is_recognized;
    dropped_connection_is_network_failure;
    timeout_reports_repeated_rate_limit, not for Codex: "codex retries for seconds and says nothing of it";
}

fn rejected_key_is_auth_failure(cli: &Pinned) {
    fails(cli, ModelTurn::refuse(401), &FailureKind::Auth);
}

fn rejected_login_stops_agent_retries(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::refuse(401))).await;
        // With the default of ten retries, which take three minutes.
        let retrying = |plan: &mut RunPlan| drop(plan.env.remove("CLAUDE_CODE_MAX_RETRIES"));
        let done = harness.place_with(&api, &harness.spec("Say hello."), retrying).await.end(None).await;
        assert_eq!(*done.failed(), FailureKind::Auth, "{done}");
        assert_eq!(done.report.end, End::Stopped, "{done}");
        assert!(api.turns().len() < 5, "{} requests\n{done}", api.turns().len());
    });
}

fn rate_limit_is_recognized(cli: &Pinned) {
    let wait = Duration::from_secs(30);
    // Only gemini reports the waiting time.
    let retry_after = (cli.kind == AgentKind::Gemini).then_some(wait);
    fails(cli, ModelTurn::rate_limited(Some(wait)), &FailureKind::RateLimit { retry_after });
}

fn server_error_is_agent_error(cli: &Pinned) {
    // Codex reports any 500 as high demand.
    let kind = if cli.kind == AgentKind::Codex { FailureKind::Overloaded } else { FailureKind::AgentError };
    fails(cli, ModelTurn::refuse(500), &kind);
}

fn overload_is_recognized(cli: &Pinned) {
    fails(cli, ModelTurn::Overloaded, &FailureKind::Overloaded);
}

fn dropped_connection_is_network_failure(cli: &Pinned) {
    fails(cli, ModelTurn::cut_after("Half of an answer"), &FailureKind::Network);
}

fn fails(cli: &Pinned, turn: ModelTurn, kind: &FailureKind) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(turn)).await;
        let done = harness.ask(&api, &harness.spec("Say hello.")).await;
        assert_eq!(done.failed(), kind, "{done}");
        assert!(matches!(done.report.exit, Some(Exit::Code(code)) if code != 0), "{done}");
        assert!(!api.turns().is_empty(), "{done}");
        // The session survives the failure, as the hint suggests.
        assert!(done.outcome.session.is_some(), "{done}");
    });
}

/// With the default retries of the CLI, which take minutes.
fn timeout_reports_repeated_rate_limit(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::rate_limited(None))).await;
        let limits = Limits { wall: Some(Duration::from_secs(20)), ..harness.spec("").limits };
        let spec = CallSpec { limits, ..harness.spec("Say hello.") };
        let retrying = |plan: &mut RunPlan| {
            plan.env.remove("CLAUDE_CODE_MAX_RETRIES");
            let settings = harness.directory().join("home/.gemini/settings.json");
            if let Ok(text) = std::fs::read_to_string(&settings) {
                std::fs::write(&settings, text.replace("maxAttempts", "unused")).unwrap();
            }
        };
        let done = harness.place_with(&api, &spec, retrying).await.end(None).await;
        assert_eq!(*done.failed(), FailureKind::Deadline { which: Deadline::Wall }, "{done}");
        let message = &done.outcome.failure().unwrap().message;
        assert!(
            message.starts_with("the time limit of ") && message.contains(" expired; before that: "),
            "{done}"
        );
        assert!(message.ends_with("(HTTP 429)"), "{done}");
    });
}
