//! Agents of the operator: over the Agent Client Protocol, and commands without a protocol.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::{Value, json};

use crate::harness::{Harness, TestHost, stderr, stdout};

/// A shell script that answers a prompt file as JSON, with the arguments that it got.
const REPORT: &str = r#"#!/bin/sh
prompt=$(cat "$2")
shift 2
printf '{"result": {"text": "%s; %s"}, "session_id": "s-1"}' "$prompt" "$*"
"#;

/// Returns a home with three agents of its operator.
fn configured() -> Harness {
    let harness = Harness::new();
    let report = harness.scratch().join("report-agent");
    fs::write(&report, REPORT).unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o755)).unwrap();
    harness.configure(&format!(
        r#"
[agents.mine]
acp = ["{rehearsal}", "--as", "acp"]
description = "Knows the deployment scripts."

[agents.echo]
command = ["/bin/cat"]

[agents.report]
command = ["{report}", "--file", "{{prompt_file}}"]
answer = "json:/result/text"
session = "json:/session_id"
resume = ["--resume", "{{session}}"]
model = ["--model", "{{model}}"]
"#,
        rehearsal = env!("CARGO_BIN_EXE_rehearsal"),
        report = report.display()
    ));
    harness
}

fn call(harness: &Harness, args: &[&str]) -> Output {
    let work = harness.work();
    harness.command(&[&["call"], args].concat()).current_dir(work).output().unwrap()
}

fn call_json(harness: &Harness, args: &[&str]) -> Value {
    let output = call(harness, &[args, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn configured_acp_agent_answers_and_resumes() {
    let harness = configured();
    let first = call_json(&harness, &["mine", "Hello"]);
    assert_eq!((&first["status"], &first["output"]), (&json!("completed"), &json!("You said: Hello")));
    let session = first["session_id"].as_str().unwrap();
    let second = call_json(&harness, &["mine", "Again", "--session", session]);
    assert_eq!((&second["status"], &second["session_id"]), (&json!("completed"), &json!(session)));
    let last = call_json(&harness, &["mine", "Once more", "--continue"]);
    assert_eq!((&last["output"], &last["session_id"]), (&json!("You said: Once more"), &json!(session)));
}

#[test]
fn configured_acp_agent_answers_without_the_daemon() {
    let harness = configured();
    let output = call(&harness, &["mine", "Hello", "--direct"]);
    assert_eq!(stdout(&output), "You said: Hello\n", "{output:?}");
    assert!(harness.running_daemon().is_none());
}

#[test]
fn configured_command_answers_from_stdin() {
    let harness = configured();
    let answer = call_json(&harness, &["echo", "Hello\nthere"]);
    assert_eq!((&answer["status"], &answer["output"]), (&json!("completed"), &json!("Hello\nthere")));
    let output = call(&harness, &["echo", "Hello", "--model", "large"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("error: echo does not support `model`"), "{output:?}");
    assert_eq!(stdout(&harness.run(&["jobs", "--json"])).matches("\"job_id\"").count(), 1);
}

#[test]
fn configured_command_answers_with_a_json_field() {
    let harness = configured();
    let first = call_json(&harness, &["report", "Hello", "--model", "large"]);
    assert_eq!(first["output"], "Hello; --model large", "{first}");
    assert_eq!(first["session_id"], "s-1");
    let second = call_json(&harness, &["report", "Again", "--session", "s-1"]);
    assert_eq!(second["output"], "Again; --resume s-1", "{second}");
}

#[test]
fn unknown_agent_is_rejected_with_the_most_similar_name() {
    let harness = configured();
    for args in [&["call", "mnie", "Hello"][..], &["agents", "mnie"], &["doctor", "mnie"]] {
        let output = harness.run(args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = stderr(&output);
        assert!(text.starts_with("error: there is no agent `mnie`\n"), "{text}");
        assert!(text.contains("hint: did you mean `mine`?"), "{text}");
    }
}

#[test]
fn answer_without_the_schema_fails_a_direct_call() {
    let harness = configured();
    let schema = harness.scratch().join("schema.json");
    fs::write(&schema, r#"{"type": "object", "required": ["n"]}"#).unwrap();
    let schema = schema.to_str().unwrap();
    for direct in [&["--direct"][..], &[]] {
        let with = |prompt| {
            call(&harness, &[&["mine", prompt, "--schema", schema, "--policy", "off"], direct].concat())
        };
        let matching = with("@rehearse answer {\"n\": 1}");
        assert_eq!(matching.status.code(), Some(0), "{matching:?}");
        let mismatching = with("@rehearse answer {\"m\": 1}");
        assert_eq!(mismatching.status.code(), Some(1), "{mismatching:?}");
        let text = stderr(&mismatching);
        assert!(text.contains("\"n\" is a required property"), "{text}");
    }
}

#[test]
fn agents_are_listed_with_features_and_support() {
    let harness = configured();
    let output = harness.run(&["agents"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.contains("mine: ready"), "{text}");
    assert!(text.contains("\n  Knows the deployment scripts.\n"), "{text}");
    assert!(text.contains("report: ready"), "{text}");
    assert!(text.contains("\n  features: resume, model\n"), "{text}");
    assert!(text.contains("codex: not ready\n  missing: codex CLI not found in PATH\n    hint: "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("not installed: "), "{text}");
    assert!(text.contains("opencode"), "{text}");

    let output = harness.run(&["agents", "opencode", "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(list["agents"][0]["title"], "OpenCode", "{list}");
    assert!(list["agents"][0]["features"].is_array() && list["not_installed"] == json!([]), "{list}");
}

#[test]
fn doctor_calls_an_agent_on_request() {
    let harness = configured();
    let output = harness.run(&["doctor", "mine", "--call"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text.starts_with("mine: ready"), "{text}");
    assert!(!text.contains("codex"), "{text}");
    let remarks = stderr(&output);
    assert!(remarks.contains("completed in") && !remarks.contains("files:"), "{remarks}");
    assert!(!harness.state().join("jobs").exists());
    assert!(text.contains("\ntest call:\nYou said: This is a test of the connection."), "{text}");
    assert_eq!(harness.run(&["doctor", "codex", "--call"]).status.code(), Some(1));
}

#[test]
fn call_agent_lists_and_calls_agents_of_the_operator() {
    let harness = configured();
    let work = harness.work();
    let mut host: TestHost = harness.bridge();
    host.initialize();
    host.request(1, "tools/list", &json!({}));
    let list = host.receive();
    let tools = list["result"]["tools"].as_array().unwrap();
    let tool = tools.iter().find(|tool| tool["name"] == "call_agent").unwrap();
    let agent = &tool["inputSchema"]["properties"]["agent"];
    assert_eq!(agent["enum"], json!(["echo", "mine", "report"]), "{agent}");
    let description = agent["description"].as_str().unwrap();
    assert!(description.contains("- mine: Knows the deployment scripts."), "{description}");

    let call = |agent: &str| {
        let arguments = json!({"agent": agent, "prompt": "Hello", "cwd": work});
        json!({"name": "call_agent", "arguments": arguments})
    };
    host.request(2, "tools/call", &call("mine"));
    let answer = host.receive();
    assert_eq!(answer["result"]["structuredContent"]["output"], "You said: Hello", "{answer}");
    host.request(3, "tools/call", &call("mnie"));
    let answer = host.receive().to_string();
    assert!(answer.contains("there is no agent `mnie`") && answer.contains("`mine`"), "{answer}");
    assert!(!answer.contains("switchboard agents"), "names a command: {answer}");
}
