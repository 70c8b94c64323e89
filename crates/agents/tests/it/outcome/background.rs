//! Background work after an answer, and answers with several results.

use model::{AgentKind, Deadline, End, Exit, FailureKind, Usage};

use super::{DONE, Run, SAID_A, TURN_DONE, answer, invalid};

const STARTED: &str = r#"{"type":"system","subtype":"task_started","task_id":"t1","description":"the build","is_backgrounded":true}"#;
const TASK_DONE: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"completed"}"#;
const TASK_STOPPED: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"stopped"}"#;
const TASK_FAILED: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"failed"}"#;
const TASK_ODD: &str =
    r#"{"type":"system","subtype":"task_notification","task_id":"t1","status":"vanished"}"#;
const LISTED: &str = r#"{"type":"system","subtype":"background_tasks_changed","tasks":[{"task_id":"t1","description":"the build"}]}"#;
const NONE_LISTED: &str = r#"{"type":"system","subtype":"background_tasks_changed","tasks":[]}"#;
const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s1"}"#;

#[test]
fn work_cut_short_is_never_success() {
    let deadline = End::Deadline { which: Deadline::Wall };
    let at_deadline = FailureKind::Deadline { which: Deadline::Wall };
    let incomplete = Some(FailureKind::Incomplete);
    let table: [(&[&str], End, _, &[&str]); 15] = [
        (&[STARTED, TASK_DONE, DONE], End::Exited, None, &[]),
        (&[STARTED, DONE, TASK_DONE], End::Exited, None, &[]),
        (&[STARTED, DONE, TASK_DONE, INIT, DONE], End::Stopped, None, &[]),
        (&[STARTED, DONE], End::Exited, incomplete.clone(), &["killed"]),
        (&[STARTED, DONE, TASK_STOPPED], End::Exited, incomplete.clone(), &["stopped"]),
        (&[STARTED, DONE, TASK_ODD], End::Exited, incomplete.clone(), &["unknown"]),
        (&[STARTED, DONE, TASK_STOPPED, INIT, DONE], End::Exited, incomplete.clone(), &["stopped"]),
        // Stopped after its answer, which takes the stopped task into account.
        (&[STARTED, DONE, TASK_STOPPED, INIT, DONE], End::Stopped, incomplete.clone(), &["stopped"]),
        (&[STARTED, TASK_FAILED, DONE], End::Exited, None, &["failed"]),
        (&[STARTED, DONE, TASK_FAILED], End::Exited, incomplete.clone(), &["failed"]),
        (&[STARTED, DONE], deadline.clone(), Some(at_deadline.clone()), &["killed"]),
        (&[STARTED, DONE, TASK_STOPPED], deadline.clone(), Some(at_deadline.clone()), &["stopped"]),
        (&[STARTED, DONE, TASK_STOPPED], End::Stopped, Some(FailureKind::Stopped), &["stopped"]),
        (&[DONE, INIT], End::Exited, incomplete, &[]),
        (&[DONE, INIT], deadline, Some(at_deadline), &[]),
    ];
    for (lines, end, kind, statuses) in table {
        let run = Run { end: end.clone(), ..Run::of(AgentKind::Claude, lines.join("\n").leak()) };
        let outcome = run.outcome();
        assert_eq!(outcome.failure().map(|failure| failure.kind.clone()), kind, "{lines:?} {end}");
        assert!(outcome.text.starts_with("fine") && outcome.session.is_some(), "{lines:?} {end}");
        let found: Vec<_> = outcome.background.iter().map(|task| task.status.name()).collect();
        assert_eq!(found, statuses, "{lines:?} {end}");
    }
}

#[test]
fn task_known_only_from_list_is_tracked() {
    for (lines, statuses) in [
        (&[LISTED, DONE][..], &["killed"][..]),
        (&[LISTED, DONE, NONE_LISTED], &["unknown"]),
        (&[LISTED, DONE, TASK_DONE, NONE_LISTED], &[]),
    ] {
        let outcome = Run::of(AgentKind::Claude, lines.join("\n").leak()).outcome();
        let found: Vec<_> = outcome.background.iter().map(|task| task.status.name()).collect();
        assert_eq!((found.as_slice(), outcome.is_success()), (statuses, statuses.is_empty()), "{lines:?}");
    }
}

#[test]
fn results_of_one_run_are_combined() {
    let result = |text: &str, cost: f64, tokens: u64| {
        format!(
            r#"{{"type":"result","subtype":"success","is_error":false,"num_turns":2,"result":"{text}","total_cost_usd":{cost},"usage":{{"input_tokens":{tokens},"output_tokens":1}}}}"#
        )
    };
    let lines = [result("one", 0.5, 10), INIT.to_owned(), result("two", 0.75, 5), result("three", 0.875, 0)];
    let outcome = Run::of(AgentKind::Claude, lines.join("\n").leak()).outcome();
    assert!(outcome.is_success(), "{outcome:?}");
    assert_eq!(outcome.text, "one\n\ntwo\n\nthree");
    assert_eq!((outcome.turns, outcome.cost_usd), (Some(6), Some(0.875)));
    assert_eq!(outcome.usage, Some(Usage { input: 15, output: 3, ..Usage::default() }));
}

#[test]
fn failed_later_result_fails_the_run() {
    let failed =
        r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":529,"result":"busy"}"#;
    let run = Run::of(AgentKind::Claude, [STARTED, DONE, TASK_DONE, INIT, failed].join("\n").leak());
    assert_eq!(run.failure(), (FailureKind::Overloaded, "busy".to_owned()));
    assert_eq!(run.outcome().text, "fine");
}

#[test]
fn text_after_result_starts_further_turn() {
    let text = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"later"}]}}"#;
    let piece = r#"{"type":"stream_event","event":{"delta":{"type":"text_delta","text":"later"}}}"#;
    let failed = r#"{"type":"result","subtype":"success","is_error":true,"result":"no"}"#;
    for later in [text, piece] {
        let run = Run::of(AgentKind::Claude, [DONE, later].join("\n").leak());
        assert_eq!(run.failure().0, FailureKind::Incomplete);
        assert_eq!(run.outcome().text, "fine\n\nlater");
    }
    let newer = DONE.replace("fine", "newer");
    assert_eq!(answer(AgentKind::Claude, &[DONE, text, &newer].join("\n")), "fine\n\nnewer");
    assert_eq!(answer(AgentKind::Claude, &[failed, DONE].join("\n")), "fine");
    let run = Run::of(AgentKind::Claude, [DONE, failed].join("\n").leak());
    assert_eq!(run.failure(), (FailureKind::AgentError, "no".to_owned()));
    invalid(
        AgentKind::Claude,
        &[DONE, r#"{"type":"result","subtype":"success","is_error":false}"#].join("\n"),
    );
    invalid(AgentKind::Claude, &[DONE, &failed[..40]].join("\n"));
    let type_is_last = r#"{"subtype":"success","is_error":true,"result":"no","#;
    invalid(AgentKind::Claude, &[DONE, type_is_last].join("\n"));
    let gemini = r#"{"type":"message","role":"assistant","content":"x","delta":true}"#;
    let done = r#"{"type":"result","status":"success","stats":{"input_tokens":1}}"#;
    assert_eq!(answer(AgentKind::Gemini, &[gemini, done, done].join("\n")), "x");
    invalid(AgentKind::Gemini, &[gemini, done, gemini, done].join("\n"));
}

#[test]
fn exit_status_after_early_stop_is_dropped() {
    let outcome = Run { end: End::Stopped, code: 143, ..Run::of(AgentKind::Claude, DONE) }.outcome();
    assert_eq!((outcome.is_success(), outcome.exit), (true, None));
    let outcome = Run { end: End::Stopped, code: 143, ..Run::of(AgentKind::Claude, INIT) }.outcome();
    assert_eq!(outcome.exit, Some(Exit::Code(143)));
}

#[test]
fn agent_killed_after_result_is_failure() {
    for code in [137, 143] {
        let outcome = Run { code, ..Run::of(AgentKind::Claude, DONE) }.outcome();
        assert_eq!(outcome.failure().map(|failure| &failure.kind), Some(&FailureKind::Incomplete));
        assert_eq!(outcome.exit, Some(Exit::Code(code)));
    }
    assert!(Run { code: 1, ..Run::of(AgentKind::Claude, DONE) }.outcome().is_success());
}

#[test]
fn codex_background_command_is_incomplete() {
    let started = r#"{"type":"item.started","item":{"id":"1","type":"command_execution","command":"sleep 60","status":"in_progress"}}"#;
    let ended = r#"{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"sleep 60","exit_code":0,"status":"completed"}}"#;
    assert_eq!(answer(AgentKind::Codex, &[started, ended, SAID_A, TURN_DONE].join("\n")), "a");
    let run = Run::of(AgentKind::Codex, [started, SAID_A, TURN_DONE].join("\n").leak());
    assert_eq!(run.failure().0, FailureKind::Incomplete);
    assert_eq!(run.outcome().background[0].to_string(), "sleep 60 (killed)");
}
