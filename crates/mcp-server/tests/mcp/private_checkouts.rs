//! Jobs in private checkouts: their results, and the tools that apply and discard their changes.

use std::fs;

use serde_json::{Value, json};

use mcp_server::McpOptions;

use crate::client::Client;
use crate::harness::{McpHarness, create_repository};

testkit::tests![
    changes_in_a_checkout_wait_for_the_user,
    result_names_the_tools_that_apply_the_changes,
    worktree_outside_of_git_is_rejected,
    call_changes_shows_the_checkout,
    open_changes_are_a_filter_of_call_jobs,
    apply_and_discard_are_listed_only_if_allowed,
    call_apply_writes_the_changes,
    dry_run_of_call_apply_writes_nothing,
    call_apply_of_some_paths_keeps_the_rest_open,
    call_apply_lists_conflicts_as_data,
    call_apply_writes_conflict_markers_on_request,
    call_apply_rejects_a_job_without_a_checkout,
    call_apply_rejects_a_running_job,
    call_apply_rejects_an_unchanged_path,
    call_discard_removes_the_checkout,
    call_discard_rejects_applied_changes,
    agent_inside_a_run_cannot_apply_or_discard,
];

fn options() -> McpOptions {
    McpOptions { rehearsal: true, apply_changes: true, ..McpOptions::default() }
}

/// Runs a job with these steps in a private checkout of a new repository with the file `a.txt`.
async fn changed(harness: &McpHarness, client: &mut Client, steps: &[&str]) -> Value {
    create_repository(&harness.work());
    fs::write(harness.work().join("a.txt"), "one\n").unwrap();
    client.call_tool_ok("call_rehearsal", arguments(steps)).await
}

fn arguments(steps: &[&str]) -> Value {
    let steps: Vec<String> =
        steps.iter().chain(&["answer done"]).map(|step| format!("@rehearse {step}")).collect();
    json!({ "prompt": steps.join("\n"), "worktree": true })
}

fn state(answer: &Value) -> &str {
    answer["changes"]["checkout"]["state"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

async fn status(client: &mut Client, answer: &Value) -> Value {
    client.call_tool_ok("call_status", json!({ "job_id": answer["job_id"] })).await
}

fn changes_in_a_checkout_wait_for_the_user() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        assert!(!harness.work().join("b.txt").exists());
        assert_eq!(state(&answer), "open");
        let note = answer["note"].as_str().unwrap();
        assert!(note.contains("the user applies or discards them; review them with call_changes"), "{note}");
        assert!(!note.contains("call_apply") && !note.contains("--"), "{note}");
        let arguments =
            json!({ "prompt": "@rehearse write c.txt x\n@rehearse answer done", "worktree": false });
        let in_place = client.call_tool_ok("call_rehearsal", arguments).await;
        assert!(in_place["changes"].get("checkout").is_none() && harness.work().join("c.txt").exists());
    });
}

fn result_names_the_tools_that_apply_the_changes() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        let note = answer["note"].as_str().unwrap();
        assert!(note.contains("apply them with call_apply, or drop them with call_discard"), "{note}");
        // A second job collides with the first.
        let second = client.call_tool_ok("call_rehearsal", arguments(&["write b.txt other"])).await;
        let note = second["note"].as_str().unwrap();
        assert!(note.contains("1 collision: see checkout.collisions"), "{note}");
        client.call_tool_ok("call_apply", json!({ "job_id": answer["job_id"] })).await;
        assert!(status(&mut client, &answer).await.get("note").is_none());
    });
}

fn worktree_outside_of_git_is_rejected() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let rejected = client.rejected("call_rehearsal", arguments(&[])).await;
        assert_eq!(rejected.field, "worktree");
        assert!(rejected.text.contains("is not in the worktree of a git repository"), "{rejected:?}");
        let rejected = client.rejected("call_rehearsal", json!({ "prompt": "x", "worktree": "maybe" })).await;
        assert!(rejected.text.contains("`worktree` is true or false"), "{rejected:?}");
        assert_eq!(harness.job_count().await, 0);
    });
}

fn call_changes_shows_the_checkout() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        let result = client.call_tool("call_changes", json!({ "job_id": answer["job_id"] })).await;
        let changes = &result["structuredContent"]["changes"];
        assert_eq!(changes["checkout"], answer["changes"]["checkout"]);
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("not yet in `") && !text.contains("call_changes"), "{text}");
    });
}

fn open_changes_are_a_filter_of_call_jobs() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let first = changed(harness, &mut client, &["write b.txt new"]).await;
        let second = client.call_tool_ok("call_rehearsal", arguments(&["write c.txt new"])).await;
        client.call_tool_ok("call_rehearsal", json!({ "prompt": "in place" })).await;
        client.call_tool_ok("call_rehearsal", arguments(&[])).await;
        // A follow-up owns the changes of the first job.
        let mut follow_up = arguments(&["write d.txt new"]);
        follow_up["resume_session_id"] = first["session_id"].clone();
        let first = client.call_tool_ok("call_rehearsal", follow_up).await;
        let open = client.call_tool_ok("call_jobs", json!({ "open_changes": true })).await;
        let found: Vec<&Value> = open["jobs"].as_array().unwrap().iter().map(|job| &job["job_id"]).collect();
        assert_eq!(found, [&first["job_id"], &second["job_id"]], "newest first");
        let limited = client.call_tool_ok("call_jobs", json!({ "open_changes": true, "limit": 1 })).await;
        assert_eq!((limited["total"].as_u64(), limited["jobs"].as_array().unwrap().len()), (Some(2), 1));
        client.call_tool_ok("call_discard", json!({ "job_id": second["job_id"] })).await;
        let open = client.call_tool_ok("call_jobs", json!({ "open_changes": true })).await;
        assert_eq!((&open["total"], &open["jobs"][0]["job_id"]), (&json!(1), &first["job_id"]));
        let none = json!({ "open_changes": true, "status_filter": "failed" });
        assert_eq!(client.call_tool_ok("call_jobs", none).await, json!({ "jobs": [], "total": 0 }));
    });
}

fn apply_and_discard_are_listed_only_if_allowed() {
    let listed = |options| {
        let names = std::cell::RefCell::new(Vec::new());
        McpHarness::run_with(options, async |harness| {
            let mut client = harness.client().await;
            let list = client.request("tools/list", json!({})).await;
            for tool in list["result"]["tools"].as_array().unwrap() {
                let hints = tool["annotations"].clone();
                names.borrow_mut().push((tool["name"].as_str().unwrap().to_owned(), hints));
            }
        });
        names.into_inner()
    };
    let is_new = |(name, _): &&(String, Value)| name == "call_apply" || name == "call_discard";
    assert_eq!(listed(McpOptions::default()).iter().filter(is_new).count(), 0);
    let listed = listed(options());
    let found: Vec<_> = listed.iter().filter(is_new).collect();
    assert_eq!(found.len(), 2);
    for (name, hints) in found {
        assert_eq!(
            (&hints["destructiveHint"], &hints["readOnlyHint"]),
            (&json!(true), &json!(false)),
            "{name}"
        );
    }
}

fn call_apply_writes_the_changes() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        let applied = client.call_tool_ok("call_apply", json!({ "job_id": answer["job_id"] })).await;
        assert_eq!(applied["state"], "applied");
        assert_eq!(applied["files"], json!([{ "path": "b.txt", "action": "applied" }]), "{applied}");
        assert_eq!(fs::read_to_string(harness.work().join("b.txt")).unwrap(), "new");
        assert_eq!(state(&status(&mut client, &answer).await), "applied");
        let again = client.rejected("call_apply", json!({ "job_id": answer["job_id"] })).await;
        assert_eq!(again.field, "job_id");
        assert!(again.text.contains("are applied") && !again.text.contains("undo"), "{again:?}");
    });
}

fn dry_run_of_call_apply_writes_nothing() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        let arguments = json!({ "job_id": answer["job_id"], "dry_run": true });
        let applied = client.call_tool_ok("call_apply", arguments).await;
        assert_eq!((&applied["state"], &applied["files"][0]["path"]), (&json!("open"), &json!("b.txt")));
        assert!(applied["message"].as_str().unwrap().starts_with("nothing was written to `"), "{applied}");
        assert!(!harness.work().join("b.txt").exists());
    });
}

fn call_apply_of_some_paths_keeps_the_rest_open() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new", "write c.txt new"]).await;
        let arguments = json!({ "job_id": answer["job_id"], "paths": ["b.txt"] });
        assert_eq!(client.call_tool_ok("call_apply", arguments).await["state"], "open");
        assert!(harness.work().join("b.txt").exists() && !harness.work().join("c.txt").exists());
        let rest = client.call_tool_ok("call_apply", json!({ "job_id": answer["job_id"] })).await;
        assert_eq!(
            (&rest["state"], &rest["files"][0]["action"]),
            (&json!("applied"), &json!("already_applied"))
        );
    });
}

fn call_apply_lists_conflicts_as_data() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write a.txt job", "write b.txt job"]).await;
        fs::write(harness.work().join("a.txt"), "user\n").unwrap();
        let result = client.call_tool("call_apply", json!({ "job_id": answer["job_id"] })).await;
        let error = &result["_meta"]["switchboard/error"];
        let reason = "edited since in the same or adjacent lines";
        assert_eq!(error["conflicts"], json!([{ "path": "a.txt", "reason": reason }]), "{result}");
        let hint = error["hint"].as_str().unwrap();
        assert!(hint.contains("no file was changed") && hint.contains("`conflicts: true`"), "{hint}");
        assert!(!harness.work().join("b.txt").exists());
        assert_eq!(state(&status(&mut client, &answer).await), "open");
    });
}

fn call_apply_writes_conflict_markers_on_request() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write a.txt job"]).await;
        fs::write(harness.work().join("a.txt"), "user\n").unwrap();
        let arguments = json!({ "job_id": answer["job_id"], "conflicts": true });
        let applied = client.call_tool_ok("call_apply", arguments).await;
        assert_eq!(applied["files"][0]["action"], "conflicted", "{applied}");
        assert!(applied["message"].as_str().unwrap().ends_with("1 file has conflict markers"), "{applied}");
        assert!(fs::read_to_string(harness.work().join("a.txt")).unwrap().contains("<<<<<<<"));
    });
}

fn call_apply_rejects_a_job_without_a_checkout() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        create_repository(&harness.work());
        let arguments = json!({ "prompt": "@rehearse write b.txt x\n@rehearse answer done" });
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        for tool in ["call_apply", "call_discard"] {
            let rejected = client.rejected(tool, json!({ "job_id": answer["job_id"] })).await;
            assert!(
                rejected.field == "job_id" && rejected.text.contains("no private checkout"),
                "{rejected:?}"
            );
        }
        assert_eq!(client.rejected("call_apply", json!({ "job_id": "ffffffff" })).await.field, "job_id");
    });
}

fn call_apply_rejects_a_running_job() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        create_repository(&harness.work());
        let arguments = json!({ "prompt": "@rehearse hang", "worktree": true, "wait_ms": 0 });
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        let rejected = client.rejected("call_apply", json!({ "job_id": answer["job_id"] })).await;
        assert!(rejected.field == "job_id" && rejected.text.contains("call_wait"), "{rejected:?}");
    });
}

fn call_apply_rejects_an_unchanged_path() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        let arguments = json!({ "job_id": answer["job_id"], "paths": ["a.txt"] });
        let rejected = client.rejected("call_apply", arguments).await;
        assert!(rejected.text.contains("no change of `"), "{rejected:?}");
    });
}

fn call_discard_removes_the_checkout() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        let discarded = client.call_tool_ok("call_discard", json!({ "job_id": answer["job_id"] })).await;
        assert_eq!(discarded["state"], "discarded");
        let patch = fs::read_to_string(discarded["patch_file"].as_str().unwrap()).unwrap();
        assert!(patch.contains("+new"), "{patch}");
        let directory = answer["changes"]["checkout"]["directory"].as_str().unwrap();
        assert!(!fs::exists(directory).unwrap() && !harness.work().join("b.txt").exists());
        assert_eq!(state(&status(&mut client, &answer).await), "discarded");
    });
}

fn call_discard_rejects_applied_changes() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        client.call_tool_ok("call_apply", json!({ "job_id": answer["job_id"] })).await;
        let rejected = client.rejected("call_discard", json!({ "job_id": answer["job_id"] })).await;
        assert!(rejected.field == "job_id" && rejected.text.contains("are applied"), "{rejected:?}");
    });
}

fn agent_inside_a_run_cannot_apply_or_discard() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let answer = changed(harness, &mut client, &["write b.txt new"]).await;
        let mut nested = harness.client_inside_a_run().await;
        for tool in ["call_apply", "call_discard"] {
            let rejected = nested.rejected(tool, json!({ "job_id": answer["job_id"] })).await;
            let reason = format!("{tool} is not available to an agent inside of a call");
            assert!(rejected.text.contains(&reason), "{rejected:?}");
        }
        let seen = status(&mut nested, &answer).await;
        assert_eq!(state(&seen), "open");
        assert!(seen["note"].as_str().unwrap().contains("the user applies or discards them"), "{seen}");
        assert!(!harness.work().join("b.txt").exists());
    });
}
