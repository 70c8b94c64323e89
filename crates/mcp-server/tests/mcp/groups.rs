//! One task for several agents: races, common answers, and the tools that accept a group.

use std::fs;
use std::path::PathBuf;

use mcp_server::McpOptions;
use model::{GroupId, JobId, StateName};
use serde_json::{Value, json};
use testkit::eventually_async;

use crate::client::Client;
use crate::harness::{McpHarness, create_repository};

testkit::tests![
    race_returns_a_table_and_the_verdict_of_the_judge,
    race_with_one_completed_contender_is_no_error,
    race_without_a_completed_contender_is_an_error,
    observe_returns_the_synthesis_first,
    missing_synthesis_is_an_error_with_the_answers,
    slow_race_returns_its_group_id_and_continues,
    fire_and_forget_race_returns_its_files,
    same_key_is_the_same_group,
    answers_of_a_group_share_the_limit,
    progress_of_a_race_shows_its_agents,
    cancelled_request_cancels_its_group,
    call_wait_accepts_groups_and_jobs_together,
    call_wait_for_any_returns_with_the_first_contender,
    call_status_reads_a_group_by_prefix,
    call_cancel_stops_the_unfinished_jobs_of_a_group,
    group_id_in_place_of_a_job_id_lists_the_jobs,
    race_is_a_task_for_clients_with_tasks,
    invalid_group_is_rejected_with_field_and_remedy,
    race_outside_of_git_is_rejected,
    scripted_agent_needs_the_permission_of_the_operator,
];

pub const WRITING: [&str; 2] = ["only fast write a.txt one", "only slow write a.txt two"];

pub fn options() -> McpOptions {
    McpOptions { rehearsal: true, apply_changes: true, ..McpOptions::default() }
}

/// Returns the arguments of a task with these steps for scripted agents of these models.
fn task(steps: &[&str], models: &[&str], more: Value) -> Value {
    let steps: Vec<String> = steps.iter().map(|step| format!("@rehearse {step}")).collect();
    let agents: Vec<String> = models.iter().map(|model| format!("rehearsal:{model}")).collect();
    let mut arguments = json!({ "prompt": steps.join("\n"), "agents": agents });
    let Value::Object(more) = more else { panic!("{more}") };
    arguments.as_object_mut().unwrap().extend(more);
    arguments
}

/// Creates a repository with the file `a.txt`.
pub fn repository(harness: &McpHarness) -> PathBuf {
    create_repository(&harness.work());
    fs::write(harness.work().join("a.txt"), "zero\n").unwrap();
    harness.work()
}

pub async fn race(client: &mut Client, steps: &[&str], models: &[&str], more: Value) -> Value {
    client.call_tool_ok("call_many", task(steps, models, more)).await
}

/// Starts a race in which the contender `stuck` never ends, and returns its report once the contender `fast` has ended.
async fn start_race(harness: &McpHarness, client: &mut Client) -> Value {
    repository(harness);
    let steps = [WRITING[0], "only stuck say working", "only stuck hang"];
    let report = race(client, &steps, &["fast", "stuck"], json!({ "wait_ms": 0 })).await;
    client.call_tool_ok("call_wait", json!({ "job_ids": [job_of(&report, 0)] })).await;
    wait_until_working(harness, job_of(&report, 1)).await;
    report
}

pub async fn wait_until_working(harness: &McpHarness, job: &str) {
    let job: JobId = job.parse().unwrap();
    eventually_async("the agent works", async || {
        harness.service.activity(job).is_some_and(|activity| activity.borrow().line == "working")
    })
    .await;
}

pub fn job_of(report: &Value, contender: usize) -> &str {
    report["contenders"][contender]["job_id"].as_str().unwrap_or_else(|| panic!("{report}"))
}

pub fn group_of(report: &Value) -> &str {
    report["group_id"].as_str().unwrap_or_else(|| panic!("{report}"))
}

pub fn statuses(report: &Value) -> Vec<&str> {
    let contenders = report["contenders"].as_array().unwrap_or_else(|| panic!("{report}"));
    contenders.iter().map(|contender| contender["status"].as_str().unwrap()).collect()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

async fn state(harness: &McpHarness, job: &str) -> StateName {
    harness.service.job(job.parse().unwrap()).await.unwrap().progress.state.name()
}

pub async fn changes_state(client: &mut Client, job: &str) -> Value {
    let answer = client.call_tool_ok("call_status", json!({ "job_id": job })).await;
    answer["changes"]["checkout"]["state"].clone()
}

fn race_returns_a_table_and_the_verdict_of_the_judge() {
    McpHarness::run(async |harness| {
        let root = repository(harness);
        let mut client = harness.client().await;
        let steps = [WRITING[0], WRITING[1], "only third write a.txt three", "only judge choose +two"];
        let more = json!({
            "judge": "rehearsal:judge", "verify": "read word < a.txt; test \"$word\" != three", "repair": 1, "task_name": "shop",
        });
        let result = client.call_tool("call_many", task(&steps, &["fast", "slow", "third"], more)).await;
        assert_ne!(result["isError"], true, "{result}");
        let report = &result["structuredContent"];
        assert_eq!((&report["kind"], &report["has_ended"]), (&json!("race"), &json!(true)), "{report}");
        assert_eq!(statuses(report), ["completed", "completed", "failed"]);
        assert_eq!(report["contenders"][0]["verified"]["state"], "passed");
        assert_eq!(report["contenders"][2]["verified"]["state"], "failed");
        assert_eq!(report["contenders"][1]["overlaps"], json!(["a.txt"]));
        assert_eq!(report["contenders"][1]["task_name"], "shop");
        assert_eq!(report["verdict"]["winner"], job_of(report, 1), "{report}");
        assert_eq!(report["reviews"].as_array().unwrap().len(), 2);
        assert_eq!(fs::read_to_string(root.join("a.txt")).unwrap(), "zero\n");
        let text = text(&result);
        assert!(text.starts_with(&format!("race {}: 5 of 5 jobs have ended\n", group_of(report))), "{text}");
        for part in [
            "\n2 | rehearsal:slow | completed | passed | changed 1 file (+1 -1), 1 file also changed by others | ",
            "\n3 | rehearsal:third | failed (verification_failed) | failed | ",
            "\njudge | rehearsal:judge | completed | - | - | ",
            "verdict: the judge chose contender 2 in both orders (job ",
            "tell the user to keep one of them, at a terminal or on the web page, which discards the others; review them with call_changes",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("call_apply") && !text.contains("--"), "{text}");
        let jobs = client.call_tool_ok("call_jobs", json!({ "tool_name": "call_many" })).await;
        assert_eq!(jobs["total"], 5);
    });
}

fn race_with_one_completed_contender_is_no_error() {
    McpHarness::run_with(options(), async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let steps = [WRITING[0], "only slow fail auth"];
        let more = json!({ "judge": "rehearsal:judge" });
        let result = client.call_tool("call_many", task(&steps, &["fast", "slow"], more)).await;
        assert_ne!(result["isError"], true, "{result}");
        let report = &result["structuredContent"];
        assert_eq!(statuses(report), ["completed", "failed"]);
        // Two results are needed for a comparison.
        assert_eq!(report["verdict"]["state"], "not_judged", "{report}");
        assert!(
            text(&result).contains("\n2: auth: ") && text(&result).contains("verdict: fewer than two agents")
        );
        let note = report["note"].as_str().unwrap();
        assert!(note.contains("apply one of them with call_apply and `discard_others: true`"), "{note}");
    });
}

fn race_without_a_completed_contender_is_an_error() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let more = json!({ "expect_changes": true });
        let result =
            client.call_tool("call_many", task(&["only slow fail auth"], &["fast", "slow"], more)).await;
        assert_eq!(result["isError"], true, "{result}");
        let report = &result["structuredContent"];
        assert_eq!((statuses(report), &report["has_ended"]), (vec!["failed", "failed"], &json!(true)));
        assert_eq!(report["contenders"][0]["error"]["kind"], "no_changes");
        assert!(report.get("verdict").is_none(), "{report}");
        // The tools that only read are not in error.
        client.call_tool_ok("call_status", json!({ "job_id": group_of(report) })).await;
    });
}

fn observe_returns_the_synthesis_first() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let steps = ["only one answer it is red", "only two answer it is blue", "only writer answer purple"];
        let more = json!({ "observe": true, "judge": "rehearsal:writer" });
        let result = client.call_tool("call_many", task(&steps, &["one", "two"], more)).await;
        let report = &result["structuredContent"];
        assert_eq!((&report["kind"], &report["reviews"][0]["output"]), (&json!("answers"), &json!("purple")));
        assert_eq!(report["contenders"][0]["output"], "it is red");
        assert!(report.get("verdict").is_none() && report.get("note").is_none(), "{report}");
        assert!(text(&result).starts_with("purple\n\nanswers group-"), "{}", text(&result));
        let job: JobId = job_of(report, 0).parse().unwrap();
        assert_eq!(harness.service.job(job).await.unwrap().order.call.mode, model::Mode::Observe);
    });
}

fn missing_synthesis_is_an_error_with_the_answers() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let steps = ["only one answer it is red", "only two answer it is blue", "only writer fail auth"];
        let more = json!({ "observe": true, "judge": "rehearsal:writer" });
        let result = client.call_tool("call_many", task(&steps, &["one", "two"], more)).await;
        assert_eq!(result["isError"], true, "{result}");
        assert_eq!(statuses(&result["structuredContent"]), ["completed", "completed"]);
        let text = text(&result);
        assert!(text.starts_with("Answer 1:\nit is red\n\nAnswer 2:\nit is blue\n\n"), "{text}");
        assert!(text.contains("\nsynthesis | rehearsal:writer | failed (auth) | "), "{text}");
    });
}

fn slow_race_returns_its_group_id_and_continues() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let steps = ["only slow delay 1s", WRITING[0], WRITING[1]];
        let more = json!({ "wait_ms": 1 });
        let result = client.call_tool("call_many", task(&steps, &["fast", "slow"], more)).await;
        assert_ne!(result["isError"], true, "{result}");
        let report = &result["structuredContent"];
        assert_eq!(report["has_ended"], false, "{report}");
        let next = format!("call_wait and the group_id {}", group_of(report));
        assert!(report["note"].as_str().unwrap().contains(&next), "{report}");
        let waited = client.call_tool_ok("call_wait", json!({ "job_ids": [group_of(report)] })).await;
        assert_eq!(
            (&waited["done"], &waited["groups"][0]["has_ended"], &waited["pending"]),
            (&json!(true), &json!(true), &json!([])),
            "{waited}"
        );
        assert_eq!(statuses(&waited["groups"][0]), ["completed", "completed"]);
    });
}

fn fire_and_forget_race_returns_its_files() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let report = race(&mut client, &["hang"], &["one", "two"], json!({ "fire_and_forget": true })).await;
        assert_eq!(report["has_ended"], false, "{report}");
        for contender in report["contenders"].as_array().unwrap() {
            let status = fs::read_to_string(contender["status_file"].as_str().unwrap()).unwrap();
            let status: Value = serde_json::from_str(&status).unwrap();
            assert_eq!(status["job_id"], contender["job_id"]);
        }
        assert!(report["note"].as_str().unwrap().contains("tail -F"), "{report}");
    });
}

fn same_key_is_the_same_group() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let models = ["fast", "slow"];
        let own = json!({ "idempotency_key": "k" });
        let first = race(&mut client, &WRITING, &models, own.clone()).await;
        let second = race(&mut client, &WRITING, &models, own).await;
        assert_eq!(first["group_id"], second["group_id"]);
        assert!(second["note"].as_str().unwrap().contains("idempotency_key"), "{second}");
        assert_eq!(harness.job_count().await, 2);
        // A request that the bridge replays after a daemon crash.
        let params = json!({
            "name": "call_many",
            "arguments": task(&WRITING, &models, json!({})),
            "_meta": { "switchboard/request": "bridge-1-7" },
        });
        let mut groups = Vec::new();
        for _ in 0..2 {
            let answer = harness.client().await.request("tools/call", params.clone()).await;
            let report = answer["result"]["structuredContent"].clone();
            assert!(!report["note"].as_str().unwrap().contains("idempotency_key"), "{report}");
            groups.push(report["group_id"].clone());
        }
        assert_eq!(groups[0], groups[1]);
        assert_eq!(harness.job_count().await, 4);
    });
}

fn answers_of_a_group_share_the_limit() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let long = format!("answer {}", "x".repeat(5_000));
        let more = json!({ "observe": true, "max_response_chars": 6_000 });
        let report = race(&mut client, &[&long], &["one", "two"], more).await;
        let answers =
            report["contenders"].as_array().unwrap().iter().chain(report["reviews"].as_array().unwrap());
        for answer in answers {
            // Two contenders and a synthesis.
            assert_eq!(answer["truncated"]["left_out_chars"], 3_000, "{answer}");
        }
    });
}

fn progress_of_a_race_shows_its_agents() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let steps = ["only one say red", "only two say blue", "hang"];
        let params = json!({
            "name": "call_many",
            "arguments": task(&steps, &["one", "two"], json!({ "judge": "rehearsal:judge" })),
            "_meta": { "progressToken": "p" },
        });
        client.send_request("tools/call", params).await;
        loop {
            let message = client.next().await.unwrap();
            let line = message["params"]["message"].as_str().unwrap_or_else(|| panic!("{message}"));
            // The judge waits.
            if line == "2 of 4 running: red; blue" {
                break;
            }
        }
    });
}

fn cancelled_request_cancels_its_group() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let steps = ["say working", "hang"];
        let arguments = task(&steps, &["one", "two"], json!({ "judge": "rehearsal:judge" }));
        let params = json!({ "name": "call_many", "arguments": arguments });
        let id = client.send_request("tools/call", params).await;
        let list = async || {
            let page = calls::PageRequest::default();
            harness.service.list(&calls::JobFilter::default(), page).await.unwrap().jobs
        };
        eventually_async("all jobs exist", async || list().await.len() == 4).await;
        let jobs: Vec<JobId> = list().await.iter().rev().map(|job| job.id).collect();
        for job in &jobs[..2] {
            wait_until_working(harness, &job.to_string()).await;
        }
        client
            .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }))
            .await;
        harness.service.wait(&jobs, calls::Until::All, testkit::LONGEST_WAIT).await.unwrap();
        for job in jobs {
            assert_eq!(state(harness, &job.to_string()).await, StateName::Cancelled);
        }
        // A cancelled request gets no response, and the connection still works.
        client.call_tool_ok("call_jobs", json!({})).await;
        assert_eq!(client.notifications(), Vec::<Value>::new());
    });
}

fn call_wait_accepts_groups_and_jobs_together() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let report = start_race(harness, &mut client).await;
        let single = client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello", "wait_ms": 0 })).await;
        let ids = json!([single["job_id"], group_of(&report), group_of(&report)]);
        let waited = client.call_tool("call_wait", json!({ "job_ids": ids, "timeout_ms": 1 })).await;
        let result = &waited["structuredContent"];
        assert_eq!((&result["done"], result.get("groups")), (&json!(false), None), "{result}");
        let pending = result["pending"].as_array().unwrap();
        let group: Vec<&Value> = pending.iter().filter(|one| one["job_id"] == report["group_id"]).collect();
        assert_eq!(group.len(), 1, "{result}");
        assert_eq!(
            (&group[0]["status"], &group[0]["note"]),
            (&json!("running"), &json!("1 of 2 jobs have ended"))
        );
        client.call_tool_ok("call_cancel", json!({ "job_id": job_of(&report, 1) })).await;
        let all = client.call_tool_ok("call_wait", json!({ "job_ids": ids })).await;
        assert_eq!((&all["done"], &all["jobs"][0]["output"]), (&json!(true), &json!("You said: Hello")));
        assert_eq!(statuses(&all["groups"][0]), ["completed", "cancelled"]);
    });
}

fn call_wait_for_any_returns_with_the_first_contender() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let report = start_race(harness, &mut client).await;
        let arguments = json!({ "job_ids": [group_of(&report)], "mode": "any" });
        let waited = client.call_tool_ok("call_wait", arguments).await;
        let group = &waited["groups"][0];
        assert_eq!((&waited["done"], &group["has_ended"]), (&json!(true), &json!(false)), "{waited}");
        assert_eq!(statuses(group), ["completed", "running"]);
        assert_eq!(group["contenders"][1]["activity"], "working");
        // Not the group: another wait for it would return at once.
        assert_eq!(waited["pending"][0]["job_id"], job_of(&report, 1));
    });
}

fn call_status_reads_a_group_by_prefix() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let report = start_race(harness, &mut client).await;
        let (whole, prefix) = (group_of(&report), &group_of(&report)["group-".len()..]);
        let short = format!("group-{}", &prefix[..prefix.len() - 4]);
        for id in [whole, &short] {
            let result = client.call_tool("call_status", json!({ "job_id": id })).await;
            let status = &result["structuredContent"];
            assert_eq!(
                (&status["group_id"], &status["has_ended"]),
                (&json!(whole), &json!(false)),
                "{status}"
            );
            let line = "2 | rehearsal:stuck | running (working) | - | - | ";
            assert!(text(&result).contains(line), "{}", text(&result));
        }
        // The answer of a job names its group.
        let one = client.call_tool_ok("call_status", json!({ "job_id": job_of(&report, 0) })).await;
        assert_eq!((&one["group_id"], &one["status"]), (&json!(whole), &json!("completed")));
        let uri = format!("switchboard://jobs/{whole}");
        let resource = client.request("resources/read", json!({ "uri": uri })).await;
        let contents =
            resource["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{resource}"));
        assert_eq!(serde_json::from_str::<Value>(contents).unwrap()["group_id"], whole);
        let single = client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello" })).await;
        let no_group = format!("group-{}", single["job_id"].as_str().unwrap());
        for (id, remedy) in [
            (no_group.as_str(), "call_jobs"),
            ("group-ffffffff", "call_jobs"),
            ("group-the last", "first four characters"),
        ] {
            let rejected = client.rejected("call_status", json!({ "job_id": id })).await;
            assert!(rejected.field == "job_id" && rejected.text.contains(remedy), "{id}: {rejected:?}");
        }
    });
}

fn call_cancel_stops_the_unfinished_jobs_of_a_group() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let report = start_race(harness, &mut client).await;
        let id = json!({ "job_id": group_of(&report) });
        let cancelled = client.call_tool_ok("call_cancel", id.clone()).await;
        assert_eq!(cancelled["group_id"], report["group_id"]);
        let jobs = cancelled["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), 1, "{cancelled}");
        assert_eq!(
            (&jobs[0]["job_id"], &jobs[0]["previous_status"], &jobs[0]["new_status"]),
            (&json!(job_of(&report, 1)), &json!("running"), &json!("cancelled"))
        );
        assert_eq!(state(harness, job_of(&report, 0)).await, StateName::Completed);
        let again = client.call_tool_ok("call_cancel", id).await;
        assert_eq!(again["jobs"], json!([]));
        assert_eq!(again["message"], "all jobs of the group had already ended");
    });
}

fn group_id_in_place_of_a_job_id_lists_the_jobs() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let report = start_race(harness, &mut client).await;
        for tool in ["call_output", "call_changes", "call_apply", "call_discard"] {
            let rejected = client.rejected(tool, json!({ "job_id": group_of(&report) })).await;
            assert_eq!(rejected.field, "job_id");
            for contender in 0..2 {
                assert!(rejected.text.contains(job_of(&report, contender)), "{tool}: {rejected:?}");
            }
        }
        let uri = format!("switchboard://jobs/{}/output", group_of(&report));
        let resource = client.request("resources/read", json!({ "uri": uri })).await;
        let message = resource["error"]["message"].as_str().unwrap();
        assert!(message.contains(job_of(&report, 0)), "{resource}");
    });
}

fn race_is_a_task_for_clients_with_tasks() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.uninitialized_client().await;
        client.initialize_with(json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })).await;
        let steps = ["only slow say working", "only slow hang", WRITING[0]];
        let params = json!({ "name": "call_many", "arguments": task(&steps, &["fast", "slow"], json!({})) });
        let created = client.request("tools/call", params).await["result"].clone();
        assert_eq!(
            (&created["resultType"], &created["status"]),
            (&json!("task"), &json!("working")),
            "{created}"
        );
        let id = json!({ "taskId": created["taskId"] });
        assert!(GroupId::strip_prefix(created["taskId"].as_str().unwrap()).is_some(), "{created}");
        let status = client.call_tool_ok("call_status", json!({ "job_id": created["taskId"] })).await;
        client.call_tool_ok("call_wait", json!({ "job_ids": [job_of(&status, 0)] })).await;
        let working = client.request("tasks/get", id.clone()).await["result"].clone();
        assert_eq!(working["status"], "working", "a contender is running: {working}");
        assert!(client.request("tasks/cancel", id.clone()).await.get("result").is_some());
        client.call_tool_ok("call_wait", json!({ "job_ids": [created["taskId"]] })).await;
        let ended = client.request("tasks/get", id).await["result"].clone();
        assert_eq!(ended["status"], "completed", "one contender has completed: {ended}");
        assert_eq!(statuses(&ended["result"]["structuredContent"]), ["completed", "cancelled"]);
    });
}

fn invalid_group_is_rejected_with_field_and_remedy() {
    McpHarness::run(async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let two = ["rehearsal", "rehearsal:x"];
        for (field, more, remedy) in [
            ("prompt", json!({ "prompt": null, "agents": two }), "`prompt` is a string"),
            ("agents", json!({}), "`agents` is a list of strings"),
            ("agents", json!({ "agents": "rehearsal" }), "`agents` is a list of strings"),
            ("agents", json!({ "agents": [] }), "two to eight agents"),
            ("agents", json!({ "agents": ["rehearsal"] }), "two to eight agents"),
            ("agents", json!({ "agents": vec!["rehearsal"; 9] }), "two to eight agents"),
            ("agents[1]", json!({ "agents": ["rehearsal", "gpt:5"] }), "use one of `claude`"),
            ("agents", json!({ "agents": ["rehearsal", "rehearsal:--help"] }), "the name of a model"),
            ("judge", json!({ "agents": two, "judge": "judy" }), "use one of `claude`"),
            (
                "resume_session_id",
                json!({ "agents": two, "resume_session_id": uuid::Uuid::nil() }),
                "omit it",
            ),
            ("continue_latest", json!({ "agents": two, "continue_latest": true }), "a new session"),
            ("model", json!({ "agents": two, "model": "opus" }), "`claude:opus`"),
            ("mode", json!({ "agents": two, "mode": "observe" }), "`observe: true`"),
            ("agent", json!({ "agents": two, "agent": "codex" }), "did you mean `agents`"),
            ("observe", json!({ "agents": two, "observe": true, "verify": "true" }), "or omit `observe`"),
            ("policy", json!({ "agents": two, "policy": "observe" }), "`observe: true`"),
            (
                "policy",
                json!({ "agents": two, "observe": true, "policy": "workspace" }),
                "use policy `observe` or `sealed`",
            ),
            ("repair", json!({ "agents": two, "repair": 1 }), "pass the command as `verify`"),
            (
                "add_dirs",
                json!({ "agents": two, "observe": true, "add_dirs": ["/no/such/directory"] }),
                "create the directory",
            ),
            ("add_dirs", json!({ "agents": two, "add_dirs": ["/tmp"] }), "omit `add_dirs`"),
            ("cwd", json!({ "agents": two, "cwd": "/no/such/directory" }), "create the directory"),
        ] {
            let mut arguments = json!({ "prompt": "x" });
            arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let rejected = client.rejected("call_many", arguments.clone()).await;
            assert_eq!(rejected.field, field, "{arguments}: {rejected:?}");
            assert!(rejected.text.contains(remedy), "{arguments}: {rejected:?}");
        }
        // An agent that is not installed: no job of the others exists either.
        let arguments = json!({ "prompt": "x", "agents": ["rehearsal", "codex"] });
        let rejected = client.rejected("call_many", arguments).await;
        assert!(rejected.text.contains("@openai/codex"), "{rejected:?}");
        assert_eq!(harness.job_count().await, 0);
    });
}

fn race_outside_of_git_is_rejected() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let rejected = client.rejected("call_many", task(&WRITING, &["fast", "slow"], json!({}))).await;
        assert_eq!(rejected.field, "cwd");
        assert!(
            rejected.text.contains("git init") && rejected.text.contains("`observe: true`"),
            "{rejected:?}"
        );
        assert_eq!(harness.job_count().await, 0);
    });
}

fn scripted_agent_needs_the_permission_of_the_operator() {
    McpHarness::run_with(McpOptions::default(), async |harness| {
        repository(harness);
        let mut client = harness.client().await;
        let rejected = client.rejected("call_many", task(&WRITING, &["fast", "slow"], json!({}))).await;
        assert!(rejected.field == "agents[0]" && rejected.text.contains("has not enabled"), "{rejected:?}");
        assert_eq!(harness.job_count().await, 0);
    });
}
