//! Placing calls: what is answered, and what reaches the agent.

use std::time::Duration;

use serde_json::{Value, json};

use switchboard::mcp::{Defaults, Options};

use crate::client::Client;
use crate::scene::Scene;

crate::tests![
    a_call_answers_with_everything_in_one_object,
    a_failed_call_is_an_error_with_its_kind_and_remedy,
    a_call_that_takes_longer_than_its_wait_answers_running_and_goes_on,
    nothing_is_waited_for_when_the_caller_goes_away,
    the_same_key_is_the_same_job,
    a_request_that_is_sent_again_is_the_same_job,
    a_session_is_gone_on_with,
    the_last_session_of_a_task_is_gone_on_with,
    the_folder_may_be_an_alias_or_below_home,
    the_folder_is_that_of_the_client_when_none_is_named,
    a_long_answer_keeps_head_and_tail,
    what_the_agent_did_is_answered_when_asked_for,
    what_the_agent_did_is_cut_like_the_answer_and_the_cut_is_named,
    the_operator_bounds_the_silence_of_calls,
    a_short_time_limit_counts_as_a_second,
    durations_of_the_command_line_are_accepted,
    every_call_tool_takes_session_id,
    every_parameter_reaches_the_agent,
    a_call_is_confined_by_the_policy_it_names_or_else_to_its_folder,
    a_ceiling_is_lifted_by_no_call,
    an_agent_that_is_not_installed_is_told_how_to_install_it,
];

async fn rehearse(client: &mut Client, prompt: &str) -> Value {
    client.done("call_rehearsal", json!({ "prompt": prompt })).await
}

fn a_call_answers_with_everything_in_one_object() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let result = client.tool("call_rehearsal", json!({ "prompt": "Hello", "model": "OPUS" })).await;
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
        // The readable form says the same.
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("You said: Hello\n\n[completed · job "), "{text}");
        assert!(text.contains(answer["session_id"].as_str().unwrap()), "{text}");
    });
}

fn a_failed_call_is_an_error_with_its_kind_and_remedy() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let arguments = json!({ "prompt": "@rehearse say halfway\n@rehearse fail auth" });
        let result = client.tool("call_rehearsal", arguments).await;
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

fn a_call_that_takes_longer_than_its_wait_answers_running_and_goes_on() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let arguments = json!({ "prompt": "@rehearse say on it\n@rehearse delay 1s\n@rehearse answer done", "wait_ms": 1 });
        let answer = client.done("call_rehearsal", arguments).await;
        assert!(["running", "queued"].contains(&answer["status"].as_str().unwrap()), "{answer}");
        assert!(answer["note"].as_str().unwrap().contains("call_wait"), "{answer}");
        let waited = client.done("call_wait", json!({ "job_ids": [answer["job_id"]] })).await;
        assert_eq!(
            (&waited["done"], &waited["jobs"][0]["output"]),
            (&json!(true), &json!("done")),
            "{waited}"
        );
    });
}

fn nothing_is_waited_for_when_the_caller_goes_away() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let arguments = json!({ "prompt": "@rehearse hang", "fire_and_forget": true });
        let answer = client.done("call_rehearsal", arguments).await;
        assert!(["running", "queued"].contains(&answer["status"].as_str().unwrap()), "{answer}");
        let status = std::fs::read_to_string(answer["status_file"].as_str().unwrap()).unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!(status["job_id"], answer["job_id"]);
        assert!(answer["output_file"].as_str().unwrap().ends_with("/output"), "{answer}");
        assert!(answer["error_file"].as_str().unwrap().ends_with("/error"), "{answer}");
    });
}

fn the_same_key_is_the_same_job() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let arguments = json!({ "prompt": "Hello", "idempotency_key": "k" });
        let first = client.done("call_rehearsal", arguments.clone()).await;
        let second = client.done("call_rehearsal", arguments).await;
        assert_eq!(first["job_id"], second["job_id"]);
        assert!(second["note"].as_str().unwrap().contains("idempotency_key"), "{second}");
        assert_eq!(scene.jobs().await, 1);
    });
}

fn a_request_that_is_sent_again_is_the_same_job() {
    Scene::play(async |scene| {
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": "Hello" },
            "_meta": { "switchboard/request": "bridge-1-7" },
        });
        let mut answers = Vec::new();
        for _ in 0..2 {
            // The daemon died; the bridge is here again.
            let mut client = scene.client().await;
            let answer = client.ask("tools/call", params.clone()).await;
            let answer = answer["result"]["structuredContent"].clone();
            assert!(answer.get("note").is_none(), "the caller knows of no key: {answer}");
            answers.push(answer["job_id"].clone());
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(scene.jobs().await, 1);
        // A key of the caller's own counts more.
        let mut client = scene.client().await;
        let mut own = params.clone();
        own["arguments"]["idempotency_key"] = json!("mine");
        client.ask("tools/call", own).await;
        assert_eq!(scene.jobs().await, 2);
    });
}

fn a_session_is_gone_on_with() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let first = rehearse(&mut client, "Hello").await;
        for name in ["resume_session_id", "session_id"] {
            let answer =
                client.done("call_rehearsal", json!({ "prompt": "Go on", name: first["session_id"] })).await;
            assert_eq!(answer["session_id"], first["session_id"], "{name}");
        }
    });
}

fn the_last_session_of_a_task_is_gone_on_with() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let refused =
            client.refused("call_rehearsal", json!({ "prompt": "Go on", "continue_latest": true })).await;
        assert_eq!(refused.field, "continue_latest", "{refused:?}");
        let first = client.done("call_rehearsal", json!({ "prompt": "Hello", "task_name": "shop" })).await;
        rehearse(&mut client, "Something else").await;
        let arguments = json!({ "prompt": "Go on", "task_name": "shop", "continue_latest": true });
        let second = client.done("call_rehearsal", arguments).await;
        assert_eq!(second["session_id"], first["session_id"]);
    });
}

fn the_folder_may_be_an_alias_or_below_home() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("shop")).unwrap();
    let shop = home.path().join("shop");
    let options = Options {
        rehearsal: true,
        home: Some(home.path().to_owned()),
        cwd_aliases: [("shop".to_owned(), shop.clone())].into(),
        ..Options::default()
    };
    Scene::play_with(options, async |scene| {
        let mut client = scene.client().await;
        for cwd in ["shop", "~/shop", shop.to_str().unwrap()] {
            let answer =
                client.done("call_rehearsal", json!({ "prompt": "@rehearse cwd", "cwd": cwd })).await;
            assert_eq!(answer["output"], shop.to_str().unwrap(), "{cwd}");
        }
        let refused = client.refused("call_rehearsal", json!({ "prompt": "x", "cwd": "shpo" })).await;
        assert!(refused.field == "cwd" && refused.text.contains("aliases shop"), "{refused:?}");
    });
}

fn the_folder_is_that_of_the_client_when_none_is_named() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let answer = client.done("call_rehearsal", json!({ "prompt": "@rehearse cwd", "cwd": " " })).await;
        assert_eq!(answer["output"], scene.work().to_str().unwrap());
    });
}

fn a_long_answer_keeps_head_and_tail() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let prompt = format!("begin{}end", "x".repeat(5_000));
        let answer =
            client.done("call_rehearsal", json!({ "prompt": prompt, "max_response_chars": 100 })).await;
        let output = answer["output"].as_str().unwrap();
        assert!(
            output.starts_with("You said: begin") && output.ends_with("end") && output.len() < 400,
            "{output}"
        );
        assert_eq!(answer["truncated"]["left_out_chars"], 10 + 5_008 - 100, "{answer}");
    });
}

fn what_the_agent_did_is_answered_when_asked_for() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let plain = rehearse(&mut client, "Hello").await;
        assert!(plain.get("stream_events").is_none(), "{plain}");
        let answer = client.done("call_rehearsal", json!({ "prompt": "Hello", "expose_stream": true })).await;
        assert!(answer["stream_events"].as_array().unwrap().len() > 1, "{answer}");
    });
}

fn what_the_agent_did_is_cut_like_the_answer_and_the_cut_is_named() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let script = "@rehearse flood events 3MB\n@rehearse answer done";
        let asked = json!({ "prompt": script, "expose_stream": true, "max_response_chars": 5_000 });
        let result = client.tool("call_rehearsal", asked).await;
        let answer = &result["structuredContent"];
        let events = answer["stream_events"].as_array().unwrap();
        assert!(serde_json::to_string(events).unwrap().len() < 10_000, "{} events", events.len());
        assert_eq!(
            (&events[0]["event"], &events[events.len() - 1]["event"]),
            (&json!("session_started"), &json!("finished"))
        );
        let left_out = answer["truncated"]["left_out_events"].as_u64().unwrap();
        let told = format!("{left_out} events are left out of stream_events, after the first");
        assert!(result["content"][0]["text"].as_str().unwrap().contains(&told), "{}", result["content"]);
    });
}

fn the_operator_bounds_the_silence_of_calls() {
    let defaults = Defaults { start: Some(Duration::from_millis(300)), ..Defaults::default() };
    let options = Options { rehearsal: true, defaults, ..Options::default() };
    Scene::play_with(options, async |scene| {
        let mut client = scene.client().await;
        let result = client.tool("call_rehearsal", json!({ "prompt": "@rehearse hang" })).await;
        assert_eq!(result["structuredContent"]["error"]["deadline"], "start", "{result}");
    });
}

fn a_short_time_limit_counts_as_a_second() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let arguments = json!({ "prompt": "@rehearse say here\n@rehearse hang", "timeout_ms": 1 });
        let result = client.tool("call_rehearsal", arguments).await;
        let answer = &result["structuredContent"];
        assert_eq!(result["isError"], true);
        assert_eq!(
            (&answer["status"], &answer["error"]["deadline"]),
            (&json!("timeout"), &json!("wall")),
            "{answer}"
        );
        // As it was kept: the agent had a second.
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        let wall = scene.desk.job(job).await.unwrap().order.call.limits.wall;
        assert_eq!(wall, Some(Duration::from_secs(1)));
    });
}

fn durations_of_the_command_line_are_accepted() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        // `switchboard call --timeout 30d --wait 1h`, and `switchboard wait --timeout 1h`.
        let (month, hour) = (Duration::from_hours(30 * 24), 3_600_000);
        let millis = u64::try_from(month.as_millis()).unwrap();
        let arguments =
            json!({ "prompt": "Hello", "timeout_ms": millis, "tool_timeout_ms": millis, "wait_ms": hour });
        let answer = client.done("call_rehearsal", arguments).await;
        let job = answer["job_id"].as_str().unwrap();
        let call = scene.desk.job(job.parse().unwrap()).await.unwrap().order.call;
        assert_eq!((call.limits.wall, call.tool_timeout), (Some(month), Some(month)));
        let waited = client.done("call_wait", json!({ "job_ids": [job], "timeout_ms": hour })).await;
        assert_eq!(waited["done"], true, "{waited}");
        // The same times as texts.
        let arguments =
            json!({ "prompt": "Hello", "timeout_ms": "30d", "tool_timeout_ms": "90s", "wait_ms": "1h" });
        let answer = client.done("call_rehearsal", arguments).await;
        let job = answer["job_id"].as_str().unwrap();
        let call = scene.desk.job(job.parse().unwrap()).await.unwrap().order.call;
        assert_eq!((call.limits.wall, call.tool_timeout), (Some(month), Some(Duration::from_secs(90))));
        let waited = client.done("call_wait", json!({ "job_ids": [job], "timeout_ms": "10s" })).await;
        assert_eq!(waited["done"], true, "{waited}");
        let refused = client.refused("call_rehearsal", json!({ "prompt": "x", "timeout_ms": "soon" })).await;
        assert!(refused.field == "timeout_ms" && refused.text.contains("`10m`"), "{refused:?}");
    });
}

fn every_call_tool_takes_session_id() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        for tool in ["call_cc", "call_codex", "call_gem", "call_rehearsal"] {
            let arguments = json!({ "prompt": "x", "cwd": scene.work(), "session_id": "the last one" });
            let refused = client.refused(tool, arguments).await;
            assert!(refused.field == "session_id" && refused.text.contains("not a UUID"), "{refused:?}");
        }
    });
}

fn every_parameter_reaches_the_agent() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
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
        let answer = client.done("call_rehearsal", arguments).await;
        let output = answer["output"].as_str().unwrap();
        for expected in ["--max-turns=7", "Be brief.", added.path().to_str().unwrap(), "Read", "Grep"] {
            assert!(output.contains(expected), "{expected}: {output}");
        }
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        let call = scene.desk.job(job).await.unwrap().order.call;
        assert_eq!(call.mode, model::Mode::Observe);
        assert_eq!(call.tool_timeout, Some(Duration::from_millis(1234)));
        // None at all is not the same as nothing said.
        let answer = client.done("call_rehearsal", json!({ "prompt": "x", "allowed_tools": [] })).await;
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        assert_eq!(scene.desk.job(job).await.unwrap().order.call.tools, model::ToolChoice::None);
        let answer = client.done("call_rehearsal", json!({ "prompt": "x" })).await;
        let job = answer["job_id"].as_str().unwrap().parse().unwrap();
        let call = scene.desk.job(job).await.unwrap().order.call;
        assert_eq!(call.tools, model::ToolChoice::Full);
        assert_eq!(call.limits.wall, Some(Duration::from_hours(1)));
        assert_eq!(call.tool_timeout, None);
    });
}

fn an_agent_that_is_not_installed_is_told_how_to_install_it() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        for (tool, package) in [
            ("call_cc", "@anthropic-ai/claude-code"),
            ("call_codex", "@openai/codex"),
            ("call_gem", "@google/gemini-cli"),
        ] {
            let refused = client.refused(tool, json!({ "prompt": "x", "cwd": scene.work() })).await;
            assert!(
                refused.text.contains("not found in PATH") && refused.text.contains(package),
                "{refused:?}"
            );
        }
        assert_eq!(scene.jobs().await, 0);
    });
}

/// Lets an agent write in its folder and beside it. What it could, and what it was confined by.
async fn tries_to_write(scene: &Scene, client: &mut Client, policy: Option<&str>) -> (bool, bool, Value) {
    let (inside, outside) = (scene.work().join("file"), scene.folder.path().join("file"));
    let prompt = format!(
        "@rehearse write {} x\n@rehearse write {} x\n@rehearse answer done",
        inside.display(),
        outside.display()
    );
    let result = client.tool("call_rehearsal", json!({ "prompt": prompt, "policy": policy })).await;
    let wrote = [inside, outside].map(|path| std::fs::remove_file(path).is_ok());
    (wrote[0], wrote[1], result["structuredContent"].clone())
}

fn a_call_is_confined_by_the_policy_it_names_or_else_to_its_folder() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        for (asked, is, writes) in [
            (None, "workspace", (true, false)),
            (Some("workspace"), "workspace", (true, false)),
            (Some("observe"), "observe", (false, false)),
            (Some("off"), "off", (true, true)),
        ] {
            let (inside, outside, answer) = tries_to_write(scene, &mut client, asked).await;
            assert_eq!(answer["sandbox"]["policy"], is, "{asked:?}: {answer}");
            let open = answer["sandbox"]["gaps"].as_array().into_iter().flatten();
            let open: Vec<&str> = open.filter_map(|gap| gap["safeguard"].as_str()).collect();
            // A kernel with nothing to hold it by is told of.
            assert!((inside, outside) == writes || open.contains(&"writes"), "{asked:?}: {answer}");
        }
        let network = json!({ "prompt": "hi", "network": "http://a.com" });
        assert_eq!(client.refused("call_rehearsal", network).await.field, "network");
        let refused = client.tool("call_rehearsal", json!({ "prompt": "hi", "policy": "walls" })).await;
        let text = refused["content"][0]["text"].as_str().unwrap();
        assert!(
            refused["isError"] == true && text.contains("policy") && text.contains("workspace"),
            "{text}"
        );
    });
}

fn a_ceiling_is_lifted_by_no_call() {
    let settings = |folder: &std::path::Path| calls::Settings {
        policy_ceiling: model::CallPolicy::from(model::Preset::Observe).into(),
        ..crate::scene::settings(folder)
    };
    Scene::play_at(settings, Options { rehearsal: true, ..Options::default() }, async |scene| {
        if !can_confine() {
            return;
        }
        let mut client = scene.client().await;
        for asked in [None, Some("off"), Some("workspace"), Some("observe")] {
            let (inside, outside, answer) = tries_to_write(scene, &mut client, asked).await;
            assert_eq!(answer["sandbox"]["policy"], "observe", "{asked:?}: {answer}");
            assert!(!inside && !outside, "{asked:?}: {answer}");
        }
        // Without a shell and without the file tools there is nothing that it could be given.
        let refused = client.tool("call_rehearsal", json!({ "prompt": "hi", "policy": "restricted" })).await;
        let text = refused["content"][0]["text"].as_str().unwrap();
        assert!(refused["isError"] == true && text.contains("file-tools"), "{text}");
    });
}

/// Whether this machine can enforce all of a policy, as a ceiling requires; says so when it cannot.
fn can_confine() -> bool {
    let args = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"];
    let made = std::process::Command::new("/usr/bin/bwrap").args(args).output();
    let can = made.is_ok_and(|made| made.status.success());
    if !can {
        eprintln!("SKIPPED: bubblewrap cannot make namespaces here");
    }
    can
}
