//! Capabilities, tool definitions and schemas.

use serde_json::json;

use crate::harness::{McpHarness, create_repository};

testkit::tests![
    tools_are_listed_with_schemas_and_annotations,
    structured_content_matches_its_schema,
    undeclared_methods_are_not_found,
    howto_explains_every_tool,
    all_protocol_revisions_are_supported,
];

fn tools_are_listed_with_schemas_and_annotations() {
    McpHarness::run_with(mcp_server::McpOptions::default(), async |harness| {
        let mut client = harness.uninitialized_client().await;
        let initialized = client.initialize().await;
        assert_eq!(initialized["serverInfo"]["name"], "switchboard");
        assert!(initialized["instructions"].as_str().unwrap().contains("call_wait"));
        let list = client.request("tools/list", json!({})).await;
        let tools = list["result"]["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "call_cc",
                "call_codex",
                "call_gem",
                "call_agent",
                "call_many",
                "call_wait",
                "call_status",
                "call_output",
                "call_changes",
                "call_jobs",
                "call_cancel",
                "howto"
            ]
        );
        for tool in tools {
            assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
            assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
            assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        }
        assert_eq!(tools[0]["inputSchema"]["required"], json!(["prompt"]));
        assert_eq!(tools[1]["inputSchema"]["required"], json!(["prompt", "cwd"]));
        assert_eq!(tools[3]["inputSchema"]["required"], json!(["prompt", "agent"]));
        assert_eq!(tools[4]["inputSchema"]["required"], json!(["prompt", "agents"]));
        for tool in &tools[..4] {
            assert!(tool["inputSchema"]["properties"]["session_id"].is_object(), "{tool}");
        }
        assert_eq!(tools[0]["annotations"]["readOnlyHint"], false);
        assert_eq!(tools[5]["annotations"]["readOnlyHint"], true);
        // The scripted agent is disabled by default.
        let answer = client
            .request("tools/call", json!({ "name": "call_rehearsal", "arguments": { "prompt": "x" } }))
            .await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    });
}

fn all_tools() -> mcp_server::McpOptions {
    mcp_server::McpOptions { rehearsal: true, apply_changes: true, ..mcp_server::McpOptions::default() }
}

fn structured_content_matches_its_schema() {
    McpHarness::run_with(all_tools(), async |harness| {
        let mut client = harness.client().await;
        let list = client.request("tools/list", json!({})).await;
        let tools = list["result"]["tools"].as_array().unwrap().clone();
        create_repository(&harness.work());
        let prompt = "@rehearse write b.txt new\n@rehearse answer done";
        let job = client
            .call_tool_ok(
                "call_rehearsal",
                json!({ "prompt": prompt, "expose_stream": true, "worktree": true }),
            )
            .await["job_id"]
            .clone();
        let running = client
            .call_tool_ok("call_rehearsal", json!({ "prompt": "@rehearse hang", "wait_ms": 0 }))
            .await["job_id"]
            .clone();
        let two = ["rehearsal", "rehearsal:x"];
        let hanging =
            json!({ "prompt": "@rehearse hang", "agents": two, "judge": "rehearsal", "wait_ms": 0 });
        let group = client.call_tool_ok("call_many", hanging).await["group_id"].clone();
        let requests = [
            ("call_rehearsal", json!({ "prompt": "Hello" })),
            ("call_many", json!({ "prompt": prompt, "agents": two, "judge": "rehearsal", "verify": "true" })),
            ("call_many", json!({ "prompt": "Hello", "agents": two, "observe": true })),
            ("call_status", json!({ "job_id": group })),
            ("call_wait", json!({ "job_ids": [job, group], "timeout_ms": 0 })),
            ("call_cancel", json!({ "job_id": group })),
            ("call_wait", json!({ "job_ids": [group] })),
            ("call_rehearsal", json!({ "prompt": "@rehearse deny Bash\n@rehearse fail rate-limit" })),
            ("call_status", json!({ "job_id": running })),
            ("call_status", json!({ "job_id": job })),
            ("call_wait", json!({ "job_ids": [job, running], "timeout_ms": 0 })),
            ("call_output", json!({ "job_id": job })),
            ("call_changes", json!({ "job_id": job })),
            ("call_jobs", json!({})),
            ("call_cancel", json!({ "job_id": running })),
            ("call_apply", json!({ "job_id": job, "dry_run": true })),
            ("call_discard", json!({ "job_id": job })),
            ("howto", json!({})),
        ];
        for (name, arguments) in requests {
            let result = client.call_tool(name, arguments).await;
            let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
            let schema = jsonschema::validator_for(&tool["outputSchema"]).unwrap();
            let errors: Vec<String> =
                schema.iter_errors(&result["structuredContent"]).map(|error| error.to_string()).collect();
            assert_eq!(errors, Vec::<String>::new(), "{name}: {result}");
        }
    });
}

fn undeclared_methods_are_not_found() {
    McpHarness::run(async |harness| {
        let mut client = harness.uninitialized_client().await;
        let initialized = client.initialize().await;
        let declared: Vec<&String> = initialized["capabilities"].as_object().unwrap().keys().collect();
        assert_eq!(declared, ["extensions", "resources", "tools"], "{initialized}");
        assert_eq!(initialized["capabilities"]["resources"], json!({}), "{initialized}");
        for (method, params) in [
            ("prompts/list", json!({})),
            ("prompts/get", json!({ "name": "x" })),
            (
                "completion/complete",
                json!({ "ref": { "type": "ref/prompt", "name": "x" }, "argument": { "name": "a", "value": "b" } }),
            ),
            ("logging/setLevel", json!({ "level": "info" })),
            ("resources/subscribe", json!({ "uri": "switchboard://jobs/x" })),
            ("tasks/list", json!({})),
            ("no/such/method", json!({})),
        ] {
            let answer = client.request(method, params).await;
            assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
        }
        assert!(client.request("ping", json!({})).await.get("result").is_some());
    });
}

fn howto_explains_every_tool() {
    McpHarness::run_with(all_tools(), async |harness| {
        let mut client = harness.client().await;
        let overview = client.call_tool_ok("howto", json!({})).await;
        for name in overview["tools"].as_array().unwrap() {
            let explained = client.call_tool_ok("howto", json!({ "tool": name })).await;
            let text = explained["text"].as_str().unwrap();
            assert!(text.starts_with(name.as_str().unwrap()) && text.contains("Example"), "{text}");
        }
        let cc = client.call_tool_ok("howto", json!({ "tool": "CALL_CC" })).await;
        assert!(cc["text"].as_str().unwrap().contains("- prompt (string, required): "), "{cc}");
    });
}

fn all_protocol_revisions_are_supported() {
    McpHarness::run(async |harness| {
        for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
            let mut client = harness.uninitialized_client().await;
            let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
            let answer = client.request("initialize", params).await;
            assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
            assert_eq!(
                client.call_tool_ok("call_rehearsal", json!({ "prompt": "x" })).await["status"],
                "completed"
            );
        }
        // The newest revision has no handshake: each request is self-contained.
        let mut client = harness.uninitialized_client().await;
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "name": "call_rehearsal", "arguments": { "prompt": "x" }, "_meta": meta });
        let answer = client.request("tools/call", params).await;
        assert_eq!(answer["result"]["structuredContent"]["status"], "completed", "{answer}");
    });
}
