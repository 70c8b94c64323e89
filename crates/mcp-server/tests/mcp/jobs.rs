//! Tools and resources for submitted jobs: status, lists, waits, output, cancellation.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{McpHarness, create_repository};

testkit::tests![
    job_is_found_by_id_prefix,
    jobs_are_listed_and_filtered,
    call_wait_waits_for_any_or_all_jobs,
    output_is_read_in_parts,
    call_cancel_returns_old_and_new_status,
    call_changes_returns_files_and_patch,
    call_changes_cuts_a_long_patch,
    call_changes_rejects_an_unchanged_path,
    resources_are_paged_and_read_in_parts,
];

async fn submit(client: &mut Client, prompt: &str) -> String {
    let answer = client.call_tool_ok("call_rehearsal", json!({ "prompt": prompt, "wait_ms": 0 })).await;
    answer["job_id"].as_str().unwrap().to_owned()
}

fn job_is_found_by_id_prefix() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello" })).await;
        let id = answer["job_id"].as_str().unwrap();
        let status = client.call_tool_ok("call_status", json!({ "job_id": &id[..18] })).await;
        assert_eq!((&status["job_id"], &status["output"]), (&json!(id), &json!("You said: Hello")));
        // Both ids start with the same timestamp digits.
        submit(&mut client, "Hello").await;
        let rejected = client.rejected("call_status", json!({ "job_id": &id[..4] })).await;
        assert!(
            rejected.text.contains("several job ids") && rejected.text.contains(&id[..13]),
            "{rejected:?}"
        );
    });
}

fn jobs_are_listed_and_filtered() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        client.call_tool_ok("call_rehearsal", json!({ "prompt": "one", "task_name": "shop" })).await;
        client.call_tool("call_rehearsal", json!({ "prompt": "@rehearse fail auth" })).await;
        let hanging = submit(&mut client, "@rehearse hang").await;
        let all = client.call_tool_ok("call_jobs", json!({})).await;
        assert_eq!((all["total"].as_u64(), all["jobs"].as_array().unwrap().len()), (Some(3), 3), "{all}");
        assert_eq!(all["jobs"][0]["job_id"], hanging, "newest first");
        let first = client.call_tool_ok("call_jobs", json!({ "limit": 1 })).await;
        assert_eq!((first["total"].as_u64(), first["jobs"].as_array().unwrap().len()), (Some(3), 1));
        let failed = client.call_tool_ok("call_jobs", json!({ "status_filter": "Failed" })).await;
        assert_eq!(
            (failed["total"].as_u64(), &failed["jobs"][0]["error"]),
            (Some(1), &json!("auth")),
            "{failed}"
        );
        let done = client
            .call_tool_ok("call_jobs", json!({ "status_filter": "completed", "tool_name": "call_rehearsal" }))
            .await;
        assert_eq!(
            (&done["jobs"][0]["task_name"], &done["jobs"][0]["prompt"]),
            (&json!("shop"), &json!("one"))
        );
        let none = client.call_tool_ok("call_jobs", json!({ "tool_name": "call_cc" })).await;
        assert_eq!(none, json!({ "jobs": [], "total": 0 }));
    });
}

fn call_wait_waits_for_any_or_all_jobs() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let hanging = submit(&mut client, "@rehearse hang").await;
        let quick = submit(&mut client, "Hello").await;
        let any =
            client.call_tool_ok("call_wait", json!({ "job_ids": [hanging, quick], "mode": "any" })).await;
        assert_eq!((&any["done"], &any["jobs"][0]["job_id"]), (&json!(true), &json!(quick)), "{any}");
        assert_eq!(any["pending"][0]["job_id"], hanging);
        let all =
            client.call_tool_ok("call_wait", json!({ "job_ids": [hanging, quick], "timeout_ms": 1 })).await;
        assert_eq!((&all["done"], all["pending"].as_array().unwrap().len()), (&json!(false), 1), "{all}");
        client.call_tool_ok("call_cancel", json!({ "job_id": hanging })).await;
        let all = client.call_tool_ok("call_wait", json!({ "job_ids": [hanging, quick, quick] })).await;
        assert_eq!((&all["done"], all["jobs"].as_array().unwrap().len()), (&json!(true), 2), "{all}");
    });
}

fn output_is_read_in_parts() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = client.call_tool_ok("call_rehearsal", json!({ "prompt": "äöü€😀 ".repeat(50) })).await;
        let (mut offset, mut text) = (0, String::new());
        loop {
            let arguments = json!({ "job_id": answer["job_id"], "offset": offset, "limit": 7 });
            let part = client.call_tool_ok("call_output", arguments).await;
            text += part["text"].as_str().unwrap();
            assert!(part["next_offset"].as_u64().unwrap() > offset || part["eof"] == true, "{part}");
            offset = part["next_offset"].as_u64().unwrap();
            if part["eof"] == true {
                assert_eq!(part["total"], offset);
                break;
            }
        }
        assert_eq!(text, std::fs::read_to_string(answer["output_file"].as_str().unwrap()).unwrap());
        let beyond = client
            .call_tool_ok("call_output", json!({ "job_id": answer["job_id"], "offset": 1_000_000_000 }))
            .await;
        assert_eq!((&beyond["text"], &beyond["eof"]), (&json!(""), &json!(true)), "{beyond}");
        let error = client
            .call_tool_ok("call_output", json!({ "job_id": answer["job_id"], "stream": "error" }))
            .await;
        assert_eq!((&error["total"], &error["eof"]), (&json!(0), &json!(true)), "{error}");
    });
}

/// Runs a job that writes a file in a git repository, and returns its answer.
async fn changed_repository(harness: &McpHarness, client: &mut Client) -> Value {
    create_repository(&harness.work());
    let prompt = "@rehearse write b.txt new\n@rehearse answer done";
    client.call_tool_ok("call_rehearsal", json!({ "prompt": prompt, "cwd": harness.work() })).await
}

fn call_changes_returns_files_and_patch() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = changed_repository(harness, &mut client).await;
        assert_eq!(answer["changes"]["files"][0]["path"], "b.txt", "{answer}");
        let changes = client.call_tool_ok("call_changes", json!({ "job_id": answer["job_id"] })).await;
        assert_eq!(changes["changes"]["files"], answer["changes"]["files"], "{changes}");
        let patch = changes["patch"].as_str().unwrap();
        assert!(patch.starts_with("diff --git a/b.txt b/b.txt\n") && patch.contains("\n+new\n"), "{patch}");
        assert_eq!(changes["left_out_chars"], 0);
    });
}

fn call_changes_cuts_a_long_patch() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = changed_repository(harness, &mut client).await;
        let arguments = json!({ "job_id": answer["job_id"], "max_chars": 10 });
        let changes = client.call_tool_ok("call_changes", arguments).await;
        assert_eq!(changes["patch"], "diff --git");
        assert!(changes["left_out_chars"].as_u64().unwrap() > 50, "{changes}");
    });
}

fn call_changes_rejects_an_unchanged_path() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer = changed_repository(harness, &mut client).await;
        let arguments = json!({ "job_id": answer["job_id"], "paths": ["a.txt"] });
        let rejected = client.rejected("call_changes", arguments).await;
        assert!(rejected.field == "paths" && rejected.text.contains("no change of `"), "{rejected:?}");
    });
}

fn call_cancel_returns_old_and_new_status() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let job = submit(&mut client, "@rehearse say on it\n@rehearse hang").await;
        let cancelled = client.call_tool_ok("call_cancel", json!({ "job_id": job })).await;
        assert_eq!(
            (&cancelled["job_id"], &cancelled["new_status"]),
            (&json!(job), &json!("cancelled")),
            "{cancelled}"
        );
        assert!(
            ["running", "queued"].contains(&cancelled["previous_status"].as_str().unwrap()),
            "{cancelled}"
        );
        let again = client.call_tool_ok("call_cancel", json!({ "job_id": job })).await;
        assert_eq!(
            (&again["previous_status"], &again["new_status"]),
            (&json!("cancelled"), &json!("cancelled"))
        );
        for prompt in ["Hello", "@rehearse fail auth"] {
            let done = client.call_tool("call_rehearsal", json!({ "prompt": prompt })).await;
            let rejected = client
                .rejected("call_cancel", json!({ "job_id": done["structuredContent"]["job_id"] }))
                .await;
            assert!(rejected.field == "job_id" && rejected.text.contains("has already "), "{rejected:?}");
        }
    });
}

fn resources_are_paged_and_read_in_parts() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let mut last = String::new();
        for number in 0..53 {
            last = submit(&mut client, &format!("job {number}")).await;
        }
        let first = client.request("resources/list", json!({})).await["result"].clone();
        let second =
            client.request("resources/list", json!({ "cursor": first["nextCursor"] })).await["result"]
                .clone();
        let (one, other) = (first["resources"].as_array().unwrap(), second["resources"].as_array().unwrap());
        assert_eq!((one.len(), other.len()), (50, 3));
        assert!(second.get("nextCursor").is_none(), "{second}");
        assert_eq!(one[0]["uri"], format!("switchboard://jobs/{last}"));
        let answer = client.request("resources/list", json!({ "cursor": "made up" })).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");

        let templates = client.request("resources/templates/list", json!({})).await;
        assert_eq!(templates["result"]["resourceTemplates"].as_array().unwrap().len(), 3, "{templates}");

        client.call_tool_ok("call_wait", json!({ "job_ids": [last] })).await;
        let read = async |client: &mut Client, uri: &str| {
            client.request("resources/read", json!({ "uri": uri })).await
        };
        let whole = read(&mut client, &format!("switchboard://jobs/{last}")).await;
        let text = whole["result"]["contents"][0]["text"].as_str().unwrap();
        let answer: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            (&answer["status"], &answer["output"]),
            (&json!("completed"), &json!("You said: job 52")),
            "{whole}"
        );
        // Follow the pointers to the next part.
        let (mut uri, mut text) = (format!("switchboard://jobs/{last}/output?limit=100"), String::new());
        loop {
            let part = read(&mut client, &uri).await["result"]["contents"].clone();
            text += part[0]["text"].as_str().unwrap();
            match part[1]["uri"].as_str() {
                Some(next) => next.clone_into(&mut uri),
                None => break,
            }
        }
        assert_eq!(text, std::fs::read_to_string(answer["output_file"].as_str().unwrap()).unwrap());
        for bad in [
            "file:///etc/passwd",
            "switchboard://jobs/01a1dde2-642d-7027-95b7-67d9f29d1836",
            "switchboard://jobs/x/y",
        ] {
            let answer = read(&mut client, bad).await;
            assert_eq!(answer["error"]["code"], -32002, "{answer}");
        }
        for bad in ["offset=-1", "offset=x", "limit=", "limit=0", "limit=9999999"] {
            let answer = read(&mut client, &format!("switchboard://jobs/{last}/output?{bad}")).await;
            assert_eq!(answer["error"]["code"], -32602, "{bad}: {answer}");
            let field = bad.split('=').next().unwrap();
            assert!(answer["error"]["message"].as_str().unwrap().contains(field), "{answer}");
        }
        // A directory in place of the output file.
        let output = std::fs::canonicalize(answer["output_file"].as_str().unwrap()).unwrap();
        std::fs::remove_file(&output).unwrap();
        std::fs::create_dir(output).unwrap();
        let answer = read(&mut client, &format!("switchboard://jobs/{last}/output")).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("cannot read the files of job") && message.contains("hint: "), "{answer}");
    });
}
