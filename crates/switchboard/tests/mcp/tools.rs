//! What the server says about itself.

use serde_json::json;

use crate::scene::Scene;

crate::tests![
    the_tools_are_listed_with_schemas_and_annotations,
    every_answer_fits_its_schema,
    what_is_not_declared_is_not_there,
    howto_explains_every_tool,
    every_revision_of_the_protocol_is_spoken,
];

fn the_tools_are_listed_with_schemas_and_annotations() {
    Scene::play_with(switchboard::mcp::Options::default(), async |scene| {
        let mut client = scene.stranger().await;
        let introduced = client.initialize().await;
        assert_eq!(introduced["serverInfo"]["name"], "switchboard");
        assert!(introduced["instructions"].as_str().unwrap().contains("call_wait"));
        let list = client.ask("tools/list", json!({})).await;
        let tools = list["result"]["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "call_cc",
                "call_codex",
                "call_gem",
                "call_wait",
                "call_status",
                "call_output",
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
        for tool in &tools[..3] {
            assert!(tool["inputSchema"]["properties"]["session_id"].is_object(), "{tool}");
        }
        assert_eq!(tools[0]["annotations"]["readOnlyHint"], false);
        assert_eq!(tools[4]["annotations"]["readOnlyHint"], true);
        // The scripted agent is not there unless the operator wants it.
        let answer = client
            .ask("tools/call", json!({ "name": "call_rehearsal", "arguments": { "prompt": "x" } }))
            .await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    });
}

fn every_answer_fits_its_schema() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let list = client.ask("tools/list", json!({})).await;
        let tools = list["result"]["tools"].as_array().unwrap().clone();
        let job = client.done("call_rehearsal", json!({ "prompt": "Hello", "expose_stream": true })).await["job_id"].clone();
        let running = client
            .done("call_rehearsal", json!({ "prompt": "@rehearse hang", "wait_ms": 0 }))
            .await["job_id"]
            .clone();
        let asked = [
            ("call_rehearsal", json!({ "prompt": "Hello" })),
            ("call_rehearsal", json!({ "prompt": "@rehearse deny Bash\n@rehearse fail rate-limit" })),
            ("call_status", json!({ "job_id": running })),
            ("call_status", json!({ "job_id": job })),
            ("call_wait", json!({ "job_ids": [job, running], "timeout_ms": 0 })),
            ("call_output", json!({ "job_id": job })),
            ("call_jobs", json!({})),
            ("call_cancel", json!({ "job_id": running })),
            ("howto", json!({})),
        ];
        for (name, arguments) in asked {
            let result = client.tool(name, arguments).await;
            let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
            let schema = jsonschema::validator_for(&tool["outputSchema"]).unwrap();
            let errors: Vec<String> =
                schema.iter_errors(&result["structuredContent"]).map(|error| error.to_string()).collect();
            assert_eq!(errors, Vec::<String>::new(), "{name}: {result}");
        }
    });
}

fn what_is_not_declared_is_not_there() {
    Scene::play(async |scene| {
        let mut client = scene.stranger().await;
        let introduced = client.initialize().await;
        let declared: Vec<&String> = introduced["capabilities"].as_object().unwrap().keys().collect();
        assert_eq!(declared, ["extensions", "resources", "tools"], "{introduced}");
        assert_eq!(introduced["capabilities"]["resources"], json!({}), "{introduced}");
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
            let answer = client.ask(method, params).await;
            assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
        }
        assert!(client.ask("ping", json!({})).await.get("result").is_some());
    });
}

fn howto_explains_every_tool() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let overview = client.done("howto", json!({})).await;
        for name in overview["tools"].as_array().unwrap() {
            let explained = client.done("howto", json!({ "tool": name })).await;
            let text = explained["text"].as_str().unwrap();
            assert!(text.starts_with(name.as_str().unwrap()) && text.contains("Example"), "{text}");
        }
        let cc = client.done("howto", json!({ "tool": "CALL_CC" })).await;
        assert!(cc["text"].as_str().unwrap().contains("- prompt (string, required): "), "{cc}");
    });
}

fn every_revision_of_the_protocol_is_spoken() {
    Scene::play(async |scene| {
        for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
            let mut client = scene.stranger().await;
            let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
            let answer = client.ask("initialize", params).await;
            assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
            assert_eq!(client.done("call_rehearsal", json!({ "prompt": "x" })).await["status"], "completed");
        }
        // The newest has no introduction: each request brings everything.
        let mut client = scene.stranger().await;
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "name": "call_rehearsal", "arguments": { "prompt": "x" }, "_meta": meta });
        let answer = client.ask("tools/call", params).await;
        assert_eq!(answer["result"]["structuredContent"]["status"], "completed", "{answer}");
    });
}
