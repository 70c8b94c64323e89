//! The MCP server, used by a real client.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use rmcp::ServiceExt as _;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService};
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};

use crate::harness::{Harness, SECRET, numbered};

crate::tests![
    every_verb_works_as_an_mcp_tool,
    rejection_is_a_readable_tool_result,
    unselected_verbs_are_not_offered,
    mcp_workspace_is_fixed_by_the_variable,
    concurrent_tool_calls_are_all_answered,
    undeclared_method_is_not_found,
    server_exits_with_its_client,
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

fn server(harness: &Harness, more: &[&str]) -> std::process::Command {
    let mut command = Harness::program();
    command.arg("mcp").arg(harness.workspace()).args(more);
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

fn every_verb_works_as_an_mcp_tool() {
    let harness = Harness::new();
    with(async {
        let client = connect(server(&harness, &[])).await;
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
    assert_eq!(harness.text("a.txt"), "one\n2\nthree\n");
}

fn rejection_is_a_readable_tool_result() {
    let harness = Harness::new();
    with(async {
        let client = connect(server(&harness, &[])).await;
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

fn unselected_verbs_are_not_offered() {
    let harness = Harness::new();
    with(async {
        let client = connect(server(&harness, &["--verbs", "read,list"])).await;
        let names: BTreeSet<_> =
            client.list_all_tools().await.unwrap().into_iter().map(|tool| tool.name.to_string()).collect();
        assert_eq!(names, ["list".to_owned(), "read".to_owned()].into());
        let arguments = json!({"path": "x", "content": "x"}).as_object().unwrap().clone();
        assert!(
            client.call_tool(CallToolRequestParams::new("write").with_arguments(arguments)).await.is_err()
        );
        client.cancel().await.unwrap();
    });
    assert!(!harness.at("x").exists());
}

fn mcp_workspace_is_fixed_by_the_variable() {
    let harness = Harness::new();
    with(async {
        let mut command = Harness::program();
        command.arg("mcp").env("FILE_TOOLS_ROOT", harness.workspace());
        let client = connect(command).await;
        assert_eq!(answer(call(&client, "read", json!({"path": "a.txt"})).await)["total_lines"], 3);
        client.cancel().await.unwrap();
    });
    let mut other = Harness::program();
    other.arg("mcp").arg(harness.outside()).env("FILE_TOOLS_ROOT", harness.workspace());
    let told = crate::harness::CommandResult { output: other.output().unwrap() };
    assert_eq!(told.refused(), "path_outside_workspace");
    let none = crate::harness::CommandResult { output: Harness::program().arg("mcp").output().unwrap() };
    assert_eq!(none.refused(), "invalid_input");
}

fn concurrent_tool_calls_are_all_answered() {
    let harness = Harness::new();
    harness.put("shared", numbered(10, '[', ']'));
    with(async {
        let client = connect(server(&harness, &[])).await;
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
    assert_eq!(harness.text("shared"), numbered(10, '<', '>'));
}

fn undeclared_method_is_not_found() {
    let harness = Harness::new();
    with(async {
        let client = connect(server(&harness, &[])).await;
        assert!(client.list_all_prompts().await.is_err());
        assert!(client.list_all_resources().await.is_err());
        assert!(client.list_all_resource_templates().await.is_err());
        client.cancel().await.unwrap();
    });
}

fn server_exits_with_its_client() {
    let harness = Harness::new();
    let mut child = server(&harness, &[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
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
