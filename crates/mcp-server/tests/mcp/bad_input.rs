//! Bad input: an error names the field and the remedy, no job is submitted, and the server continues.

use std::os::unix::fs::symlink;
use std::path::Path;

use calls::Settings;
use mcp_server::McpOptions;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{McpHarness, settings};

testkit::tests![
    bad_argument_is_rejected_with_field_and_remedy,
    codex_requires_cwd,
    link_out_of_an_earlier_workspace_is_rejected,
    prompt_over_the_agent_limit_is_rejected,
    oversized_message_is_rejected_with_its_id,
    invalid_utf8_gets_an_error,
    malformed_message_gets_an_error,
    request_with_invalid_id_gets_an_error,
    unknown_tool_gets_a_suggestion,
    messages_before_initialize_are_harmless,
];

/// Asserts that no job was submitted and that the client can still call.
async fn assert_usable(harness: &McpHarness, client: &mut Client) {
    assert_eq!(harness.job_count().await, 0, "a job was submitted");
    let answer = client.call_tool_ok("call_rehearsal", json!({ "prompt": "still there?" })).await;
    assert_eq!(answer["output"], "You said: still there?");
}

/// An agent that worked in the directory may have planted the link.
fn link_out_of_an_earlier_workspace_is_rejected() {
    let remembering = |directory: &Path| {
        let mut settings: Settings = settings(directory);
        settings.lookup.cache_file = Some(settings.state.join("agents.json"));
        settings.lookup.remember_workspaces(&[directory.join("work")]);
        settings
    };
    let options = McpOptions { rehearsal: true, ..McpOptions::default() };
    McpHarness::run_at(remembering, options, async |harness| {
        let (private, sub) = (harness.directory.path().join("private"), harness.work().join("sub"));
        std::fs::create_dir(&private).unwrap();
        symlink(&private, &sub).unwrap();
        let mut client = harness.client().await;
        for (field, arguments) in [
            ("cwd", json!({ "prompt": "x", "cwd": sub })),
            ("add_dirs", json!({ "prompt": "x", "cwd": harness.work(), "add_dirs": [sub] })),
        ] {
            let rejected = client.rejected("call_rehearsal", arguments).await;
            assert_eq!(rejected.field, field);
            let hint = format!("pass the real path itself if you mean it: `{}`", private.display());
            assert!(rejected.text.contains(&hint), "{}", rejected.text);
        }
        assert_usable(harness, &mut client).await;
    });
}

fn bad_argument_is_rejected_with_field_and_remedy() {
    McpHarness::run(async |harness| {
        let file = harness.directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let mut client = harness.client().await;
        let bad: Vec<(&str, Value, &str)> = vec![
            ("prompt", json!({ "prompt": " \n " }), "`prompt` is a string"),
            ("prompt", json!({ "cwd": "/" }), "`prompt` is a string"),
            ("prompt", json!({ "prompt": 7 }), "`prompt` is a string"),
            ("model", json!({ "prompt": "x", "model": "--help" }), "an alias or the name of a model"),
            (
                "resume_session_id",
                json!({ "prompt": "x", "resume_session_id": "the-last-one" }),
                "session_id of an earlier answer",
            ),
            (
                "session_id",
                json!({ "prompt": "x", "session_id": "--help" }),
                "session_id of an earlier answer",
            ),
            ("cwd", json!({ "prompt": "x", "cwd": "/no/such/directory" }), "create the directory"),
            ("cwd", json!({ "prompt": "x", "cwd": file }), "not a file in it"),
            ("cwd", json!({ "prompt": "x", "cwd": "src" }), "absolute path"),
            ("timeout_ms", json!({ "prompt": "x", "timeout_ms": 0 }), "give milliseconds"),
            ("timeout_ms", json!({ "prompt": "x", "timeout_ms": -5 }), "a number of milliseconds"),
            ("timeout_ms", json!({ "prompt": "x", "timeout_ms": "soon" }), "a number of milliseconds"),
            ("tool_timeout_ms", json!({ "prompt": "x", "tool_timeout_ms": 0 }), "give milliseconds"),
            ("max_turns", json!({ "prompt": "x", "max_turns": 0 }), "greater than 0"),
            ("mode", json!({ "prompt": "x", "mode": "look" }), "execute, observe"),
            ("allowed_tools", json!({ "prompt": "x", "allowed_tools": "" }), "a list of strings"),
            (
                "allowed_tools",
                json!({ "prompt": "x", "allowed_tools": ["Read", " "] }),
                "remove the blank entry",
            ),
            ("agent_name", json!({ "prompt": "x", "agent_name": "../../x" }), "letters, digits"),
            ("add_dirs", json!({ "prompt": "x", "add_dirs": ["there"] }), "absolute path"),
            (
                "add_dirs",
                json!({ "prompt": "x", "add_dirs": ["/no/such/directory"] }),
                "create the directory",
            ),
            ("system_prompt", json!({ "prompt": "x", "system_prompt": "x".repeat(200_000) }), "shorten it"),
            ("task_name", json!({ "prompt": "x", "task_name": "x".repeat(201) }), "at most 200"),
            (
                "max_response_chars",
                json!({ "prompt": "x", "max_response_chars": 9_999_999 }),
                "at most 1000000",
            ),
            ("timeout", json!({ "prompt": "x", "timeout": 5 }), "did you mean `timeout_ms`"),
            (
                "policy",
                json!({ "prompt": "x", "mode": "observe", "policy": "workspace" }),
                "use policy `observe` or `sealed`",
            ),
            (
                "continue_latest",
                json!({ "prompt": "x", "continue_latest": true, "resume_session_id": uuid::Uuid::nil() }),
                "omit one of them",
            ),
        ];
        for (field, arguments, remedy) in bad {
            let rejected = client.rejected("call_rehearsal", arguments.clone()).await;
            assert_eq!(rejected.field, field, "{arguments}: {rejected:?}");
            assert!(rejected.text.contains(remedy), "{arguments}: {rejected:?}");
        }
        let id = "01a1dde2-642d-7027-95b7-67d9f29d1836";
        for tool in ["call_status", "call_output", "call_cancel"] {
            let rejected = client.rejected(tool, json!({ "job_id": id })).await;
            assert!(rejected.field == "job_id" && rejected.text.contains("call_jobs"), "{rejected:?}");
            let rejected = client.rejected(tool, json!({ "job_id": "the last one" })).await;
            assert!(rejected.field == "job_id" && rejected.text.contains("such as"), "{rejected:?}");
        }
        let rejected = client.rejected("call_wait", json!({ "job_ids": [id] })).await;
        assert_eq!(rejected.field, "job_ids[0]", "{rejected:?}");
        for (field, arguments) in
            [("job_ids", json!({ "job_ids": [] })), ("mode", json!({ "job_ids": [id], "mode": "some" }))]
        {
            assert_eq!(client.rejected("call_wait", arguments).await.field, field);
        }
        for limit in [0, 101] {
            assert_eq!(client.rejected("call_jobs", json!({ "limit": limit })).await.field, "limit");
        }
        assert_eq!(
            client.rejected("call_jobs", json!({ "status_filter": "done" })).await.field,
            "status_filter"
        );
        assert_eq!(client.rejected("howto", json!({ "tool": "call_claude" })).await.field, "tool");
        assert_usable(harness, &mut client).await;
    });
}

fn codex_requires_cwd() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let rejected = client.rejected("call_codex", json!({ "prompt": "x", "cwd": "" })).await;
        assert!(rejected.field == "cwd" && rejected.text.contains("absolute path"), "{rejected:?}");
        assert_usable(harness, &mut client).await;
    });
}

fn prompt_over_the_agent_limit_is_rejected() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let prompt = "x".repeat(agents::MAX_PROMPT_BYTES + 1);
        let rejected = client.rejected("call_rehearsal", json!({ "prompt": prompt })).await;
        assert!(rejected.field == "prompt" && rejected.text.contains("into a file"), "{rejected:?}");
        assert_usable(harness, &mut client).await;
    });
}

fn oversized_message_is_rejected_with_its_id() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        // The id comes last, as SDKs write it.
        let mut line =
            br#"{"method":"tools/call","params":{"name":"call_rehearsal","arguments":{"prompt":""#.to_vec();
        line.resize(line.len() + 50_000_000, b'x');
        line.extend_from_slice(br#""}},"jsonrpc":"2.0","id":77}"#);
        client.send_line(&line).await;
        let answer = client.response(77).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["_meta"]["switchboard/error"]["field"], "prompt");
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("into a file"), "{answer}");
        assert_usable(harness, &mut client).await;
    });
}

fn invalid_utf8_gets_an_error() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let call = b"{\"jsonrpc\":\"2.0\",\"id\":70,\"method\":\"tools/call\",\"params\":{\"name\":\"call_rehearsal\",\"arguments\":{\"prompt\":\"\xff\xfe\"}}}";
        client.send_line(call).await;
        let answer = client.response(70).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("UTF-8"), "{answer}");
        client.send_line(b"{\"id\":71,\"method\":\"tools/list\",\"x\":\"\xc3\x28\"}").await;
        let answer = client.response(71).await;
        assert!(answer["error"]["message"].as_str().unwrap().contains("UTF-8"), "{answer}");
        client.send_line(b"\xff\xfe\x00\x01").await;
        let answer = client.next().await.unwrap();
        assert_eq!((answer["error"]["code"].as_i64(), answer.get("id")), (Some(-32700), None), "{answer}");
        assert_usable(harness, &mut client).await;
    });
}

fn malformed_message_gets_an_error() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        // Each has an id, under which the error is returned.
        let shapes = [
            json!({ "jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": { "name": "call_rehearsal", "arguments": "Hello" } }),
            json!({ "jsonrpc": "2.0", "id": 51, "method": "tools/call", "params": { "arguments": {} } }),
            json!({ "jsonrpc": "2.0", "id": 52, "method": "tools/call", "params": ["call_rehearsal"] }),
            json!({ "jsonrpc": "2.0", "id": 53, "method": "tools/call" }),
            json!({ "jsonrpc": "2.0", "id": 54, "method": "resources/read", "params": { "uri": 7 } }),
            json!({ "jsonrpc": "2.0", "id": 55, "method": "no/such/method" }),
            json!({ "jsonrpc": "2.0", "id": 56, "method": 7 }),
            json!({ "jsonrpc": "1.0", "id": 57, "method": "tools/list" }),
            json!({ "id": 58, "method": "tools/list" }),
        ];
        for shape in shapes {
            let id = shape["id"].as_u64().unwrap();
            client.send(&shape).await;
            let answer = client.response(id).await;
            let is_error = answer.get("error").is_some() || answer["result"]["isError"] == true;
            assert!(is_error, "{shape}: {answer}");
            if shape["method"] == "tools/call" {
                let text = answer["result"]["content"][0]["text"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{shape}: {answer}"));
                assert!(text.contains("hint: "), "{text}");
            }
        }
        // The last of two ids wins.
        client.send_line(br#"{"jsonrpc":"2.0","id":83,"id":84,"method":"ping"}"#).await;
        assert!(client.response(84).await.get("error").is_some());
        // These have no id.
        for line in [&b"hello"[..], b"{", b"[]", b"null", b"{\"foo\":1}", b"[{\"jsonrpc\":\"2.0\"}]"] {
            client.send_line(line).await;
            let answer = client.next().await.unwrap();
            assert!(answer.get("error").is_some() && answer.get("id").is_none(), "{answer}");
        }
        // An unknown notification and a blank line get no reply.
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/of/somebody/else" })).await;
        client.send_line(b"").await;
        assert_usable(harness, &mut client).await;
        assert_eq!(client.notifications(), Vec::<Value>::new());
    });
}

fn request_with_invalid_id_gets_an_error() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        for id in [json!(1.5), json!(null), json!({ "a": 1 }), json!([7]), json!(true)] {
            let call = json!({ "name": "call_rehearsal", "arguments": { "prompt": "x" } });
            for (method, params) in [("ping", json!({})), ("tools/call", call)] {
                let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
                client.send(&request).await;
                let answer = client.next().await.unwrap();
                assert_eq!(answer["error"]["code"], -32600, "{request}: {answer}");
                assert!(answer["id"].is_null(), "{answer}");
                let message = answer["error"]["message"].as_str().unwrap();
                assert!(message.contains("a string or an integer"), "{answer}");
            }
        }
        // Some clients write `null` for an absent id.
        client.send(&json!({ "jsonrpc": "2.0", "id": null, "method": "notifications/cancelled", "params": { "requestId": 99 } })).await;
        assert_usable(harness, &mut client).await;
        assert_eq!(client.notifications(), Vec::<Value>::new());
    });
}

fn unknown_tool_gets_a_suggestion() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = client.request("tools/call", json!({ "name": "call_claude", "arguments": {} })).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("did you mean `call_"), "{answer}");
        assert_usable(harness, &mut client).await;
    });
}

fn messages_before_initialize_are_harmless() {
    McpHarness::run(async |harness| {
        let mut client = harness.uninitialized_client().await;
        client.send_line(b"GET / HTTP/1.1").await;
        assert_eq!(client.next().await.unwrap()["error"]["code"], -32700);
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        let answer = client
            .request("tools/call", json!({ "name": "call_rehearsal", "arguments": { "prompt": "x" } }))
            .await;
        assert!(answer.get("error").is_some(), "{answer}");
        client.initialize().await;
        assert_usable(harness, &mut client).await;
    });
}
