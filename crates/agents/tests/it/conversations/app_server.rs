//! The protocol of `codex app-server`.

use agents::{AppServerSpec, AppServerThread, DriverSpec, ReportedErrorCode, ReportedResult};
use model::{AgentEvent, TextPart, Usage};
use serde_json::{Map, json};

use super::converse;

const INITIALIZED: &str =
    r#"{"id":1,"result":{"userAgent":"switchboard/0.166.0","codexHome":"/home/ana/.codex"}}"#;
const OPENED: &str =
    r#"{"id":2,"result":{"thread":{"id":"01a1","turns":[]},"model":"gpt-5.5","approvalPolicy":"never"}}"#;
const STARTED: &str = r#"{"id":100,"result":{"turn":{"id":"t1","status":"inProgress"}}}"#;
const ENDED: &str = r#"{"method":"turn/completed","params":{"threadId":"01a1","turn":{"id":"t1","items":[],"status":"completed","error":null}},"emittedAtMs":1}"#;

pub const THREAD_TURN: &[&str] = &[
    INITIALIZED,
    r#"{"method":"configWarning","params":{"summary":"no bubblewrap","details":null},"emittedAtMs":1}"#,
    OPENED,
    STARTED,
    r#"{"method":"turn/started","params":{"threadId":"01a1","turn":{"id":"t1"}},"emittedAtMs":1}"#,
    r#"{"method":"item/completed","params":{"item":{"type":"userMessage","id":"u","content":[]},"threadId":"01a1"}}"#,
    r#"{"method":"item/started","params":{"item":{"type":"commandExecution","id":"c1","command":"/bin/bash -lc ls","status":"inProgress","aggregatedOutput":null,"exitCode":null},"threadId":"01a1"}}"#,
    r#"{"method":"item/completed","params":{"item":{"type":"commandExecution","id":"c1","command":"/bin/bash -lc ls","status":"completed","aggregatedOutput":"a\n","exitCode":0},"threadId":"01a1"}}"#,
    r#"{"method":"item/tool/requestUserInput","id":7,"params":{}}"#,
    r#"{"method":"item/agentMessage/delta","params":{"threadId":"01a1","itemId":"m","delta":"One "}}"#,
    r#"{"method":"item/completed","params":{"item":{"type":"agentMessage","id":"m","text":"One file."},"threadId":"01a1"}}"#,
    r#"{"method":"thread/tokenUsage/updated","params":{"threadId":"01a1","tokenUsage":{"total":{"totalTokens":316,"inputTokens":300,"cachedInputTokens":20,"outputTokens":16,"reasoningOutputTokens":4},"last":{"inputTokens":200,"outputTokens":9}}}}"#,
    ENDED,
];

fn spec(thread: AppServerThread) -> AppServerSpec {
    let options = json!({ "cwd": "/work", "approvalPolicy": "never" });
    let (prompt, images) = ("List the files.".to_owned(), Vec::new());
    AppServerSpec { thread, options: options.as_object().unwrap().clone(), prompt, images, turn: Map::new() }
}

pub fn thread() -> DriverSpec {
    DriverSpec::CodexAppServer(spec(AppServerThread::New))
}

#[test]
fn turn_is_started_answered_and_closed() {
    let course = converse(&thread(), THREAD_TURN);
    assert_eq!(course.methods(), ["initialize", "initialized", "thread/start", "turn/start", "reply"]);
    assert!(course.closed);
    assert_eq!(course.summary.reported, Some(ReportedResult::Done));
    assert_eq!(course.summary.text(), "One file.");
    assert_eq!(course.summary.session_id.as_deref(), Some("01a1"));
    let usage = Usage { input: 300, output: 16, cached: 20, reasoning: 4 };
    assert_eq!(course.summary.usage, Some(usage));
    assert_eq!(course.messages()[4]["error"]["code"], -32601);
}

#[test]
fn items_become_events() {
    let course = converse(&thread(), THREAD_TURN);
    let shown: Vec<String> = course
        .events
        .iter()
        .filter_map(|event| match event {
            AgentEvent::ToolUse { name, input, .. } => Some(format!("{name} {input}")),
            AgentEvent::ToolResult { exit_code, .. } => Some(format!("{exit_code:?}")),
            AgentEvent::Text { text, part, .. } => {
                Some(format!("{} {text}", if *part == TextPart::Whole { "whole" } else { "delta" }))
            }
            AgentEvent::Warning { message } => Some(format!("warning {message}")),
            _ => None,
        })
        .collect();
    let expected = [
        "warning no bubblewrap",
        r#"command_execution "/bin/bash -lc ls""#,
        "Some(0)",
        "delta One ",
        "whole One file.",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn thread_is_resumed_without_its_history() {
    let course = converse(
        &DriverSpec::CodexAppServer(spec(AppServerThread::Resume("01a1".to_owned()))),
        &[INITIALIZED],
    );
    let expected =
        json!({"cwd": "/work", "approvalPolicy": "never", "threadId": "01a1", "excludeTurns": true});
    assert_eq!(
        (&course.messages()[2]["method"], &course.messages()[2]["params"]),
        (&json!("thread/resume"), &expected)
    );
    let lines =
        [INITIALIZED, r#"{"id":2,"error":{"code":-32600,"message":"no rollout found for thread id 01a1"}}"#];
    let course =
        converse(&DriverSpec::CodexAppServer(spec(AppServerThread::Resume("01a1".to_owned()))), &lines);
    let Some(ReportedResult::Failed(error)) = &course.summary.reported else { panic!() };
    assert_eq!(error.code, ReportedErrorCode::SessionNotFound);
}

#[test]
fn failed_turn_has_its_code_and_status() {
    let turn = |status: &str, error: &str| {
        ENDED
            .replace("\"completed\"", &format!("\"{status}\""))
            .replace("\"error\":null", &format!("\"error\":{error}"))
    };
    let table = [
        (
            turn("failed", r#"{"message":"no","codexErrorInfo":"unauthorized"}"#),
            ReportedErrorCode::Auth,
            None,
        ),
        (
            turn("failed", r#"{"message":"no","codexErrorInfo":"usageLimitExceeded"}"#),
            ReportedErrorCode::Other,
            Some(429),
        ),
        (
            turn(
                "failed",
                r#"{"message":"no","codexErrorInfo":{"responseStreamConnectionFailed":{"httpStatusCode":503}}}"#,
            ),
            ReportedErrorCode::Other,
            Some(503),
        ),
        (turn("interrupted", "null"), ReportedErrorCode::CutOff, None),
        (turn("completed", r#"{"message":"odd"}"#), ReportedErrorCode::Other, None),
    ];
    for (line, code, status) in table {
        let course = converse(&thread(), &[INITIALIZED, OPENED, STARTED, &line]);
        let Some(ReportedResult::Failed(error)) = &course.summary.reported else { panic!("{line}") };
        assert_eq!((error.code, error.http_status), (code, status), "{line}");
        assert!(course.closed);
    }
}
