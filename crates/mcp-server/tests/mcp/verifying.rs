//! The verification of an agent's work.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{McpHarness, create_repository};

testkit::tests![
    passed_verification_is_in_the_result,
    failed_verification_is_an_error_with_its_output,
    verification_without_a_command_is_rejected,
    success_without_expected_changes_is_an_error,
];

fn arguments(script: &str, more: &Value) -> Value {
    let mut arguments = json!({ "prompt": script, "policy": "off" });
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    arguments
}

fn passed_verification_is_in_the_result() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let arguments = arguments("@rehearse answer done", &json!({ "verify": "echo fine" }));
        let answer = client.call_tool_ok("call_rehearsal", arguments).await;
        assert_eq!(
            (&answer["status"], &answer["verified"]["state"]),
            (&json!("completed"), &json!("passed"))
        );
        assert_eq!(answer["verified"]["output"], "fine");
    });
}

fn failed_verification_is_an_error_with_its_output() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let more = json!({ "verify": "echo '@rehearse answer again'; exit 4", "repair": 1 });
        let result = client.call_tool("call_rehearsal", arguments("@rehearse answer done", &more)).await;
        let answer = &result["structuredContent"];
        assert_eq!(answer["error"]["kind"], "verification_failed", "{answer}");
        assert_eq!(
            (&answer["verified"]["exit_code"], &answer["verified"]["repairs"]),
            (&json!(4), &json!(1))
        );
        assert_eq!(answer["output"], "done\n\nagain");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(
            text.contains("ended with exit code 4 after 1 repair\nits output ends with:\n@rehearse"),
            "{text}"
        );
    });
}

fn verification_without_a_command_is_rejected() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        for (field, value) in [("repair", json!(1)), ("verify_protect", json!(["tests/**"]))] {
            let arguments = arguments("@rehearse answer done", &json!({ field: value }));
            let rejected = client.rejected("call_rehearsal", arguments).await;
            assert_eq!(rejected.field, field);
        }
        let more = json!({ "verify": "true", "verify_protect": ["["] });
        let rejected = client.rejected("call_rehearsal", arguments("@rehearse answer done", &more)).await;
        assert_eq!(rejected.field, "verify_protect");
        assert_eq!(harness.job_count().await, 0);
    });
}

fn success_without_expected_changes_is_an_error() {
    McpHarness::run(async |harness| {
        create_repository(&harness.work());
        fs::write(harness.work().join("a.txt"), "one\n").unwrap();
        let mut client = harness.client().await;
        let more = json!({ "expect_changes": true });
        let result = client.call_tool("call_rehearsal", arguments("@rehearse answer done", &more)).await;
        assert_eq!(result["structuredContent"]["error"]["kind"], "no_changes", "{result}");
    });
}
