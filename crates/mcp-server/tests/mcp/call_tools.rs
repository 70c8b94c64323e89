//! Calls to agents: their results, and the options that reach the agent.

use std::time::Duration;

use serde_json::{Value, json};

use mcp_server::{CallDefaults, McpOptions};

use crate::client::Client;
use crate::harness::McpHarness;

testkit::tests![
    call_returns_the_whole_answer,
    failed_call_is_an_error_with_kind_and_hint,
    slow_call_returns_running_and_continues,
    fire_and_forget_returns_without_waiting,
    same_idempotency_key_is_the_same_job,
    replayed_request_is_the_same_job,
    session_is_resumed_by_id,
    continue_latest_resumes_the_session_of_the_task,
    cwd_accepts_aliases_and_home_paths,
    cwd_defaults_to_the_client_directory,
    long_answer_keeps_head_and_tail,
    stream_events_are_returned_on_request,
    stream_events_are_truncated_with_a_note,
    operator_start_timeout_applies_to_calls,
    short_timeout_counts_as_one_second,
    durations_with_units_are_accepted,
    every_call_tool_validates_session_id,
    parameters_reach_the_agent,
    call_is_sandboxed_by_named_or_default_policy,
    policy_ceiling_applies_to_every_call,
    missing_agent_error_names_its_package,
];

async fn call_rehearsal(client: &mut Client, prompt: &str) -> Value {
    client.call_tool_ok("call_rehearsal", json!({ "prompt": prompt })).await
}

fn call_returns_the_whole_answer() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let result = client.call_tool("call_rehearsal", json!({ "prompt": "Hello", "model": "OPUS" })).await;
        let answer = &result["structuredContent"];
        assert_eq!(answer["status"], "completed", "{result}");
        assert_eq!(answer["output"], "You said: Hello");
        assert_eq!(answer["task_name"], "call_rehearsal");
        assert_eq!(answer["model"], "OPUS");
        assert_eq!(answer["exit_code"], 0);
        assert!(uuid::Uuid::parse_str(answer["session_id"].as_str().unwrap()).is_ok(), "{answer}");
        assert!(answer["usage"]["input_tokens"].is_u64() && answer["num_turns"].is_u64(), "{answer}");
        let printed = std::fs::read_to_string(answer["output_file"].as_str().unwrap()).unwrap();
        assert!(printed.contains("You said: Hello"), "{printed}");
        // The text contains the same.
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("You said: Hello\n\n[completed · job "), "{text}");
        assert!(text.contains(answer["session_id"].as_str().unwrap()), "{text}");
    });
}

fn failed_call_is_an_error_with_kind_and_hint() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let arguments = json!({ "prompt": "@rehearse say halfway\n@rehearse fail auth" });
        let result = client.call_tool("call_rehearsal", arguments).await;
        assert_eq!(result["isError"], true);
        let answer = &result["structuredContent"];
        assert_eq!(
            (&answer["status"], &answer["error"]["kind"]),
            (&json!("failed"), &json!("auth")),
            "{answer}"
        );
        assert!(!answer["error"]["hint"].as_str().unwrap().is_empty());
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("failed (auth): ") && text.contains("\nhint: "), "{text}");
    });
}

fn slow_call_returns_running_and_continues() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let arguments = json!({ "prompt": "@rehearse say on it\n@rehearse delay 1s\n@rehearse answer done", "wait_ms": 1 });
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        assert!(["running", "queued"].contains(&answer["status"].as_str().unwrap()), "{answer}");
        assert!(answer["note"].as_str().unwrap().contains("call_wait"), "{answer}");
        let waited = client.call_tool_ok("call_wait", json!({ "job_ids": [answer["job_id"]] })).await;
        assert_eq!(
            (&waited["done"], &waited["jobs"][0]["output"]),
            (&json!(true), &json!("done")),
            "{waited}"
        );
    });
}

fn fire_and_forget_returns_without_waiting() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let arguments = json!({ "prompt": "@rehearse hang", "fire_and_forget": true });
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        assert!(["running", "queued"].contains(&answer["status"].as_str().unwrap()), "{answer}");
        let status = std::fs::read_to_string(answer["status_file"].as_str().unwrap()).unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["job_id"], answer["job_id"]);
        assert!(answer["output_file"].as_str().unwrap().ends_with("/output"), "{answer}");
        assert!(answer["error_file"].as_str().unwrap().ends_with("/error"), "{answer}");
    });
}

fn same_idempotency_key_is_the_same_job() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let arguments = json!({ "prompt": "Hello", "idempotency_key": "k" });
        let first = client.call_tool_ok("call_rehearsal", arguments.clone()).await;
        let second = client.call_tool_ok("call_rehearsal", arguments).await;
        assert_eq!(first["job_id"], second["job_id"]);
        assert!(second["note"].as_str().unwrap().contains("idempotency_key"), "{second}");
        assert_eq!(harness.job_count().await, 1);
    });
}

fn replayed_request_is_the_same_job() {
    McpHarness::run(async |harness| {
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": "Hello" },
            "_meta": { "switchboard/request": "bridge-1-7" },
        });
        let mut answers = Vec::new();
        for _ in 0..2 {
            // The bridge reconnects after a daemon crash.
            let mut client = harness.client().await;
            let answer = client.request("tools/call", params.clone()).await;
            let answer = answer["result"]["structuredContent"].clone();
            assert!(answer.get("note").is_none(), "the caller passed no key: {answer}");
            answers.push(answer["job_id"].clone());
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(harness.job_count().await, 1);
        // The caller's own key wins.
        let mut client = harness.client().await;
        let mut own = params.clone();
        own["arguments"]["idempotency_key"] = json!("mine");
        client.request("tools/call", own).await;
        assert_eq!(harness.job_count().await, 2);
    });
}

fn session_is_resumed_by_id() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let first = call_rehearsal(&mut client, "Hello").await;
        for name in ["resume_session_id", "session_id"] {
            let answer = client
                .call_tool_ok("call_rehearsal", json!({ "prompt": "Go on", name: first["session_id"] }))
                .await;
            assert_eq!(answer["session_id"], first["session_id"], "{name}");
        }
    });
}

fn continue_latest_resumes_the_session_of_the_task() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let rejected =
            client.rejected("call_rehearsal", json!({ "prompt": "Go on", "continue_latest": true })).await;
        assert_eq!(rejected.field, "continue_latest", "{rejected:?}");
        let first =
            client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello", "task_name": "shop" })).await;
        call_rehearsal(&mut client, "Something else").await;
        let arguments = json!({ "prompt": "Go on", "task_name": "shop", "continue_latest": true });
        let second = client.call_tool_ok("call_rehearsal", arguments).await;
        assert_eq!(second["session_id"], first["session_id"]);
    });
}

fn cwd_accepts_aliases_and_home_paths() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("shop")).unwrap();
    let shop = home.path().join("shop");
    let options = McpOptions {
        rehearsal: true,
        home: Some(home.path().to_owned()),
        cwd_aliases: [("shop".to_owned(), shop.clone())].into(),
        ..McpOptions::default()
    };
    McpHarness::run_with(options, async |harness| {
        let mut client = harness.client().await;
        for cwd in ["shop", "~/shop", shop.to_str().unwrap()] {
            let answer =
                client.call_tool_ok("call_rehearsal", json!({ "prompt": "@rehearse cwd", "cwd": cwd })).await;
            assert_eq!(answer["output"], shop.to_str().unwrap(), "{cwd}");
        }
        let rejected = client.rejected("call_rehearsal", json!({ "prompt": "x", "cwd": "shpo" })).await;
        assert!(rejected.field == "cwd" && rejected.text.contains("aliases shop"), "{rejected:?}");
    });
}

fn cwd_defaults_to_the_client_directory() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer =
            client.call_tool_ok("call_rehearsal", json!({ "prompt": "@rehearse cwd", "cwd": " " })).await;
        assert_eq!(answer["output"], harness.work().to_str().unwrap());
    });
}

fn long_answer_keeps_head_and_tail() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let prompt = format!("begin{}end", "x".repeat(5_000));
        let answer = client
            .call_tool_ok("call_rehearsal", json!({ "prompt": prompt, "max_response_chars": 100 }))
            .await;
        let output = answer["output"].as_str().unwrap();
        assert!(
            output.starts_with("You said: begin") && output.ends_with("end") && output.len() < 400,
            "{output}"
        );
        assert_eq!(answer["truncated"]["left_out_chars"], 10 + 5_008 - 100, "{answer}");
    });
}

fn stream_events_are_returned_on_request() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let plain = call_rehearsal(&mut client, "Hello").await;
        assert!(plain.get("stream_events").is_none(), "{plain}");
        let answer =
            client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello", "expose_stream": true })).await;
        assert!(answer["stream_events"].as_array().unwrap().len() > 1, "{answer}");
    });
}

fn stream_events_are_truncated_with_a_note() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let script = "@rehearse flood events 3MB\n@rehearse answer done";
        let asked = json!({ "prompt": script, "expose_stream": true, "max_response_chars": 5_000 });
        let result = client.call_tool("call_rehearsal", asked).await;
        let answer = &result["structuredContent"];
        let events = answer["stream_events"].as_array().unwrap();
        assert!(serde_json::to_string(events).unwrap().len() < 10_000, "{} events", events.len());
        assert_eq!(
            (&events[0]["event"], &events[events.len() - 1]["event"]),
            (&json!("session_started"), &json!("finished"))
        );
        let left_out = answer["truncated"]["left_out_events"].as_u64().unwrap();
        let note = format!("{left_out} events are left out of stream_events, after the first");
        assert!(result["content"][0]["text"].as_str().unwrap().contains(&note), "{}", result["content"]);
    });
}

fn operator_start_timeout_applies_to_calls() {
    let defaults = CallDefaults { start: Some(Duration::from_millis(300)), ..CallDefaults::default() };
    let options = McpOptions { rehearsal: true, defaults, ..McpOptions::default() };
    McpHarness::run_with(options, async |harness| {
        let mut client = harness.client().await;
        let result = client.call_tool("call_rehearsal", json!({ "prompt": "@rehearse hang" })).await;
        assert_eq!(result["structuredContent"]["error"]["deadline"], "start", "{result}");
    });
}

fn short_timeout_counts_as_one_second() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let arguments = json!({ "prompt": "@rehearse say here\n@rehearse hang", "timeout_ms": 1 });
        let result = client.call_tool("call_rehearsal", arguments).await;
        let answer = &result["structuredContent"];
        assert_eq!(result["isError"], true);
        assert_eq!(
            (&answer["status"], &answer["error"]["deadline"]),
            (&json!("timeout"), &json!("wall")),
            "{answer}"
        );
        // The stored limit is one second.
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        let wall = harness.service.job(job).await.unwrap().order.call.limits.wall;
        assert_eq!(wall, Some(Duration::from_secs(1)));
    });
}

fn durations_with_units_are_accepted() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        // The same values as on the command line.
        let (month, hour) = (Duration::from_hours(30 * 24), 3_600_000);
        let millis = u64::try_from(month.as_millis()).unwrap();
        let arguments =
            json!({ "prompt": "Hello", "timeout_ms": millis, "tool_timeout_ms": millis, "wait_ms": hour });
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        let job = answer["job_id"].as_str().unwrap();
        let call = harness.service.job(job.parse().unwrap()).await.unwrap().order.call;
        assert_eq!((call.limits.wall, call.tool_timeout), (Some(month), Some(month)));
        let waited = client.call_tool_ok("call_wait", json!({ "job_ids": [job], "timeout_ms": hour })).await;
        assert_eq!(waited["done"], true, "{waited}");
        // The same durations as strings.
        let arguments =
            json!({ "prompt": "Hello", "timeout_ms": "30d", "tool_timeout_ms": "90s", "wait_ms": "1h" });
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        let job = answer["job_id"].as_str().unwrap();
        let call = harness.service.job(job.parse().unwrap()).await.unwrap().order.call;
        assert_eq!((call.limits.wall, call.tool_timeout), (Some(month), Some(Duration::from_secs(90))));
        let waited = client.call_tool_ok("call_wait", json!({ "job_ids": [job], "timeout_ms": "10s" })).await;
        assert_eq!(waited["done"], true, "{waited}");
        let rejected =
            client.rejected("call_rehearsal", json!({ "prompt": "x", "timeout_ms": "soon" })).await;
        assert!(rejected.field == "timeout_ms" && rejected.text.contains("`10m`"), "{rejected:?}");
    });
}

fn every_call_tool_validates_session_id() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        for tool in ["call_cc", "call_codex", "call_gem", "call_rehearsal"] {
            let arguments = json!({ "prompt": "x", "cwd": harness.work(), "session_id": "the last one" });
            let rejected = client.rejected(tool, arguments).await;
            assert!(rejected.field == "session_id" && rejected.text.contains("not a UUID"), "{rejected:?}");
        }
    });
}

fn parameters_reach_the_agent() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let added = tempfile::tempdir().unwrap();
        let arguments = json!({
            "prompt": "@rehearse args",
            "mode": "Observe",
            "allowed_tools": ["Read", "Grep"],
            "system_prompt": "Be brief.",
            "add_dirs": [added.path()],
            "max_turns": 7,
            "tool_timeout_ms": 1234,
        });
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        let output = answer["output"].as_str().unwrap();
        for expected in ["--max-turns=7", "Be brief.", added.path().to_str().unwrap(), "Read", "Grep"] {
            assert!(output.contains(expected), "{expected}: {output}");
        }
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        let call = harness.service.job(job).await.unwrap().order.call;
        assert_eq!(call.mode, model::Mode::Observe);
        assert_eq!(call.tool_timeout, Some(Duration::from_millis(1234)));
        // An empty list differs from an absent one.
        let answer =
            client.call_tool_ok("call_rehearsal", json!({ "prompt": "x", "allowed_tools": [] })).await;
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        assert_eq!(harness.service.job(job).await.unwrap().order.call.tools, model::ToolChoice::None);
        let answer = client.call_tool_ok("call_rehearsal", json!({ "prompt": "x" })).await;
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        let call = harness.service.job(job).await.unwrap().order.call;
        assert_eq!(call.tools, model::ToolChoice::Full);
        assert_eq!(call.limits.wall, Some(Duration::from_hours(1)));
        assert_eq!(call.tool_timeout, None);
    });
}

fn missing_agent_error_names_its_package() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        for (tool, package) in [
            ("call_cc", "@anthropic-ai/claude-code"),
            ("call_codex", "@openai/codex"),
            ("call_gem", "@google/gemini-cli"),
        ] {
            let rejected = client.rejected(tool, json!({ "prompt": "x", "cwd": harness.work() })).await;
            assert!(
                rejected.text.contains("not found in PATH") && rejected.text.contains(package),
                "{rejected:?}"
            );
        }
        assert_eq!(harness.job_count().await, 0);
    });
}

/// Lets an agent write inside and outside of its directory. Returns which writes succeeded, and the answer.
async fn try_writes(harness: &McpHarness, client: &mut Client, policy: Option<&str>) -> (bool, bool, Value) {
    let (inside, outside) = (harness.work().join("file"), harness.directory.path().join("file"));
    let prompt = format!(
        "@rehearse write {} x\n@rehearse write {} x\n@rehearse answer done",
        inside.display(),
        outside.display()
    );
    let result = client.call_tool("call_rehearsal", json!({ "prompt": prompt, "policy": policy })).await;
    let wrote = [inside, outside].map(|path| std::fs::remove_file(path).is_ok());
    (wrote[0], wrote[1], result["structuredContent"].clone())
}

fn call_is_sandboxed_by_named_or_default_policy() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        for (asked, is, writes) in [
            (None, "workspace", (true, false)),
            (Some("workspace"), "workspace", (true, false)),
            (Some("observe"), "observe", (false, false)),
            (Some("off"), "off", (true, true)),
        ] {
            let (inside, outside, answer) = try_writes(harness, &mut client, asked).await;
            assert_eq!(answer["sandbox"]["policy"], is, "{asked:?}: {answer}");
            let open = answer["sandbox"]["gaps"].as_array().into_iter().flatten();
            let open: Vec<&str> = open.filter_map(|gap| gap["safeguard"].as_str()).collect();
            // A kernel without a mechanism is reported as a gap.
            assert!((inside, outside) == writes || open.contains(&"writes"), "{asked:?}: {answer}");
        }
        let network = json!({ "prompt": "hi", "network": "http://a.com" });
        assert_eq!(client.rejected("call_rehearsal", network).await.field, "network");
        let rejected = client.call_tool("call_rehearsal", json!({ "prompt": "hi", "policy": "walls" })).await;
        let text = rejected["content"][0]["text"].as_str().unwrap();
        assert!(
            rejected["isError"] == true && text.contains("policy") && text.contains("workspace"),
            "{text}"
        );
    });
}

fn policy_ceiling_applies_to_every_call() {
    let settings = |directory: &std::path::Path| calls::Settings {
        policy_ceiling: model::CallPolicy::from(model::Preset::Observe).into(),
        ..crate::harness::settings(directory)
    };
    McpHarness::run_at(settings, McpOptions { rehearsal: true, ..McpOptions::default() }, async |harness| {
        if !can_confine() {
            return;
        }
        let mut client = harness.client().await;
        for asked in [None, Some("off"), Some("workspace"), Some("observe")] {
            let (inside, outside, answer) = try_writes(harness, &mut client, asked).await;
            assert_eq!(answer["sandbox"]["policy"], "observe", "{asked:?}: {answer}");
            assert!(!inside && !outside, "{asked:?}: {answer}");
        }
        // `restricted` needs the file tools, which are not installed here.
        let rejected =
            client.call_tool("call_rehearsal", json!({ "prompt": "hi", "policy": "restricted" })).await;
        let text = rejected["content"][0]["text"].as_str().unwrap();
        assert!(rejected["isError"] == true && text.contains("file-tools"), "{text}");
    });
}

/// Returns whether this machine can enforce all of a policy, as a ceiling requires.
fn can_confine() -> bool {
    let args = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"];
    let made = std::process::Command::new("/usr/bin/bwrap").args(args).output();
    let can = made.is_ok_and(|made| made.status.success());
    if !can {
        eprintln!("SKIPPED: bubblewrap cannot make namespaces here");
    }
    can
}
