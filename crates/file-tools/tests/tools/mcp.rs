//! The MCP server, used by a real client.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use rmcp::ServiceExt as _;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};

use crate::desk::{Desk, SECRET, numbered};

crate::tests![
    every_verb_is_a_tool_and_works,
    a_refusal_is_a_result_that_a_model_can_read,
    only_the_offered_verbs_are_there,
    the_server_takes_its_workspace_from_the_operator,
    calls_at_the_same_time_are_all_answered,
    what_is_not_offered_is_said_not_to_be_there,
    the_server_ends_with_its_client,
];

type Client = RunningService<RoleClient, ()>;

fn with<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body)
}

async fn connect(mut command: std::process::Command) -> Client {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let transport = TokioChildProcess::new(tokio::process::Command::from(command)).unwrap();
    ().serve(transport).await.unwrap()
}

fn server(desk: &Desk, more: &[&str]) -> std::process::Command {
    let mut command = Desk::program();
    command.arg("mcp").arg(desk.workspace()).args(more);
    command
}

async fn call(client: &Client, tool: &str, arguments: Value) -> CallToolResult {
    let Value::Object(arguments) = arguments else { panic!() };
    client.call_tool(CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments)).await.unwrap()
}

#[track_caller]
fn answer(result: CallToolResult) -> Value {
    assert_eq!(result.is_error, Some(false), "{result:?}");
    result.structured_content.unwrap()
}

#[track_caller]
fn refused(result: CallToolResult) -> String {
    assert_eq!(result.is_error, Some(true), "{result:?}");
    let text = serde_json::to_string(&result).unwrap();
    assert!(!text.contains(SECRET), "{text}");
    result.structured_content.unwrap()["error"]["code"].as_str().unwrap().to_owned()
}

fn every_verb_is_a_tool_and_works() {
    let desk = Desk::new();
    with(async {
        let client = connect(server(&desk, &[])).await;
        let tools: Vec<_> = client.list_all_tools().await.unwrap();
        let names: Vec<_> = tools.iter().map(|tool| tool.name.to_string()).collect();
        assert_eq!(names, ["read", "write", "create", "patch", "delete", "move", "list", "search", "stat"]);
        assert!(
            !serde_json::to_string(&tools).unwrap().contains("\"format\""),
            "some clients warn about formats"
        );
        assert_eq!(answer(call(&client, "read", json!({"path": "a.txt"})).await)["total_lines"], 3);
        answer(call(&client, "write", json!({"path": "b/c.txt", "content": "c"})).await);
        answer(call(&client, "create", json!({"path": "d.txt", "content": "d"})).await);
        answer(
            call(&client, "patch", json!({"path": "a.txt", "edits": [{"find": "two", "replace": "2"}]}))
                .await,
        );
        answer(call(&client, "move", json!({"from": "d.txt", "to": "e.txt"})).await);
        answer(call(&client, "delete", json!({"path": "e.txt"})).await);
        assert_eq!(answer(call(&client, "list", json!({})).await)["total"], 2);
        let found = answer(call(&client, "search", json!({"regex": "^2$"})).await);
        assert_eq!(found["matches"][0]["path"], "a.txt");
        assert_eq!(answer(call(&client, "stat", json!({"path": "b"})).await)["type"], "directory");
        client.cancel().await.unwrap();
    });
    assert_eq!(desk.text("a.txt"), "one\n2\nthree\n");
}

fn a_refusal_is_a_result_that_a_model_can_read() {
    let desk = Desk::new();
    with(async {
        let client = connect(server(&desk, &[])).await;
        for (tool, arguments, code) in [
            ("read", json!({"path": "../outside/secret.txt"}), "path_outside_workspace"),
            ("read", json!({"path": "nothing"}), "file_not_found"),
            ("read", json!({"path": "a\0"}), "invalid_input"),
            ("read", json!({}), "invalid_input"),
            ("read", json!({"path": "a.txt", "workspace": "/"}), "invalid_input"),
            ("write", json!({"path": ".git/config", "content": ""}), "protected_path"),
            ("write", json!({"path": "x"}), "invalid_input"),
            ("search", json!({"regex": "("}), "invalid_pattern"),
        ] {
            assert_eq!(refused(call(&client, tool, arguments.clone()).await), code, "{tool} {arguments}");
        }
        let unknown = client.call_tool(CallToolRequestParams::new("bash")).await;
        assert!(unknown.is_err(), "{unknown:?}");
        client.cancel().await.unwrap();
    });
}

fn only_the_offered_verbs_are_there() {
    let desk = Desk::new();
    with(async {
        let client = connect(server(&desk, &["--verbs", "read,list"])).await;
        let names: BTreeSet<_> =
            client.list_all_tools().await.unwrap().into_iter().map(|tool| tool.name.to_string()).collect();
        assert_eq!(names, ["list".to_owned(), "read".to_owned()].into());
        let arguments = json!({"path": "x", "content": "x"}).as_object().unwrap().clone();
        assert!(
            client.call_tool(CallToolRequestParams::new("write").with_arguments(arguments)).await.is_err()
        );
        client.cancel().await.unwrap();
    });
    assert!(!desk.at("x").exists());
}

fn the_server_takes_its_workspace_from_the_operator() {
    let desk = Desk::new();
    with(async {
        let mut command = Desk::program();
        command.arg("mcp").env("FILE_TOOLS_ROOT", desk.workspace());
        let client = connect(command).await;
        assert_eq!(answer(call(&client, "read", json!({"path": "a.txt"})).await)["total_lines"], 3);
        client.cancel().await.unwrap();
    });
    let mut other = Desk::program();
    other.arg("mcp").arg(desk.outside()).env("FILE_TOOLS_ROOT", desk.workspace());
    let told = crate::desk::Told { output: other.output().unwrap() };
    assert_eq!(told.refused(), "path_outside_workspace");
    let none = crate::desk::Told { output: Desk::program().arg("mcp").output().unwrap() };
    assert_eq!(none.refused(), "invalid_input");
}

fn calls_at_the_same_time_are_all_answered() {
    let desk = Desk::new();
    desk.put("shared", numbered(10, '[', ']'));
    with(async {
        let client = connect(server(&desk, &[])).await;
        let calls = (0..10).map(|line| {
            let edits = json!([{"find": format!("[{line}]"), "replace": format!("<{line}>")}]);
            Box::pin(call(&client, "patch", json!({"path": "shared", "edits": edits})))
        });
        let mut calls: Vec<_> = calls.collect();
        std::future::poll_fn(|context| {
            calls.retain_mut(|call| match call.as_mut().poll(context) {
                std::task::Poll::Ready(result) => {
                    answer(result);
                    false
                }
                std::task::Poll::Pending => true,
            });
            if calls.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        drop(calls);
        client.cancel().await.unwrap();
    });
    assert_eq!(desk.text("shared"), numbered(10, '<', '>'));
}

fn what_is_not_offered_is_said_not_to_be_there() {
    let desk = Desk::new();
    with(async {
        let client = connect(server(&desk, &[])).await;
        assert!(client.list_all_prompts().await.is_err());
        assert!(client.list_all_resources().await.is_err());
        assert!(client.list_all_resource_templates().await.is_err());
        client.cancel().await.unwrap();
    });
}

fn the_server_ends_with_its_client() {
    let desk = Desk::new();
    let mut child = server(&desk, &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    writeln!(stdin, "{hello}").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let reply: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(reply["result"]["serverInfo"]["name"], "file-tools", "{reply}");
    drop(stdin);
    assert!(child.wait().unwrap().success());
}
