//! Unreadable or contradictory output is never a success.

use agents::ParseLimits;
use model::{AgentKind, FailureKind, Usage};

use super::{DONE, Run, SAID_A, SAID_B, TURN_DONE, answer, invalid};

#[test]
fn stray_output_is_part_of_failure_message() {
    let (kind, message) = Run::of(AgentKind::Claude, "Segmentation fault\n").failure();
    assert_eq!(kind, FailureKind::InvalidOutput);
    assert!(message.ends_with("exit code 0: Segmentation fault"), "{message}");
}

#[test]
fn result_with_non_string_text_loses_the_answer() {
    for text in [r#"{"a":1}"#, "null", "7"] {
        let line = format!(r#"{{"type":"result","subtype":"success","is_error":false,"result":{text}}}"#);
        invalid(AgentKind::Claude, &line);
    }
}

#[test]
fn non_json_answer_to_schema_is_a_mismatch() {
    let run = Run { schema: Some("{}"), ..Run::of(AgentKind::Claude, DONE) };
    assert_eq!(run.failure().0, FailureKind::SchemaMismatch);
    let codex = |stdout| Run {
        schema: Some(r#"{"type":"object","required":["a"]}"#),
        ..Run::of(AgentKind::Codex, stdout)
    };
    let kept = codex(
        "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"{\\\"a\\\":1}\"}}\n{\"type\":\"turn.completed\"}",
    );
    assert_eq!(kept.outcome().structured_output.as_deref(), Some(r#"{"a":1}"#));
    let broken = codex(
        "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"sorry\"}}\n{\"type\":\"turn.completed\"}",
    );
    assert_eq!(broken.failure().0, FailureKind::SchemaMismatch);
    let another = codex(
        "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"42\"}}\n{\"type\":\"turn.completed\"}",
    );
    assert_eq!(another.outcome().structured_output.as_deref(), Some("42"));
    let (kind, message) = another.failure();
    assert_eq!(kind, FailureKind::SchemaMismatch);
    assert!(message.ends_with("42 is not of type \"object\""), "{message}");
}

#[test]
fn ambiguous_claude_result_is_not_success() {
    for unclear in [
        r#"{"type":"result"}"#,
        r#"{"type":"result","subtype":"success"}"#,
        r#"{"type":"result","is_error":false,"result":"x"}"#,
        r#"{"type":"result","subtype":"success","is_error":"true"}"#,
        r#"{"type":"result","subtype":"success","is_error":"false"}"#,
        r#"{"type":"result","subtype":"success","is_error":null}"#,
        r#"{"type":"result","subtype":"success","is_error":0}"#,
        r#"{"type":"result","subtype":"cancelled","is_error":false}"#,
        r#"{"type":"result","subtype":["success"],"is_error":false}"#,
    ] {
        let message = invalid(AgentKind::Claude, unclear);
        assert!(message.contains("unknown status"), "{message}");
    }
    for agent in [AgentKind::Claude, AgentKind::Rehearsal] {
        assert_eq!(
            answer(agent, r#"{"is_error":false,"result":"x","subtype":"success","type":"result"}"#),
            "x"
        );
    }
}

#[test]
fn malformed_result_json_is_never_success() {
    let deep = format!("{}{}", "[".repeat(200), "}".repeat(200));
    for rest in [
        "\"x\":\"\t\"",
        r#""x":1.2.3"#,
        r#""x":[1}]"#,
        r#""x":{"y"}"#,
        r#""x":"\q""#,
        &format!(r#""x":{deep}"#),
    ] {
        for word in
            [r#""is_error":true,"subtype":"error_max_turns""#, r#""is_error":false,"subtype":"success""#]
        {
            let message = invalid(AgentKind::Claude, &format!(r#"{{"type":"result",{word},{rest}}}"#));
            assert!(message.contains("result cannot be parsed"), "{message}");
        }
        invalid(AgentKind::Codex, &format!(r#"{{"type":"turn.completed",{rest}}}"#));
        invalid(AgentKind::Codex, &format!(r#"{{"type":"turn.failed",{rest}}}"#));
        invalid(AgentKind::Gemini, &format!(r#"{{"type":"result","status":"success",{rest}}}"#));
    }
}

#[test]
fn failure_survives_huge_numbers_and_depth() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for rest in [r#""total_cost_usd":1e999,"num_turns":1e999"#, &format!(r#""x":{deep}"#)] {
        let line =
            format!(r#"{{"type":"result","is_error":true,"api_error_status":401,"result":"bad",{rest}}}"#);
        let run = Run::of(AgentKind::Claude, line.leak());
        assert_eq!(run.failure(), (FailureKind::Auth, "bad".to_owned()));
        assert_eq!((run.outcome().cost_usd, run.outcome().turns), (None, None));
    }
}

#[test]
fn result_with_lone_surrogates_is_parsed() {
    let failed = r#"{"type":"result","is_error":true,"api_error_status":401,"result":"bad \ud83d"}"#;
    assert_eq!(Run::of(AgentKind::Claude, failed).failure(), (FailureKind::Auth, "bad \u{fffd}".to_owned()));
    let turns = r#"{"type":"result","subtype":"error_max_turns","is_error":true,"num_turns":3,"errors":["\ude00 x"],"session_id":"s"}"#;
    let run = Run::of(AgentKind::Claude, turns);
    assert_eq!(run.failure(), (FailureKind::MaxTurns, "\u{fffd} x".to_owned()));
    assert_eq!(run.outcome().turns, Some(2));
    let denied = r#"{"type":"result","subtype":"success","is_error":false,"result":"x","permission_denials":[{"tool_name":"Bash","tool_input":{"command":"\ud83d"}}]}"#;
    let refused = &Run::of(AgentKind::Claude, denied).outcome().refusals[0];
    assert_eq!(refused.detail.as_deref(), Some(r#"{"command":"\ud83d"}"#));
    let done = r#"{"type":"result","subtype":"success","is_error":false,"result":"a\ud83d","total_cost_usd":0.5,"num_turns":2,"usage":{"input_tokens":7},"structured_output":{"a":"\ud83d","b":"\ud83d\ude00"}}"#;
    let outcome = Run { schema: Some("{}"), ..Run::of(AgentKind::Claude, done) }.outcome();
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!((outcome.text.as_str(), outcome.cost_usd, outcome.turns), ("a\u{fffd}", Some(0.5), Some(2)));
    assert_eq!(outcome.usage, Some(Usage { input: 7, ..Usage::default() }));
    assert_eq!(outcome.structured_output.as_deref(), Some(r#"{"a":"\ufffd","b":"\ud83d\ude00"}"#));
}

#[test]
fn contradictory_turn_end_is_not_success() {
    let codex = r#"{"type":"turn.completed","error":{"message":"rate limit"}}"#;
    assert!(matches!(Run::of(AgentKind::Codex, codex).failure().0, FailureKind::RateLimit { .. }));
    let gemini = r#"{"type":"result","status":"success","error":{"type":"unknown","message":"boom"}}"#;
    assert_eq!(Run::of(AgentKind::Gemini, gemini).failure().0, FailureKind::AgentError);
    for status in [r#""status":true"#, r#""status":"cancelled""#, r#""x":1"#] {
        invalid(AgentKind::Gemini, &format!(r#"{{"type":"result",{status}}}"#));
    }
}

#[test]
fn unreadable_answer_is_not_replaced_by_earlier_text() {
    let over = "x".repeat(ParseLimits::default().line_bytes);
    let big = |kind: &str, field: &str| {
        format!(r#"{{"type":"item.completed","item":{{"id":"1","type":"{kind}","{field}":"{over}"}}}}"#)
    };
    let lost = [big("agent_message", "text"), SAID_B[..SAID_B.len() - 3].to_owned(), SAID_B[1..].to_owned()];
    for lost in lost {
        let message = invalid(AgentKind::Codex, &format!("{SAID_A}\n{lost}\n{TURN_DONE}"));
        assert!(message.contains("the answer is not known"), "{message}");
        assert_eq!(answer(AgentKind::Codex, &format!("{lost}\n{SAID_B}\n{TURN_DONE}")), "b");
    }
    for harmless in [big("command_execution", "aggregated_output"), "a stray print".to_owned()] {
        assert_eq!(answer(AgentKind::Codex, &format!("{SAID_A}\n{harmless}\n{TURN_DONE}")), "a");
    }
    let no_text = r#"{"type":"item.completed","item":{"type":"agent_message"}}"#;
    invalid(AgentKind::Codex, &format!("{SAID_A}\n{no_text}\n{TURN_DONE}"));
    // Claude repeats its answer in the result.
    let claude = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"#;
    assert_eq!(answer(AgentKind::Claude, &format!("{claude}\n{DONE}")), "fine");
    let mute = r#"{"type":"result","subtype":"success","is_error":false}"#;
    invalid(AgentKind::Claude, &format!("{claude}\n{mute}"));
}

#[test]
fn lost_gemini_delta_is_not_success() {
    let piece =
        |text: &str| format!(r#"{{"type":"message","role":"assistant","content":"{text}","delta":true}}"#);
    let done = r#"{"type":"result","status":"success","stats":{"total_tokens":3,"input_tokens":1}}"#;
    let tool = r#"{"type":"tool_use","tool_name":"t","tool_id":"t__1","parameters":{}}"#;
    let cut = &piece("x")[..40];
    invalid(AgentKind::Gemini, &[&piece("a"), cut, &piece("b"), done].join("\n"));
    invalid(AgentKind::Gemini, &[cut, &piece("b"), done].join("\n"));
    invalid(AgentKind::Gemini, &[&piece("a"), cut, tool, done].join("\n"));
    assert_eq!(answer(AgentKind::Gemini, &[&piece("a"), cut, tool, &piece("b"), done].join("\n")), "b");
}

#[test]
fn new_turn_clears_completed_flag() {
    let started = r#"{"type":"turn.started"}"#;
    invalid(AgentKind::Codex, &[SAID_A, TURN_DONE, started, &SAID_B[..40]].join("\n"));
    invalid(AgentKind::Codex, &[SAID_A, TURN_DONE, started].join("\n"));
    invalid(AgentKind::Codex, &[SAID_A, TURN_DONE, SAID_B].join("\n"));
    assert_eq!(answer(AgentKind::Codex, &[SAID_A, TURN_DONE, started, SAID_B, TURN_DONE].join("\n")), "b");
    assert_eq!(answer(AgentKind::Codex, &[SAID_A, TURN_DONE, SAID_B, TURN_DONE].join("\n")), "b");
    assert_eq!(answer(AgentKind::Codex, &[SAID_A, TURN_DONE, started, TURN_DONE].join("\n")), "");
}
