//! Faults of an agent, each with its outcome.

use std::time::Duration;

use agents::{EarlyStop, Patience};
use model::{FailureKind, Limits};

use crate::Test;
use crate::harness::{ACP, ALL, Conversation, LiveProtocol, WITH_OPENING};

pub const TESTS: &[Test] = &[
    ("unanswered_handshake_is_a_protocol_error", WITH_OPENING, unanswered_handshake_is_a_protocol_error),
    ("other_protocol_version_is_named", ACP, other_protocol_version_is_named),
    ("banner_before_the_protocol_is_skipped", ALL, banner_before_the_protocol_is_skipped),
    ("rejected_request_is_named", WITH_OPENING, rejected_request_is_named),
    ("missing_login_is_an_auth_failure", ACP, missing_login_is_an_auth_failure),
    ("unknown_session_is_named", WITH_OPENING, unknown_session_is_named),
    ("unknown_request_does_not_end_the_turn", WITH_OPENING, unknown_request_does_not_end_the_turn),
    ("history_of_a_loaded_session_is_no_answer", ACP, history_of_a_loaded_session_is_no_answer),
    ("exit_in_the_handshake_is_no_success", WITH_OPENING, exit_in_the_handshake_is_no_success),
    ("exit_within_a_turn_is_no_success", ALL, exit_within_a_turn_is_no_success),
    ("killed_agent_is_named", ALL, killed_agent_is_named),
    ("unanswered_prompt_meets_the_deadline", WITH_OPENING, unanswered_prompt_meets_the_deadline),
    ("flood_meets_the_output_limit", ALL, flood_meets_the_output_limit),
    ("unread_prompt_meets_the_deadline", WITH_OPENING, unread_prompt_meets_the_deadline),
    ("closed_stdin_does_not_end_the_turn", ALL, closed_stdin_does_not_end_the_turn),
    ("garbage_within_a_turn_is_skipped", ALL, garbage_within_a_turn_is_skipped),
    ("agent_that_does_not_exit_is_stopped", ALL, agent_that_does_not_exit_is_stopped),
    ("error_of_the_model_has_its_kind", ALL, error_of_the_model_has_its_kind),
    ("turn_limit_is_no_success", ACP, turn_limit_is_no_success),
];

fn with_opening(protocol: LiveProtocol, opening: &'static [&'static str]) -> Conversation {
    Conversation { opening, ..Conversation::new(protocol, "answer Done.") }
}

/// A conversation that ends soon.
fn within(limit: Duration, conversation: Conversation) -> Conversation {
    let limits = Limits { wall: Some(limit), ..conversation.limits.clone() };
    Conversation { limits, ..conversation }
}

fn unanswered_handshake_is_a_protocol_error(protocol: LiveProtocol) {
    for (opening, method) in [
        (&["silent=initialize"][..], "initialize"),
        (&["silent=session/new", "silent=thread/start"][..], protocol.opening()),
    ] {
        let patience = Patience { handshake: Duration::from_millis(300), ..Patience::default() };
        let ended = Conversation { patience, ..with_opening(protocol, opening) }.end();
        let (kind, message) = ended.failure();
        assert_eq!(*kind, FailureKind::ProtocolError, "{message}");
        assert_eq!(message, format!("the agent did not reply to `{method}` within 0.3 s"));
        assert!(matches!(ended.end.early_stop, Some(EarlyStop::Unresponsive { .. })));
    }
}

fn other_protocol_version_is_named(protocol: LiveProtocol) {
    let ended = with_opening(protocol, &["version=7"]).end();
    let (kind, message) = ended.failure();
    assert_eq!(*kind, FailureKind::ProtocolError);
    assert!(message.contains("version 7") && message.contains("not 1"), "{message}");
}

fn banner_before_the_protocol_is_skipped(protocol: LiveProtocol) {
    assert_eq!(with_opening(protocol, &["banner"]).end().answer(), "Done.");
}

fn rejected_request_is_named(protocol: LiveProtocol) {
    let ended = with_opening(protocol, &["reject=initialize"]).end();
    let (kind, message) = ended.failure();
    assert_eq!(*kind, FailureKind::ProtocolError, "{message}");
    assert!(message.contains("the rehearsed rejection of initialize"), "{message}");
    let ended = with_opening(protocol, &["reject=session/new", "reject=thread/start"]).end();
    assert!(ended.failure().1.contains(&format!("the rehearsed rejection of {}", protocol.opening())));
    let ended = with_opening(protocol, &["reject=session/prompt", "reject=turn/start"]).end();
    assert!(ended.failure().1.contains(&format!("the rehearsed rejection of {}", protocol.prompting())));
}

fn missing_login_is_an_auth_failure(protocol: LiveProtocol) {
    let ended = with_opening(protocol, &["logged-out"]).end();
    let (kind, message) = ended.failure();
    assert_eq!(*kind, FailureKind::Auth);
    assert!(message.contains("run `rehearsal login`"), "{message}");
}

fn unknown_session_is_named(protocol: LiveProtocol) {
    let session = Some("5f0c1c6e-6a53-4c8f-9f8c-0a4f0f5b8d11");
    let ended = Conversation { session, ..with_opening(protocol, &["unknown-session"]) }.end();
    let (kind, message) = ended.failure();
    assert_eq!(*kind, FailureKind::SessionNotFound);
    assert!(message.contains("5f0c1c6e"), "{message}");
}

fn unknown_request_does_not_end_the_turn(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "request _craft/drain").end();
    assert!(ended.answer().contains("this client has no method `_craft/drain`"), "{ended:?}");
}

fn history_of_a_loaded_session_is_no_answer(protocol: LiveProtocol) {
    let session = Some("5f0c1c6e-6a53-4c8f-9f8c-0a4f0f5b8d11");
    let ended = Conversation { session, ..with_opening(protocol, &["half-replay"]) }.end();
    assert_eq!(ended.answer(), "Done.");
    assert!(ended.input.contains("session/load"), "{}", ended.input);
}

fn exit_in_the_handshake_is_no_success(protocol: LiveProtocol) {
    let ended = with_opening(protocol, &["exit=session/new", "exit=thread/start"]).end();
    let (kind, message) = ended.failure();
    assert_eq!(*kind, FailureKind::ProtocolError);
    assert!(message.contains("exit code 1 before it answered `"), "{message}");
}

fn exit_within_a_turn_is_no_success(protocol: LiveProtocol) {
    for (script, code) in [("say Half of\nexit 3", "exit code 3"), ("say Half of\ncut", "exit code 0")] {
        let ended = Conversation::new(protocol, script).end();
        let (kind, message) = ended.failure();
        assert_eq!(*kind, FailureKind::InvalidOutput);
        assert!(message.contains(code), "{message}");
        assert_eq!(ended.outcome.text, "Half of");
    }
}

fn killed_agent_is_named(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "say Half of\nsignal KILL").end();
    assert_eq!(*ended.failure().0, FailureKind::Killed { signal: 9 }, "{ended:?}");
}

fn unanswered_prompt_meets_the_deadline(protocol: LiveProtocol) {
    let silent = with_opening(protocol, &["silent=session/prompt", "silent=turn/start"]);
    let ended = within(Duration::from_secs(1), silent).end();
    assert!(matches!(ended.failure().0, FailureKind::Deadline { .. }), "{ended:?}");
}

fn flood_meets_the_output_limit(protocol: LiveProtocol) {
    for script in ["flood events 20MB", "flood stdout 20MB"] {
        let conversation = Conversation::new(protocol, script);
        let limits = Limits { output_bytes: Some(5_000_000), ..conversation.limits.clone() };
        let ended = Conversation { limits, ..conversation }.end();
        assert_eq!(*ended.failure().0, FailureKind::OutputLimit, "{script}");
    }
}

fn unread_prompt_meets_the_deadline(protocol: LiveProtocol) {
    let text = "x".repeat(5 << 20);
    let deaf = Conversation { text, ..with_opening(protocol, &["deaf"]) };
    let ended = within(Duration::from_secs(1), deaf).end();
    assert!(matches!(ended.failure().0, FailureKind::Deadline { .. }), "{:?}", ended.end.report);
    assert!(ended.input.len() > 5 << 20, "nothing that was sent is lost");
}

fn closed_stdin_does_not_end_the_turn(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "close stdin\nsay Still here.\nanswer Done.").end();
    assert_eq!(ended.answer(), "Done.");
}

fn garbage_within_a_turn_is_skipped(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "garbage utf8\ngarbage event\nraw not json\nanswer Done.").end();
    assert_eq!(ended.answer(), "Done.");
}

fn agent_that_does_not_exit_is_stopped(protocol: LiveProtocol) {
    let conversation = Conversation::new(protocol, "answer Done.\nhang");
    let patience = Patience { closed: Duration::from_millis(200), ..Patience::default() };
    let ended = Conversation { patience, ..conversation }.end();
    assert_eq!(ended.answer(), "Done.");
    assert_eq!(ended.end.early_stop, Some(EarlyStop::Answered));
}

fn error_of_the_model_has_its_kind(protocol: LiveProtocol) {
    for (script, expected) in [
        ("fail auth", FailureKind::Auth),
        ("fail overloaded", FailureKind::Overloaded),
        ("fail network", FailureKind::Network),
    ] {
        let ended = Conversation::new(protocol, script).end();
        assert_eq!(*ended.failure().0, expected, "{script}: {ended:?}");
    }
    let ended = Conversation::new(protocol, "fail rate-limit").end();
    assert!(matches!(ended.failure().0, FailureKind::RateLimit { .. }), "{ended:?}");
}

fn turn_limit_is_no_success(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "say So far.\nmax-turns").end();
    assert_eq!(*ended.failure().0, FailureKind::MaxTurns, "{ended:?}");
    assert_eq!(ended.outcome.text, "So far.");
}
