//! Failures of real agents that speak the Agent Client Protocol: they report errors of their model in different ways.

use agents::{AcpSession, AcpSpec, DriverSpec, ModelErrorReport, ReportedErrorCode, ReportedResult};
use serde_json::json;

use super::acp::{INITIALIZED, OPENED, acp, failure};
use super::{Course, converse};

/// Ends a prompt with this reply, after a text, a tool call and these texts.
fn end(errors: ModelErrorReport, after_tool: &[&str], reply: &serde_json::Value) -> Course {
    let text = |text: &str| {
        json!({"method": "session/update", "params": {"update":
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}}})
        .to_string()
    };
    let tool = json!({"method": "session/update", "params": {"update":
        {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Read", "kind": "read", "status": "completed"}}});
    let mut lines = vec![INITIALIZED.to_owned(), OPENED.to_owned(), text("I will look. "), tool.to_string()];
    lines.extend(after_tool.iter().map(|after| text(after)));
    let mut reply = reply.clone();
    reply["jsonrpc"] = json!("2.0");
    reply["id"] = json!(100);
    lines.push(reply.to_string());
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    converse(&DriverSpec::Acp(AcpSpec { errors, ..acp(AcpSession::New) }), &lines)
}

fn done() -> serde_json::Value {
    json!({"result": {"stopReason": "end_turn"}})
}

#[test]
fn turn_without_an_answer_after_its_tools_has_failed() {
    let course = end(ModelErrorReport::Silence, &[], &done());
    assert_eq!(failure(&course).0, ReportedErrorCode::Other);
    let course = end(ModelErrorReport::Silence, &["It has one line."], &done());
    assert_eq!(course.summary.reported, Some(ReportedResult::Done));
    // Other agents may end a turn with a tool call.
    let course = end(ModelErrorReport::Reply, &[], &done());
    assert_eq!(course.summary.reported, Some(ReportedResult::Done));
}

#[test]
fn error_in_the_text_of_an_answer_is_a_failure() {
    let course = end(ModelErrorReport::Text, &["Error: 400 The server had an error"], &done());
    let Some(ReportedResult::Failed(error)) = &course.summary.reported else { panic!("a success") };
    assert_eq!((error.http_status, error.message.as_str()), (Some(400), "400 The server had an error"));
    for answer in [&["Error", ": it is one of the file."][..], &["Error: no", " such file."]] {
        let course = end(ModelErrorReport::Text, answer, &done());
        assert_eq!(course.summary.reported, Some(ReportedResult::Done), "{answer:?}");
    }
}

#[test]
fn missing_login_in_the_reply_to_a_prompt_is_found() {
    let reply =
        json!({"error": {"code": -32000, "message": "Authentication required: 401 Incorrect API key"}});
    assert_eq!(failure(&end(ModelErrorReport::Reply, &[], &reply)).0, ReportedErrorCode::Auth);
}

#[test]
fn status_at_the_start_of_the_details_is_found() {
    for (details, expected) in
        [("401 Incorrect API key provided", Some(401)), ("100 apples", None), ("4015 x", None)]
    {
        let reply =
            json!({"error": {"code": -32603, "message": "Internal error", "data": {"details": details}}});
        let course = end(ModelErrorReport::Reply, &[], &reply);
        let Some(ReportedResult::Failed(error)) = &course.summary.reported else { panic!("a success") };
        assert_eq!(error.http_status, expected, "{details}");
    }
}

#[test]
fn service_failure_at_resume_means_an_unknown_session() {
    let error = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"Internal error: OpenCode service failure","data":{"service":"session"}}}"#;
    let spec = DriverSpec::Acp(acp(AcpSession::Resume("ses_1".to_owned())));
    assert_eq!(failure(&converse(&spec, &[INITIALIZED, error])).0, ReportedErrorCode::SessionNotFound);
    let spec = DriverSpec::Acp(acp(AcpSession::New));
    assert_eq!(failure(&converse(&spec, &[INITIALIZED, error])).0, ReportedErrorCode::Other);
}

#[test]
fn option_that_depends_on_the_model_is_set_after_it() {
    let opened = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"ses_1","configOptions":[{"id":"model","category":"model","currentValue":"a","options":[{"value":"a"},{"value":"b"}]}]}}"#;
    let changed = r#"{"jsonrpc":"2.0","id":11,"result":{"configOptions":[{"id":"effort","category":"thought_level","currentValue":"low","options":[{"value":"low"},{"value":"high"}]}]}}"#;
    let spec =
        AcpSpec { model: Some("b".to_owned()), effort: Some("high".to_owned()), ..acp(AcpSession::New) };
    let course = converse(&DriverSpec::Acp(spec), &[INITIALIZED, opened, changed]);
    let messages = course.messages();
    let sent = messages.iter().rev().map(|message| &message["params"]).take(2);
    let values: Vec<_> = sent.map(|params| (params["configId"].clone(), params["value"].clone())).collect();
    assert_eq!(values, [(json!("effort"), json!("high")), (json!("model"), json!("b"))]);
}

fn chunk(session: &str, text: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update":
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}}})
    .to_string()
}

/// Lets the agent open a session, print these lines and end its turn.
fn turn(lines: &[&str]) -> Course {
    let reply = json!({"jsonrpc": "2.0", "id": 100, "result": {"stopReason": "end_turn"}}).to_string();
    converse(&DriverSpec::Acp(acp(AcpSession::New)), &[&[INITIALIZED, OPENED], lines, &[&*reply]].concat())
}

#[test]
fn text_of_another_session_is_no_answer() {
    let course = turn(&[&chunk("ses_2", "theirs"), &chunk("ses_1", "ours")]);
    assert_eq!(course.summary.text(), "ours");
}

/// A line whose method follows the damage, such as one over the limit.
#[test]
fn damaged_line_of_any_kind_loses_the_answer() {
    let course =
        turn(&[&chunk("ses_1", "before "), r#"{"params":{"update":{"text":"xx"#, &chunk("ses_1", "after")]);
    assert!(course.summary.answer_is_lost());
    assert_eq!(course.summary.reported, Some(ReportedResult::Done));
    let intact = turn(&[&chunk("ses_1", "before "), "{x}", &chunk("ses_1", "after")]);
    assert_eq!((intact.summary.answer_is_lost(), &*intact.summary.text()), (true, "before "));
}

#[test]
fn mode_of_the_profile_is_a_preference() {
    let spec = AcpSpec { mode: Some("unknown".to_owned()), ..acp(AcpSession::New) };
    let course = converse(&DriverSpec::Acp(spec), &[INITIALIZED, OPENED]);
    assert_eq!(course.methods().last().map(String::as_str), Some("session/prompt"));
}
