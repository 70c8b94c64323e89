//! The events of each vendor: valid JSON, with the fields the real programs have.

use serde_json::{Value, json};

use crate::harness::{play, play_steps, tests};

tests![
    claude_echoes_with_init_and_result,
    codex_echoes_with_thread_and_turn,
    gemini_echoes_with_init_and_result,
    plain_prints_text_only,
    claude_uses_a_tool,
    codex_uses_a_tool,
    gemini_uses_a_tool,
    claude_deltas_add_up,
    codex_and_gemini_deltas_add_up,
    claude_hits_max_turns_without_a_result_key,
    gemini_hits_max_turns_with_its_own_code,
    codex_rejects_max_turns,
    claude_api_error_has_subtype_success,
    claude_failure_has_no_result_key,
    codex_failures_end_with_turn_failed,
    gemini_failures_exit_with_the_status_mod_256,
    missing_session_is_never_opened,
    failure_prints_the_given_text,
    denied_tool_is_a_success,
    retry_notice_does_not_end_the_run,
    given_session_id_is_used,
    new_session_has_a_new_uuid,
    model_is_echoed,
    every_step_prints_valid_json_in_every_format,
];

fn claude_echoes_with_init_and_result() {
    let played = play("-p --output-format stream-json --verbose", "hello \"world\"\n");
    let events = played.events();
    assert_eq!(played.code(), 0);
    assert_eq!(events.len(), 3);
    let session = events[0]["session_id"].as_str().unwrap();
    assert_eq!((&events[0]["type"], &events[0]["subtype"]), (&json!("system"), &json!("init")));
    assert!(events[0]["tools"].is_array() && events[0]["mcp_servers"].is_array());
    assert!(events[0]["model"].is_string() && events[0]["permissionMode"].is_string());
    assert_eq!(events[1]["message"]["content"][0]["text"], "You said: hello \"world\"");
    assert_eq!(events[1]["session_id"], session);
    let result = &events[2];
    assert_eq!(result["type"], "result");
    assert_eq!(result["subtype"], "success");
    assert_eq!(result["is_error"], false);
    assert_eq!(result["num_turns"], 1);
    assert_eq!(result["result"], "You said: hello \"world\"");
    assert_eq!(result["session_id"], session);
    assert!(result["total_cost_usd"].as_f64().unwrap() > 0.0);
    assert!(result["usage"]["output_tokens"].as_u64().unwrap() > 0);
    assert!(result["modelUsage"]["rehearsal"]["inputTokens"].is_u64());
    assert_eq!(result["permission_denials"], json!([]));
    assert_eq!(result["terminal_reason"], "completed");
    assert_eq!(result["api_error_status"], Value::Null);
    let line = String::from_utf8(played.stdout).unwrap();
    assert!(
        !line.lines().last().unwrap().starts_with("{\"type\""),
        "`type` is not the first key of a result"
    );
}

fn codex_echoes_with_thread_and_turn() {
    let played = play("--as codex exec --json --skip-git-repo-check -", "hello");
    let events = played.events();
    assert_eq!(played.code(), 0);
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thread.started", "turn.started", "item.completed", "turn.completed"]);
    assert!(events[0]["thread_id"].is_string());
    assert_eq!(
        events[2]["item"],
        json!({"id": "item_0", "type": "agent_message", "text": "You said: hello"})
    );
    for figure in ["input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens"] {
        assert!(events[3]["usage"][figure].is_u64(), "{figure}");
    }
}

fn gemini_echoes_with_init_and_result() {
    let played = play("--as gemini --output-format stream-json", "hello");
    let events = played.events();
    assert_eq!(played.code(), 0);
    assert_eq!(events[0]["type"], "init");
    assert!(events[0]["session_id"].is_string() && events[0]["model"].is_string());
    assert_eq!((&events[1]["role"], &events[1]["content"]), (&json!("user"), &json!("hello")));
    assert_eq!((&events[2]["role"], &events[2]["delta"]), (&json!("assistant"), &json!(true)));
    assert_eq!(events[2]["content"], "You said: hello");
    assert_eq!((&events[3]["type"], &events[3]["status"]), (&json!("result"), &json!("success")));
    for figure in ["total_tokens", "input_tokens", "output_tokens", "cached"] {
        assert!(events[3]["stats"][figure].is_u64(), "{figure}");
    }
    assert!(events.iter().all(|event| event["timestamp"].as_str().unwrap().ends_with('Z')));
}

fn plain_prints_text_only() {
    let played = play("--as plain", "hello");
    assert_eq!((played.code(), played.stdout.as_slice()), (0, b"You said: hello\n".as_slice()));
}

fn claude_uses_a_tool() {
    let played =
        play_steps("", &["tool Bash ls -l => two files", r#"tool Read {"file_path":"a"}"#, "answer ok"]);
    let events = played.events();
    let tool_use = &events[1]["message"]["content"][0];
    assert_eq!((&tool_use["type"], &tool_use["name"]), (&json!("tool_use"), &json!("Bash")));
    assert_eq!(tool_use["input"], json!({"command": "ls -l"}));
    let tool_result = &events[2]["message"]["content"][0];
    assert_eq!((&events[2]["type"], &tool_result["type"]), (&json!("user"), &json!("tool_result")));
    assert_eq!(tool_result["tool_use_id"], tool_use["id"]);
    assert_eq!(tool_result["content"], "two files");
    assert_eq!(events[3]["message"]["content"][0]["input"], json!({"file_path": "a"}));
    assert_eq!(played.last()["num_turns"], 3);
}

fn codex_uses_a_tool() {
    let played = play_steps(
        "--as codex",
        &["tool Bash ls => two files", r#"tool look {"at":1} => seen"#, "answer ok"],
    );
    let events = played.events();
    let (started, completed) = (&events[2], &events[3]);
    assert_eq!((&started["type"], &completed["type"]), (&json!("item.started"), &json!("item.completed")));
    assert_eq!(started["item"]["status"], "in_progress");
    assert_eq!(started["item"]["exit_code"], Value::Null);
    assert_eq!(started["item"]["id"], completed["item"]["id"]);
    assert_eq!(completed["item"]["type"], "command_execution");
    assert_eq!(completed["item"]["command"], "ls");
    assert_eq!(completed["item"]["aggregated_output"], "two files");
    assert_eq!(completed["item"]["exit_code"], 0);
    assert_eq!(events[5]["item"]["type"], "mcp_tool_call");
    assert_eq!(events[5]["item"]["arguments"], json!({"at": 1}));
    assert_eq!(events[5]["item"]["result"]["content"][0]["text"], "seen");
}

fn gemini_uses_a_tool() {
    let played = play_steps("--as gemini", &["tool run_shell_command ls => two files", "answer ok"]);
    let events = played.events();
    assert_eq!(events[2]["tool_name"], "run_shell_command");
    assert_eq!(events[2]["parameters"], json!({"command": "ls"}));
    assert_eq!(events[3]["tool_id"], events[2]["tool_id"]);
    assert_eq!((&events[3]["status"], &events[3]["output"]), (&json!("success"), &json!("two files")));
    assert_eq!(played.last()["stats"]["tool_calls"], 1);
}

fn claude_deltas_add_up() {
    let played = play_steps("", &["stream 3 5 1ms"]);
    let deltas: String = played
        .events()
        .iter()
        .filter(|event| event["event"]["type"] == "content_block_delta")
        .map(|event| event["event"]["delta"]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(deltas, "aaaaabbbbbccccc");
    assert_eq!(played.text(), deltas);
}

fn codex_and_gemini_deltas_add_up() {
    for (args, at) in [("--as codex", "/item/text"), ("--as gemini", "/content")] {
        let played = play_steps(args, &["stream 3 5 1ms"]);
        let whole: String = played.events().iter().filter_map(|event| event.pointer(at)?.as_str()).collect();
        assert_eq!(whole, "aaaaabbbbbccccc", "{args}");
    }
}

fn claude_hits_max_turns_without_a_result_key() {
    let played = play_steps("--max-turns 3", &["say partial", "max-turns"]);
    let result = played.last();
    assert_eq!(played.code(), 1);
    assert_eq!(result["subtype"], "error_max_turns");
    assert_eq!(result["is_error"], true);
    assert_eq!(result["terminal_reason"], "max_turns");
    assert_eq!(result["num_turns"], 4);
    assert_eq!(result["errors"], json!(["Reached maximum number of turns (3)"]));
    assert!(result.get("result").is_none());
}

fn gemini_hits_max_turns_with_its_own_code() {
    let played = play_steps("--as gemini", &["max-turns"]);
    assert_eq!((played.code(), &played.last()["status"]), (53, &json!("error")));
}

fn codex_rejects_max_turns() {
    let played = play_steps("--as codex", &["max-turns"]);
    assert_eq!((played.code(), played.stdout.len()), (2, 0));
    assert!(played.stderr.contains("hint: "), "{}", played.stderr);
}

fn claude_api_error_has_subtype_success() {
    let cases = [
        ("auth", json!(401)),
        ("rate-limit", json!(429)),
        ("overloaded", json!(529)),
        ("network", Value::Null),
    ];
    for (kind, status) in cases {
        let played = play_steps("", &[&format!("fail {kind}")]);
        let result = played.last();
        assert_eq!(played.code(), 1, "{kind}");
        assert_eq!((&result["subtype"], &result["is_error"]), (&json!("success"), &json!(true)), "{kind}");
        assert_eq!(result["api_error_status"], status, "{kind}");
        assert!(result["result"].as_str().unwrap().contains("API Error"), "{kind}");
    }
}

fn claude_failure_has_no_result_key() {
    for (kind, subtype) in [("budget", "error_max_budget_usd"), ("other", "error_during_execution")] {
        let played = play_steps("", &[&format!("fail {kind}")]);
        let result = played.last();
        assert_eq!((played.code(), &result["subtype"]), (1, &json!(subtype)));
        assert!(result.get("result").is_none() && result["errors"][0].is_string());
    }
}

fn codex_failures_end_with_turn_failed() {
    for kind in ["auth", "rate-limit", "overloaded", "network", "budget", "other"] {
        let played = play_steps("--as codex", &[&format!("fail {kind}")]);
        assert_eq!((played.code(), &played.last()["type"]), (1, &json!("turn.failed")), "{kind}");
        assert!(played.last()["error"]["message"].is_string(), "{kind}");
    }
}

fn gemini_failures_exit_with_the_status_mod_256() {
    let cases = [("auth", 145), ("rate-limit", 173), ("overloaded", 247), ("other", 244), ("network", 1)];
    for (kind, code) in cases {
        let played = play_steps("--as gemini", &[&format!("fail {kind}")]);
        assert_eq!((played.code(), &played.last()["status"]), (code, &json!("error")), "{kind}");
        assert!(!played.stderr.is_empty(), "{kind}");
    }
}

fn missing_session_is_never_opened() {
    let claude = play_steps("--resume abc", &["fail session-not-found"]);
    assert_eq!((claude.code(), claude.events().len()), (1, 1));
    assert_eq!(claude.last()["subtype"], "error_during_execution");
    assert!(claude.stderr.contains("abc"));
    for (args, code) in [("--as codex exec resume abc -", 1), ("--as gemini --resume abc", 42)] {
        let played = play_steps(args, &["fail session-not-found"]);
        assert_eq!((played.code(), played.stdout.len()), (code, 0), "{args}");
        assert!(played.stderr.contains("abc"), "{args}");
    }
}

fn failure_prints_the_given_text() {
    assert_eq!(play_steps("", &["fail auth please log in"]).text(), "please log in");
    let codex = play_steps("--as codex", &["fail auth please log in"]);
    assert_eq!(codex.last()["error"]["message"], "please log in");
    let gemini = play_steps("--as gemini", &["fail auth please log in"]);
    assert_eq!(gemini.last()["error"]["message"], "please log in");
}

fn denied_tool_is_a_success() {
    let claude = play_steps("", &["deny Bash", "answer I may not."]);
    assert_eq!((claude.code(), &claude.last()["subtype"]), (0, &json!("success")));
    assert_eq!(claude.last()["permission_denials"][0]["tool_name"], "Bash");
    let codex = play_steps("--as codex", &["deny ls", "answer I may not."]);
    assert_eq!((codex.code(), &codex.events()[3]["item"]["status"]), (0, &json!("declined")));
    let gemini = play_steps("--as gemini", &["deny ls", "answer I may not."]);
    assert_eq!((gemini.code(), &gemini.events()[3]["status"]), (0, &json!("error")));
}

fn retry_notice_does_not_end_the_run() {
    let claude = play_steps("", &["retry-notice", "answer at last"]);
    assert_eq!((&claude.events()[1]["subtype"], claude.text().as_str()), (&json!("api_retry"), "at last"));
    let codex = play_steps("--as codex", &["retry-notice", "answer at last"]);
    assert_eq!(
        (&codex.events()[2]["type"], &codex.last()["type"]),
        (&json!("error"), &json!("turn.completed"))
    );
    let gemini = play_steps("--as gemini", &["retry-notice", "answer at last"]);
    assert!(gemini.stderr.contains("Retrying") && gemini.code() == 0);
}

fn given_session_id_is_used() {
    for args in ["--resume S-1", "--session-id S-1", "-r S-1", "--resume=S-1"] {
        let events = play(args, "x").events();
        assert!(events.iter().all(|event| event["session_id"] == "S-1"), "{args}");
    }
    assert_eq!(play("--as codex exec --json resume S-1 -", "x").events()[0]["thread_id"], "S-1");
    assert_eq!(play("--as gemini --session-id S-1", "x").events()[0]["session_id"], "S-1");
    assert_ne!(play("--resume S-1 --fork-session", "x").events()[0]["session_id"], "S-1");
}

fn new_session_has_a_new_uuid() {
    let ids = [0, 1].map(|_| play("", "x").last()["session_id"].as_str().unwrap().to_owned());
    assert_ne!(ids[0], ids[1]);
    let groups: Vec<_> = ids[0].split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12]);
}

fn model_is_echoed() {
    let events = play("--model opus", "x").events();
    assert_eq!((&events[0]["model"], &events[1]["message"]["model"]), (&json!("opus"), &json!("opus")));
    assert!(events[2]["modelUsage"]["opus"].is_object());
    assert_eq!(play("--as gemini -m flash", "x").events()[0]["model"], "flash");
}

fn every_step_prints_valid_json_in_every_format() {
    let nasty = "\u{1}\"\\ \u{2028} \u{7f} é 😀 </script>";
    let steps = [
        format!("say {nasty}"),
        format!("think {nasty}"),
        format!("tool {{nasty}} {nasty} => {nasty}"),
        "deny \u{1}é\\😀".to_owned(),
        "stream 2 3 1ms".to_owned(),
        "retry-notice".to_owned(),
        "garbage event".to_owned(),
        "env".to_owned(),
        "args".to_owned(),
        "fds".to_owned(),
        "flood events 10kB".to_owned(),
        format!("fail other {nasty}"),
        format!("answer {nasty}"),
    ];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    for vendor in ["claude", "codex", "gemini"] {
        let events = play_steps(&format!("--as {vendor}"), &steps).events();
        assert!(events.len() > 20, "{vendor}");
        assert!(events.iter().all(|event| event["type"].is_string()), "{vendor}");
    }
}
