//! `call_apply` for the contenders of a race.

use std::fs;

use serde_json::{Value, json};

use crate::client::Client;
use crate::groups::{
    WRITING, changes_state, group_of, job_of, options, race, repository, statuses, wait_until_working,
};
use crate::harness::McpHarness;

testkit::tests![
    applied_contender_discards_the_others,
    conflict_keeps_the_other_contenders,
    applied_contender_can_still_discard_the_others,
    dry_run_keeps_the_other_contenders,
    only_a_contender_can_discard_the_others,
    contender_in_use_is_an_error_after_the_changes_are_applied,
];

fn applied_contender_discards_the_others() {
    McpHarness::run_with(options(), async |harness| {
        let root = repository(harness);
        let mut client = harness.client().await;
        let steps = [WRITING[0], WRITING[1], "only stuck say working", "only stuck hang"];
        let more = json!({ "wait_ms": 0, "judge": "rehearsal:judge" });
        let report = race(&mut client, &steps, &["fast", "slow", "stuck"], more).await;
        let ended = json!({ "job_ids": [job_of(&report, 0), job_of(&report, 1)] });
        client.call_tool_ok("call_wait", ended).await;
        wait_until_working(harness, job_of(&report, 2)).await;
        let arguments = json!({ "job_id": job_of(&report, 1), "discard_others": true });
        let applied = client.call_tool_ok("call_apply", arguments).await;
        assert_eq!(applied["state"], "applied");
        let discarded = applied["discarded"].as_array().unwrap();
        assert!(discarded.contains(&json!(job_of(&report, 0))), "{applied}");
        assert!(!discarded.contains(&json!(job_of(&report, 1))), "{applied}");
        assert!(applied["message"].as_str().unwrap().contains(" other contender"), "{applied}");
        assert_eq!(fs::read_to_string(root.join("a.txt")).unwrap(), "two");
        assert_eq!(changes_state(&mut client, job_of(&report, 0)).await, "discarded");
        let ended = client.call_tool_ok("call_status", json!({ "job_id": group_of(&report) })).await;
        assert_eq!(statuses(&ended), ["completed", "completed", "cancelled"]);
        assert_eq!(ended["reviews"][0]["status"], "cancelled");
        assert!(ended.get("note").is_none(), "nothing is open: {ended}");
    });
}

/// Runs a race of two contenders, and returns its report.
async fn ended_race(harness: &McpHarness, client: &mut Client) -> Value {
    repository(harness);
    race(client, &WRITING, &["fast", "slow"], json!({ "judge": "rehearsal:judge" })).await
}

fn conflict_keeps_the_other_contenders() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let report = ended_race(harness, &mut client).await;
        fs::write(harness.work().join("a.txt"), "user\n").unwrap();
        let mut arguments = json!({ "job_id": job_of(&report, 0), "discard_others": true });
        let rejected = client.rejected("call_apply", arguments.clone()).await;
        assert!(rejected.text.contains("no file was changed"), "{rejected:?}");
        assert_eq!(changes_state(&mut client, job_of(&report, 0)).await, "open");
        assert_eq!(changes_state(&mut client, job_of(&report, 1)).await, "open");
        arguments["conflicts"] = json!(true);
        let applied = client.call_tool_ok("call_apply", arguments).await;
        assert_eq!((&applied["files"][0]["action"], applied.get("discarded")), (&json!("conflicted"), None));
        assert_eq!(changes_state(&mut client, job_of(&report, 1)).await, "open");
    });
}

fn applied_contender_can_still_discard_the_others() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let report = ended_race(harness, &mut client).await;
        client.call_tool_ok("call_apply", json!({ "job_id": job_of(&report, 0) })).await;
        let arguments = json!({ "job_id": job_of(&report, 0), "discard_others": true });
        let finished = client.call_tool_ok("call_apply", arguments.clone()).await;
        assert_eq!(finished["discarded"], json!([job_of(&report, 1)]));
        assert!(finished["message"].as_str().unwrap().starts_with("the changes were already applied; "));
        assert_eq!(changes_state(&mut client, job_of(&report, 1)).await, "discarded");
        let again = client.call_tool_ok("call_apply", arguments).await;
        assert!(again.get("discarded").is_none(), "{again}");
    });
}

fn dry_run_keeps_the_other_contenders() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let report = ended_race(harness, &mut client).await;
        for more in [json!({ "dry_run": true }), json!({ "paths": ["a.txt"] })] {
            let mut arguments = json!({ "job_id": job_of(&report, 0), "discard_others": true });
            arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let applied = client.call_tool_ok("call_apply", arguments).await;
            let message = applied["message"].as_str().unwrap();
            assert!(message.ends_with("no changes of other contenders are discarded"), "{applied}");
            assert_eq!(changes_state(&mut client, job_of(&report, 1)).await, "open");
        }
    });
}

fn only_a_contender_can_discard_the_others() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let report = ended_race(harness, &mut client).await;
        let prompt = "@rehearse write b.txt new\n@rehearse answer done";
        let single =
            client.call_tool_ok("call_rehearsal", json!({ "prompt": prompt, "worktree": true })).await;
        for (job, reason) in [
            (&single["job_id"], "is not part of a group"),
            (&report["reviews"][0]["job_id"], "it compares the results of the others"),
        ] {
            let arguments = json!({ "job_id": job, "discard_others": true });
            let rejected = client.rejected("call_apply", arguments).await;
            assert!(rejected.field == "discard_others" && rejected.text.contains(reason), "{rejected:?}");
        }
        assert!(!harness.work().join("b.txt").exists(), "nothing was applied");
        let mut nested = harness.client_inside_a_run().await;
        let arguments = json!({ "job_id": job_of(&report, 0), "discard_others": true });
        let rejected = nested.rejected("call_apply", arguments).await;
        assert!(rejected.text.contains("not available to an agent inside of a call"), "{rejected:?}");
        assert_eq!(changes_state(&mut client, job_of(&report, 0)).await, "open");
    });
}

fn contender_in_use_is_an_error_after_the_changes_are_applied() {
    McpHarness::run_with(options(), async |harness| {
        let mut client = harness.client().await;
        let report = ended_race(harness, &mut client).await;
        let follow_up = json!({
            "prompt": "@rehearse say working\n@rehearse hang",
            "resume_session_id": report["contenders"][0]["session_id"],
            "wait_ms": 0,
        });
        let follow_up = client.call_tool_ok("call_rehearsal", follow_up).await;
        wait_until_working(harness, follow_up["job_id"].as_str().unwrap()).await;
        let arguments = json!({ "job_id": job_of(&report, 1), "discard_others": true });
        let result = client.call_tool("call_apply", arguments).await;
        assert_eq!(
            (&result["isError"], &result["structuredContent"]["state"]),
            (&json!(true), &json!("applied"))
        );
        let message = result["structuredContent"]["message"].as_str().unwrap();
        assert!(message.starts_with("the changes are applied to "), "{message}");
        assert!(message.contains("not all other contenders are discarded: "), "{message}");
        assert!(message.contains(follow_up["job_id"].as_str().unwrap()), "{message}");
        assert_eq!(fs::read_to_string(harness.work().join("a.txt")).unwrap(), "two");
    });
}
