//! The Agent Client Protocol, with the deviations of real agents.

use agents::{
    AcpImage, AcpServer, AcpSession, AcpSpec, DriverSpec, ModelErrorReport, PermissionRule,
    ReportedErrorCode, ReportedResult, UsageReport,
};
use model::{AgentEvent, ToolOutput, Usage};
use serde_json::json;

use super::{Course, converse};

pub const INITIALIZED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"promptCapabilities":{"image":true},"sessionCapabilities":{"resume":{},"fork":{},"additionalDirectories":{}}},"agentInfo":{"name":"OpenCode","version":"1.18.33"},"authMethods":[{"id":"login","name":"Login","description":"Run `opencode auth login`"}]}}"#;
/// An agent that replays a session to load it.
const LOADS_ONLY: &str =
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#;
pub const OPENED: &str = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"ses_1","configOptions":[{"id":"m","category":"model","currentValue":"openai/small","options":[{"value":"openai/small","name":"Small"},{"value":"openai/large","name":"Large"}]},{"id":"t","category":"thought_level","currentValue":"low","options":[{"value":"low","name":"Low"},{"value":"high","name":"High"}]},{"id":"mode","category":"mode","currentValue":"default","options":[{"value":"default","name":"Ask"},{"value":"yolo","name":"YOLO"}]}]}}"#;
const DONE: &str = r#"{"jsonrpc":"2.0","id":100,"result":{"stopReason":"end_turn","usage":{"inputTokens":100,"outputTokens":7,"totalTokens":107}}}"#;

pub const TURN: &[&str] = &[
    "opencode is starting",
    INITIALIZED,
    OPENED,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"agent_message_chunk","messageId":"a","content":{"type":"text","text":"Let me "}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"agent_message_chunk","messageId":"a","content":{"type":"text","text":"look."}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call","toolCallId":"c1","title":"bash","kind":"execute","status":"pending","rawInput":{}}}}"#,
    r#"{"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{"sessionId":"ses_1","toolCall":{"toolCallId":"c1","title":"touch a","kind":"execute","rawInput":{"command":"touch a"}},"options":[{"optionId":"always","kind":"allow_always","name":"Always"},{"optionId":"once","kind":"allow_once","name":"Once"},{"optionId":"no","kind":"reject_once","name":"No"}]}}"#,
    r#"{"jsonrpc":"2.0","id":"x-1","method":"craft/drainMidTurnQueue","params":{}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"in_progress","kind":"execute","title":"touch a","rawInput":{"command":"touch a"}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call_update","toolCallId":"c1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"HI\n"}}],"rawOutput":{"output":"HI\n","metadata":{"exit":3}}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"agent_message_chunk","messageId":"b","content":{"type":"text","text":"Done."}}}}"#,
    DONE,
];

pub const RESUME: &[&str] = &[
    LOADS_ONLY,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"before"}}}}"#,
    r#"{"jsonrpc":"2.0","id":2,"result":{}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"old answer"}}}}"#,
    r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"Method not found"}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"new answer"}}}}"#,
    DONE,
];

pub fn acp(session: AcpSession) -> AcpSpec {
    AcpSpec {
        cwd: "/work".to_owned(),
        add_dirs: Vec::new(),
        session,
        prompt: "Say hello.".to_owned(),
        images: Vec::new(),
        mcp_servers: Vec::new(),
        model: None,
        effort: None,
        mode: None,
        permissions: PermissionRule::Allow,
        has_terminals: false,
        usage: UsageReport::PerPrompt,
        errors: ModelErrorReport::Reply,
    }
}

pub fn spec() -> DriverSpec {
    DriverSpec::Acp(acp(AcpSession::New))
}

pub fn resume() -> DriverSpec {
    DriverSpec::Acp(acp(AcpSession::Resume("ses_1".to_owned())))
}

pub fn failure(course: &Course) -> (ReportedErrorCode, String) {
    match &course.summary.reported {
        Some(ReportedResult::Failed(error)) => (error.code, error.message.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn turn_is_opened_answered_and_closed() {
    let course = converse(&spec(), TURN);
    let methods = ["initialize", "session/new", "session/prompt", "reply", "reply"];
    assert_eq!(course.methods(), methods);
    assert!(course.closed);
    assert_eq!(course.summary.reported, Some(ReportedResult::Done));
    assert_eq!(course.summary.text(), "Done.");
    assert_eq!(course.summary.session_id.as_deref(), Some("ses_1"));
    assert_eq!(course.summary.model.as_deref(), Some("openai/small"));
    assert_eq!(course.summary.agent_version.as_deref(), Some("1.18.33"));
    assert_eq!(course.summary.usage, Some(Usage { input: 100, output: 7, ..Usage::default() }));
    assert_eq!(course.summary.stray_lines, 1);
}

#[test]
fn tool_call_has_its_arguments_and_its_result() {
    let course = converse(&spec(), TURN);
    let tools: Vec<_> = course
        .events
        .iter()
        .filter_map(|event| match event {
            AgentEvent::ToolUse { name, input, .. } => Some(format!("{name} {input}")),
            AgentEvent::ToolResult { output: ToolOutput::Text(text), is_error, exit_code, .. } => {
                Some(format!("{text:?} {is_error} {exit_code:?}"))
            }
            _ => None,
        })
        .collect();
    assert_eq!(tools, [r#"execute {"command":"touch a"}"#, r#""HI\n" true Some(3)"#]);
}

/// `OpenCode` announces a command with its directory alone.
#[test]
fn pending_tool_call_waits_for_its_arguments() {
    let update = |rest: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"ses_1","update":{{"toolCallId":"1",{rest}}}}}}}"#
        )
    };
    let pending = update(
        r#""sessionUpdate":"tool_call","title":"bash","kind":"execute","status":"pending","rawInput":{"cwd":"/w"}"#,
    );
    let running = update(
        r#""sessionUpdate":"tool_call_update","status":"in_progress","rawInput":{"command":"ls","cwd":"/w"}"#,
    );
    let ended =
        update(r#""sessionUpdate":"tool_call_update","status":"completed","rawOutput":{"output":"a"}"#);
    let used = |lines: &[&str]| {
        let course = converse(&spec(), &[&[INITIALIZED, OPENED], lines, &[DONE]].concat());
        results(&course).swap_remove(0)
    };
    assert_eq!(used(&[&pending, &running, &ended]), r#"execute {"command":"ls","cwd":"/w"}"#);
    assert_eq!(used(&[&pending, &ended]), r#"execute {"cwd":"/w"}"#);
}

/// A command that the agent ran through its client, as Kimi Code 2.1.0 reports it.
const TERMINAL: &[&str] = &[
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call","toolCallId":"0:call_1","title":"Bash","kind":"execute","status":"pending","content":[{"type":"content","content":{"type":"text","text":"{\"command\": \"echo HI; exit 3\"}"}}]}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call_update","toolCallId":"0:call_1","title":"Running: echo HI; exit 3","kind":"execute","status":"in_progress","rawInput":{"command":"echo HI; exit 3"},"content":[{"type":"content","content":{"type":"text","text":"{\"command\":\"echo HI; exit 3\"}"}}]}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call_update","toolCallId":"0:call_1","content":[{"type":"terminal","terminalId":"terminal-1"}]}}}"#,
    r#"{"jsonrpc":"2.0","method":"_switchboard/terminal_output","params":{"terminalId":"terminal-1","output":"HI\n","truncated":false,"exitStatus":{"exitCode":3,"signal":null}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call_update","toolCallId":"0:call_1","status":"failed","content":[{"type":"terminal","terminalId":"terminal-1"}]}}}"#,
];

fn results(course: &Course) -> Vec<String> {
    let results = course.events.iter().filter_map(|event| match event {
        AgentEvent::ToolUse { name, input, .. } => Some(format!("{name} {input}")),
        AgentEvent::ToolResult { output, is_error, exit_code, .. } => {
            Some(format!("{output:?} {is_error} {exit_code:?}"))
        }
        _ => None,
    });
    results.collect()
}

#[test]
fn command_in_a_terminal_has_its_output() {
    let lines = [&[INITIALIZED, OPENED], TERMINAL, &[DONE]].concat();
    let spec = DriverSpec::Acp(AcpSpec { has_terminals: true, ..acp(AcpSession::New) });
    let course = converse(&spec, &lines);
    let expected = [r#"execute {"command":"echo HI; exit 3"}"#, r#"Text("HI\n") true Some(3)"#];
    assert_eq!(results(&course), expected);
    assert!(!course.events.iter().any(|event| matches!(event, AgentEvent::Unknown { .. })));
}

#[test]
fn tool_result_without_its_terminal_has_no_output() {
    let lines = [&[INITIALIZED, OPENED], &TERMINAL[..3], &TERMINAL[4..], &[DONE]].concat();
    let spec = DriverSpec::Acp(AcpSpec { has_terminals: true, ..acp(AcpSession::New) });
    assert_eq!(results(&converse(&spec, &lines))[1], "Nothing true None");
}

#[test]
fn permission_is_selected_by_kind() {
    let course = converse(&spec(), TURN);
    let reply = &course.messages()[3];
    assert_eq!(
        *reply,
        json!({"jsonrpc": "2.0", "id": 0, "result": {"outcome": {"outcome": "selected", "optionId": "once"}}})
    );
    let read_only =
        DriverSpec::Acp(AcpSpec { permissions: PermissionRule::ReadOnly, ..acp(AcpSession::New) });
    let course = converse(&read_only, TURN);
    assert_eq!(course.messages()[3]["result"]["outcome"]["optionId"], "no");
    assert_eq!(course.summary.denials[0].tool, "touch a");
    // Without a matching option, the agent learns that nothing was selected.
    let request = TURN[6].replace("reject_once", "other");
    let course = converse(&read_only, &[INITIALIZED, OPENED, &request]);
    assert_eq!(course.messages()[3]["result"]["outcome"], json!({"outcome": "cancelled"}));
}

#[test]
fn unknown_request_is_rejected_and_the_turn_continues() {
    let course = converse(&spec(), TURN);
    let reply = &course.messages()[4];
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!("x-1"), &json!(-32601)));
    assert_eq!(course.summary.reported, Some(ReportedResult::Done));
}

#[test]
fn options_are_set_before_the_prompt() {
    let options = AcpSpec {
        model: Some("large".to_owned()),
        effort: Some("HIGH".to_owned()),
        mode: Some("yolo".to_owned()),
        ..acp(AcpSession::New)
    };
    let set = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    let replies = [set(10), set(11), set(12)];
    let lines = [INITIALIZED, OPENED, &replies[0], &replies[1], &replies[2], DONE];
    let course = converse(&DriverSpec::Acp(options), &lines);
    let set: Vec<_> = course.messages()[2..5].iter().map(|message| message["params"].clone()).collect();
    let option = |id, value| json!({"sessionId": "ses_1", "configId": id, "value": value});
    assert_eq!(set, [option("mode", "yolo"), option("m", "openai/large"), option("t", "high")]);
    assert_eq!(course.methods()[5], "session/prompt");
    assert_eq!(course.summary.reported, Some(ReportedResult::Done));
}

#[test]
fn earlier_form_of_the_options_is_set() {
    let opened = r#"{"id":2,"result":{"sessionId":"s","models":{"currentModelId":"a","availableModels":[{"modelId":"a","name":"A"},{"modelId":"b","name":"B"}]},"modes":{"currentModeId":"ask","availableModes":[{"id":"ask"},{"id":"yolo"}]}}}"#;
    let options =
        AcpSpec { model: Some("B".to_owned()), mode: Some("yolo".to_owned()), ..acp(AcpSession::New) };
    let lines = [INITIALIZED, opened, r#"{"id":10,"result":null}"#, r#"{"id":11,"result":null}"#];
    let course = converse(&DriverSpec::Acp(options), &lines);
    assert_eq!(course.methods()[2..], ["session/set_mode", "session/set_model", "session/prompt"]);
    assert_eq!(course.messages()[3]["params"], json!({"sessionId": "s", "modelId": "b"}));
}

#[test]
fn unavailable_option_ends_the_call_before_the_prompt() {
    let options = AcpSpec { model: Some("huge".to_owned()), ..acp(AcpSession::New) };
    let course = converse(&DriverSpec::Acp(options), &[INITIALIZED, OPENED]);
    let message = "the agent has no model `huge`; it offers: openai/small, openai/large".to_owned();
    assert_eq!(failure(&course), (ReportedErrorCode::UnsupportedOption, message));
    assert!(course.closed && !course.methods().contains(&"session/prompt".to_owned()));
    let plain = r#"{"id":2,"result":{"sessionId":"s"}}"#;
    let options = AcpSpec { effort: Some("high".to_owned()), ..acp(AcpSession::New) };
    let course = converse(&DriverSpec::Acp(options), &[INITIALIZED, plain]);
    assert!(failure(&course).1.ends_with("it offers no choice of the effort"), "{:?}", failure(&course));
}

#[test]
fn session_is_resumed_loaded_or_forked_as_the_agent_can() {
    let method = |session, initialized| {
        converse(&DriverSpec::Acp(acp(session)), &[initialized]).methods()[1..].join(" ")
    };
    let id = || "ses_1".to_owned();
    assert_eq!(method(AcpSession::Resume(id()), INITIALIZED), "session/resume");
    assert_eq!(method(AcpSession::Resume(id()), LOADS_ONLY), "session/load");
    assert_eq!(method(AcpSession::Fork(id()), INITIALIZED), "session/fork");
    let course = converse(&DriverSpec::Acp(acp(AcpSession::Fork(id()))), &[LOADS_ONLY]);
    assert_eq!(failure(&course).0, ReportedErrorCode::UnsupportedOption);
}

#[test]
fn history_before_and_after_the_reply_is_no_answer() {
    let course = converse(&resume(), RESUME);
    assert_eq!(course.summary.text(), "new answer");
    assert_eq!(course.methods(), ["initialize", "session/load", "_switchboard/fence", "session/prompt"]);
    let texts = course.events.iter().filter(|event| matches!(event, AgentEvent::Text { .. })).count();
    assert_eq!(texts, 1);
}

#[test]
fn only_the_end_of_a_turn_is_a_success() {
    for (reason, code) in [
        ("max_tokens", ReportedErrorCode::CutOff),
        ("cancelled", ReportedErrorCode::Canceled),
        ("max_turn_requests", ReportedErrorCode::MaxTurns),
        ("refusal", ReportedErrorCode::Other),
        ("enough", ReportedErrorCode::Protocol),
    ] {
        let course = converse(&spec(), &[INITIALIZED, OPENED, &DONE.replace("end_turn", reason)]);
        assert_eq!(failure(&course).0, code, "{reason}");
        assert!(course.closed);
    }
    let course = converse(&spec(), &[INITIALIZED, OPENED, r#"{"id":100,"result":{}}"#]);
    assert_eq!(failure(&course).0, ReportedErrorCode::Protocol);
}

#[test]
fn error_instead_of_a_result_ends_the_call() {
    let error = |id, code, message| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}"}}}}"#)
    };
    let table = [
        (vec![error(1, -32603, "boom")], ReportedErrorCode::Protocol),
        (vec![INITIALIZED.to_owned(), error(2, -32000, "Authentication required")], ReportedErrorCode::Auth),
        (vec![INITIALIZED.to_owned(), error(2, -32603, "boom")], ReportedErrorCode::Other),
        (
            vec![INITIALIZED.to_owned(), OPENED.to_owned(), error(100, -32603, "boom")],
            ReportedErrorCode::Other,
        ),
    ];
    for (lines, code) in table {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let course = converse(&spec(), &lines);
        assert_eq!(failure(&course).0, code, "{lines:?}");
        assert!(course.closed);
    }
    let course =
        converse(&resume(), &[LOADS_ONLY, &error(2, -32603, "No previous sessions found for this project")]);
    assert_eq!(failure(&course).0, ReportedErrorCode::SessionNotFound);
}

#[test]
fn missing_login_names_the_ways_to_log_in() {
    let lines = [INITIALIZED, r#"{"id":2,"error":{"code":-32000,"message":"Authentication required"}}"#];
    let message = failure(&converse(&spec(), &lines)).1;
    assert_eq!(message, "Authentication required (Run `opencode auth login`)");
}

#[test]
fn status_of_the_models_api_is_found() {
    let error = r#"{"id":100,"error":{"code":-32603,"message":"Internal error","data":{"statusCode":429}}}"#;
    let course = converse(&spec(), &[INITIALIZED, OPENED, error]);
    let Some(ReportedResult::Failed(error)) = course.summary.reported else { panic!() };
    assert_eq!(error.http_status, Some(429));
    let error = r#"{"id":100,"error":{"code":401,"message":"no"}}"#;
    let course = converse(&spec(), &[INITIALIZED, OPENED, error]);
    let Some(ReportedResult::Failed(error)) = course.summary.reported else { panic!() };
    assert_eq!(error.http_status, Some(401));
}

#[test]
fn other_protocol_version_is_rejected() {
    let course = converse(&spec(), &[&INITIALIZED.replace("\"protocolVersion\":1", "\"protocolVersion\":2")]);
    let message = "the agent speaks version 2 of the Agent Client Protocol, not 1".to_owned();
    assert_eq!(failure(&course), (ReportedErrorCode::Protocol, message));
    let course = converse(&spec(), &[r#"{"id":1,"result":{}}"#]);
    assert_eq!(failure(&course).0, ReportedErrorCode::Protocol);
}

#[test]
fn images_servers_and_directories_are_passed() {
    let spec = AcpSpec {
        images: vec![AcpImage { mime_type: "image/png".to_owned(), data: "aGk=".to_owned() }],
        mcp_servers: vec![AcpServer {
            name: "files".to_owned(),
            command: "/bin/files".to_owned(),
            args: vec!["mcp".to_owned()],
        }],
        add_dirs: vec!["/docs".to_owned()],
        ..acp(AcpSession::New)
    };
    let course = converse(&DriverSpec::Acp(spec.clone()), &[INITIALIZED, OPENED]);
    let messages = course.messages();
    let server = json!({"name": "files", "command": "/bin/files", "args": ["mcp"], "env": []});
    assert_eq!(
        messages[1]["params"],
        json!({"cwd": "/work", "mcpServers": [server], "additionalDirectories": ["/docs"]})
    );
    assert_eq!(
        messages[2]["params"]["prompt"][0],
        json!({"type": "image", "mimeType": "image/png", "data": "aGk="})
    );
    let course = converse(&DriverSpec::Acp(spec), &[LOADS_ONLY]);
    assert_eq!(
        failure(&course),
        (ReportedErrorCode::UnsupportedOption, "this version of the agent cannot take images".to_owned())
    );
}

#[test]
fn damaged_reply_is_no_success_and_ends_the_conversation() {
    let course = converse(&spec(), &[INITIALIZED, OPENED, &DONE[..60]]);
    assert!(
        matches!(course.summary.reported, Some(ReportedResult::Unreadable(_))),
        "{:?}",
        course.summary.reported
    );
    assert!(course.closed);
}

#[test]
fn counts_of_requests_are_summed() {
    let chunk = r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""},"_meta":{"usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15}}}}}"#;
    let spec = DriverSpec::Acp(AcpSpec { usage: UsageReport::PerRequest, ..acp(AcpSession::New) });
    let course = converse(&spec, &[INITIALIZED, OPENED, chunk, chunk, DONE]);
    assert_eq!(course.summary.usage, Some(Usage { input: 20, output: 10, ..Usage::default() }));
    let spec = DriverSpec::Acp(AcpSpec { usage: UsageReport::Unknown, ..acp(AcpSession::New) });
    assert_eq!(converse(&spec, &[INITIALIZED, OPENED, chunk, DONE]).summary.usage, None);
}
