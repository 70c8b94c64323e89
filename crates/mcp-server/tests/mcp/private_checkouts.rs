//! Jobs in private checkouts and their results.

use std::fs;

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{McpHarness, create_repository};

testkit::tests![
    changes_in_a_checkout_wait_for_the_user,
    worktree_outside_of_git_is_rejected,
    call_changes_shows_the_checkout,
    open_changes_are_a_filter_of_call_jobs,
];

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
    McpHarness::run(async |harness| {
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
        let none = json!({ "open_changes": true, "status_filter": "failed" });
        assert_eq!(client.call_tool_ok("call_jobs", none).await, json!({ "jobs": [], "total": 0 }));
    });
}
