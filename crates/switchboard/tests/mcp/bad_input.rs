//! Bad input: a clear error that names the field and the remedy, nothing is placed, and the server lives on.

use serde_json::{Value, json};

use crate::client::Client;
use crate::scene::Scene;

crate::tests![
    every_bad_argument_names_its_field_and_places_nothing,
    codex_wants_a_folder,
    a_prompt_that_is_too_long_for_the_agent_is_refused,
    a_prompt_of_fifty_megabytes_is_refused_and_not_kept,
    what_is_no_text_is_answered,
    what_has_the_wrong_shape_is_answered,
    a_request_under_an_id_that_is_none_is_answered,
    an_unknown_tool_is_told_the_nearest,
    what_comes_before_the_introduction_harms_nobody,
];

/// The client can still place a call, and nothing else was placed.
async fn lives_on(scene: &Scene, client: &mut Client) {
    assert_eq!(scene.jobs().await, 0, "something was placed");
    let answer = client.done("call_rehearsal", json!({ "prompt": "still there?" })).await;
    assert_eq!(answer["output"], "You said: still there?");
}

fn every_bad_argument_names_its_field_and_places_nothing() {
    Scene::play(async |scene| {
        let file = scene.folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let mut client = scene.client().await;
        let bad: Vec<(&str, Value, &str)> = vec![
            ("prompt", json!({ "prompt": " \n " }), "`prompt` is a text"),
            ("prompt", json!({ "cwd": "/" }), "`prompt` is a text"),
            ("prompt", json!({ "prompt": 7 }), "`prompt` is a text"),
            ("model", json!({ "prompt": "x", "model": "--help" }), "an alias or the name of a model"),
            (
                "resume_session_id",
                json!({ "prompt": "x", "resume_session_id": "the-last-one" }),
                "session_id that an earlier call",
            ),
            (
                "session_id",
                json!({ "prompt": "x", "session_id": "--help" }),
                "session_id that an earlier call",
            ),
            ("cwd", json!({ "prompt": "x", "cwd": "/no/such/folder" }), "create the folder"),
            ("cwd", json!({ "prompt": "x", "cwd": file }), "not a file in it"),
            ("cwd", json!({ "prompt": "x", "cwd": "src" }), "absolute path"),
            ("timeout_ms", json!({ "prompt": "x", "timeout_ms": 0 }), "give milliseconds"),
            ("timeout_ms", json!({ "prompt": "x", "timeout_ms": -5 }), "a number of milliseconds"),
            ("timeout_ms", json!({ "prompt": "x", "timeout_ms": "soon" }), "a number of milliseconds"),
            ("tool_timeout_ms", json!({ "prompt": "x", "tool_timeout_ms": 0 }), "give milliseconds"),
            ("max_turns", json!({ "prompt": "x", "max_turns": 0 }), "above zero"),
            ("mode", json!({ "prompt": "x", "mode": "look" }), "execute, observe"),
            ("allowed_tools", json!({ "prompt": "x", "allowed_tools": "" }), "a list of texts"),
            (
                "allowed_tools",
                json!({ "prompt": "x", "allowed_tools": ["Read", " "] }),
                "leave the blank one out",
            ),
            ("agent_name", json!({ "prompt": "x", "agent_name": "../../x" }), "letters, digits"),
            ("add_dirs", json!({ "prompt": "x", "add_dirs": ["there"] }), "absolute path"),
            ("add_dirs", json!({ "prompt": "x", "add_dirs": ["/no/such/folder"] }), "create the folder"),
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
                "use only one of them",
            ),
        ];
        for (field, arguments, remedy) in bad {
            let refused = client.refused("call_rehearsal", arguments.clone()).await;
            assert_eq!(refused.field, field, "{arguments}: {refused:?}");
            assert!(refused.text.contains(remedy), "{arguments}: {refused:?}");
        }
        let id = "01a1dde2-642d-7027-95b7-67d9f29d1836";
        for tool in ["call_status", "call_output", "call_cancel"] {
            let refused = client.refused(tool, json!({ "job_id": id })).await;
            assert!(refused.field == "job_id" && refused.text.contains("call_jobs"), "{refused:?}");
            let refused = client.refused(tool, json!({ "job_id": "the last one" })).await;
            assert!(refused.field == "job_id" && refused.text.contains("such as"), "{refused:?}");
        }
        let refused = client.refused("call_wait", json!({ "job_ids": [id] })).await;
        assert_eq!(refused.field, "job_ids[0]", "{refused:?}");
        for (field, arguments) in
            [("job_ids", json!({ "job_ids": [] })), ("mode", json!({ "job_ids": [id], "mode": "some" }))]
        {
            assert_eq!(client.refused("call_wait", arguments).await.field, field);
        }
        for limit in [0, 101] {
            assert_eq!(client.refused("call_jobs", json!({ "limit": limit })).await.field, "limit");
        }
        assert_eq!(
            client.refused("call_jobs", json!({ "status_filter": "done" })).await.field,
            "status_filter"
        );
        assert_eq!(client.refused("howto", json!({ "tool": "call_claude" })).await.field, "tool");
        lives_on(scene, &mut client).await;
    });
}

fn codex_wants_a_folder() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let refused = client.refused("call_codex", json!({ "prompt": "x", "cwd": "" })).await;
        assert!(refused.field == "cwd" && refused.text.contains("absolute path"), "{refused:?}");
        lives_on(scene, &mut client).await;
    });
}

fn a_prompt_that_is_too_long_for_the_agent_is_refused() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let prompt = "x".repeat(agents::MAX_PROMPT_BYTES + 1);
        let refused = client.refused("call_rehearsal", json!({ "prompt": prompt })).await;
        assert!(refused.field == "prompt" && refused.text.contains("into a file"), "{refused:?}");
        lives_on(scene, &mut client).await;
    });
}

fn a_prompt_of_fifty_megabytes_is_refused_and_not_kept() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        // The id stands at the end, as the SDKs of today write it.
        let mut line =
            br#"{"method":"tools/call","params":{"name":"call_rehearsal","arguments":{"prompt":""#.to_vec();
        line.resize(line.len() + 50_000_000, b'x');
        line.extend_from_slice(br#""}},"jsonrpc":"2.0","id":77}"#);
        client.send_line(&line).await;
        let answer = client.end(77).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["_meta"]["switchboard/error"]["field"], "prompt");
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("into a file"), "{answer}");
        lives_on(scene, &mut client).await;
    });
}

fn what_is_no_text_is_answered() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let call = b"{\"jsonrpc\":\"2.0\",\"id\":70,\"method\":\"tools/call\",\"params\":{\"name\":\"call_rehearsal\",\"arguments\":{\"prompt\":\"\xff\xfe\"}}}";
        client.send_line(call).await;
        let answer = client.end(70).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("UTF-8"), "{answer}");
        client.send_line(b"{\"id\":71,\"method\":\"tools/list\",\"x\":\"\xc3\x28\"}").await;
        let answer = client.end(71).await;
        assert!(answer["error"]["message"].as_str().unwrap().contains("UTF-8"), "{answer}");
        client.send_line(b"\xff\xfe\x00\x01").await;
        let answer = client.next().await.unwrap();
        assert_eq!((answer["error"]["code"].as_i64(), answer.get("id")), (Some(-32700), None), "{answer}");
        lives_on(scene, &mut client).await;
    });
}

fn what_has_the_wrong_shape_is_answered() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        // Each of these has an id, and whoever waits for it is answered.
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
            let answer = client.end(id).await;
            let is_error = answer.get("error").is_some() || answer["result"]["isError"] == true;
            assert!(is_error, "{shape}: {answer}");
            if shape["method"] == "tools/call" {
                let text = answer["result"]["content"][0]["text"]
                    .as_str()
                    .unwrap_or_else(|| panic!("{shape}: {answer}"));
                assert!(text.contains("hint: "), "{text}");
            }
        }
        // Of two ids, the last one is meant.
        client.send_line(br#"{"jsonrpc":"2.0","id":83,"id":84,"method":"ping"}"#).await;
        assert!(client.end(84).await.get("error").is_some());
        // These have none.
        for line in [&b"hello"[..], b"{", b"[]", b"null", b"{\"foo\":1}", b"[{\"jsonrpc\":\"2.0\"}]"] {
            client.send_line(line).await;
            let answer = client.next().await.unwrap();
            assert!(answer.get("error").is_some() && answer.get("id").is_none(), "{answer}");
        }
        // And this is nobody's business.
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/of/somebody/else" })).await;
        client.send_line(b"").await;
        lives_on(scene, &mut client).await;
        assert_eq!(client.unasked(), Vec::<Value>::new());
    });
}

fn a_request_under_an_id_that_is_none_is_answered() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
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
        // Not from a client that writes down everything that is not there.
        client.send(&json!({ "jsonrpc": "2.0", "id": null, "method": "notifications/cancelled", "params": { "requestId": 99 } })).await;
        lives_on(scene, &mut client).await;
        assert_eq!(client.unasked(), Vec::<Value>::new());
    });
}

fn an_unknown_tool_is_told_the_nearest() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let answer = client.ask("tools/call", json!({ "name": "call_claude", "arguments": {} })).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("did you mean `call_"), "{answer}");
        lives_on(scene, &mut client).await;
    });
}

fn what_comes_before_the_introduction_harms_nobody() {
    Scene::play(async |scene| {
        let mut client = scene.stranger().await;
        client.send_line(b"GET / HTTP/1.1").await;
        assert_eq!(client.next().await.unwrap()["error"]["code"], -32700);
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        let answer = client
            .ask("tools/call", json!({ "name": "call_rehearsal", "arguments": { "prompt": "x" } }))
            .await;
        assert!(answer.get("error").is_some(), "{answer}");
        client.initialize().await;
        lives_on(scene, &mut client).await;
    });
}
