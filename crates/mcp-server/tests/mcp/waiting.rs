//! Waiting calls: progress, cancellation, disconnection.

use std::time::Duration;

use mcp_server::McpOptions;
use serde_json::{Value, json};
use testkit::eventually_async;

use crate::client::Client;
use crate::harness::McpHarness;

testkit::tests![
    progress_reports_activity_and_increases,
    progress_is_rate_limited_with_a_heartbeat,
    progress_reports_a_paused_job,
    wait_is_measured_from_the_host_request,
    no_progress_without_a_progress_token,
    piped_requests_are_answered_after_eof,
    cancelled_request_cancels_its_job,
    immediately_cancelled_request_cancels_its_job,
    cancelled_wait_does_not_cancel_the_job,
    disconnect_does_not_cancel_the_job,
    cancel_on_disconnect_cancels_the_job,
    client_that_does_not_read_blocks_no_other,
    shutdown_answers_waiting_calls,
    concurrent_clients_are_answered,
];

/// Sends a call and waits for the first output of its agent.
async fn start_call(harness: &McpHarness, client: &mut Client, prompt: &str) -> (u64, model::JobId) {
    let before = harness.job_count().await;
    let id = client
        .send_request("tools/call", json!({ "name": "call_rehearsal", "arguments": { "prompt": prompt } }))
        .await;
    let job = loop {
        let jobs = harness
            .service
            .list(&calls::JobFilter::default(), calls::PageRequest::default())
            .await
            .unwrap()
            .jobs;
        if jobs.len() as u64 > before {
            break jobs[0].id;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    eventually_async("the agent says nothing", async || {
        harness.service.activity(job).is_some_and(|activity| activity.borrow().line == "on it")
    })
    .await;
    (id, job)
}

async fn state(harness: &McpHarness, job: model::JobId) -> model::StateName {
    harness.service.job(job).await.unwrap().progress.state.name()
}

async fn final_state(harness: &McpHarness, job: model::JobId) -> model::StateName {
    harness.service.wait(&[job], calls::Until::All, testkit::LONGEST_WAIT).await.unwrap();
    state(harness, job).await
}

const HANG: &str = "@rehearse say on it\n@rehearse hang";

fn progress_reports_activity_and_increases() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let prompt = "@rehearse say first\n@rehearse delay 700ms\n@rehearse tool Bash ls => x\n@rehearse delay 700ms\n@rehearse answer done";
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": prompt },
            "_meta": { "progressToken": "p" },
        });
        let answer = client.request("tools/call", params).await;
        assert_eq!(answer["result"]["structuredContent"]["output"], "done", "{answer}");
        let progress: Vec<Value> =
            client.notifications().into_iter().map(|message| message["params"].clone()).collect();
        assert!(progress.iter().all(|progress| progress["progressToken"] == "p"), "{progress:?}");
        let numbers: Vec<f64> =
            progress.iter().map(|progress| progress["progress"].as_f64().unwrap()).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
        let lines: Vec<&str> =
            progress.iter().map(|progress| progress["message"].as_str().unwrap()).collect();
        assert!(lines.contains(&"first") && lines.contains(&"using Bash"), "{lines:?}");
    });
}

fn progress_is_rate_limited_with_a_heartbeat() {
    let heartbeat = Duration::from_millis(300);
    let options = McpOptions { rehearsal: true, heartbeat, ..McpOptions::default() };
    McpHarness::run_with(options, async |harness| {
        let mut client = harness.client().await;
        let ask = async |client: &mut Client, prompt: &str| {
            let params = json!({
                "name": "call_rehearsal",
                "arguments": { "prompt": prompt },
                "_meta": { "progressToken": 7 },
            });
            let started = std::time::Instant::now();
            client.request("tools/call", params).await;
            (client.notifications().len() as u128, started.elapsed().as_millis())
        };
        // Frequent output is rate-limited …
        let (count, took) = ask(&mut client, "@rehearse stream 300 20 3ms\n@rehearse answer done").await;
        assert!(count <= took / 250 + 2, "{count} notifications in {took} ms");
        // … and silence is interrupted by heartbeats.
        let (count, _) =
            ask(&mut client, "@rehearse say on it\n@rehearse delay 2s\n@rehearse answer done").await;
        assert!(count >= 4, "{count} notifications in two silent seconds");
    });
}

fn progress_reports_a_paused_job() {
    let heartbeat = Duration::from_millis(300);
    let options = McpOptions { rehearsal: true, heartbeat, ..McpOptions::default() };
    McpHarness::run_with(options, async |harness| {
        let mut client = harness.client().await;
        let prompt = "@rehearse fail rate-limit Too many requests, try again in 5 minutes";
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": prompt },
            "_meta": { "progressToken": "p" },
        });
        client.send_request("tools/call", params).await;
        let line = loop {
            let message = client.next().await.unwrap();
            let line =
                message["params"]["message"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
            if line.starts_with("paused") {
                break line;
            }
        };
        let page =
            harness.service.list(&calls::JobFilter::default(), calls::PageRequest::default()).await.unwrap();
        let job = harness.service.job(page.jobs[0].id).await.unwrap();
        let model::JobState::Paused { until } = job.progress.state else { panic!("{:?}", job.progress) };
        let minutes = until.as_millis() / 60_000;
        let (hour, minute) = (minutes / 60 % 24, minutes % 60);
        assert_eq!(line, format!("paused until {hour:02}:{minute:02} UTC (quota)"));
    });
}

fn wait_is_measured_from_the_host_request() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        // The key of a request that a bridge replays after an hour.
        let requested = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() - 3600;
        let key_of_bridge = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, requested, 0));
        let meta = json!({ "switchboard/request": key_of_bridge, "progressToken": "p" });
        let slow = "@rehearse say on it\n@rehearse delay 20s\n@rehearse answer done";
        for key in [Value::Null, json!("mine")] {
            let arguments = json!({ "prompt": slow, "wait_ms": 600_000, "idempotency_key": key });
            let params = json!({ "name": "call_rehearsal", "arguments": arguments, "_meta": meta });
            for _ in 0..2 {
                let answer = client.request("tools/call", params.clone()).await;
                let answer = &answer["result"]["structuredContent"];
                assert!(answer["status"] != "completed" && answer["job_id"].is_string(), "{answer}");
                let note = answer["note"].as_str().unwrap_or_default();
                assert!(!note.contains("idempotency_key"), "the request itself submitted the job: {answer}");
                let params = json!({ "name": "call_wait", "arguments": { "job_ids": [answer["job_id"]] }, "_meta": meta });
                let waited = client.request("tools/call", params).await;
                assert_eq!(waited["result"]["structuredContent"]["done"], false, "{waited}");
            }
        }
        assert_eq!(harness.job_count().await, 2);
    });
}

fn piped_requests_are_answered_after_eof() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let quick = json!({ "name": "call_rehearsal", "arguments": { "prompt": "@rehearse delay 300ms\n@rehearse answer done" } });
        let slow = json!({ "name": "call_rehearsal", "arguments": { "prompt": HANG } });
        let (quick, slow) =
            (client.send_request("tools/call", quick).await, client.send_request("tools/call", slow).await);
        client.shutdown_write().await;
        assert_eq!(client.response(quick).await["result"]["structuredContent"]["output"], "done");
        let slow = client.response(slow).await;
        assert_eq!(slow["result"]["structuredContent"]["status"], "running", "{slow}");
        assert_eq!(client.next().await, None);
    });
}

fn no_progress_without_a_progress_token() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        client
            .call_tool_ok(
                "call_rehearsal",
                json!({ "prompt": "@rehearse say a\n@rehearse delay 300ms\n@rehearse say b" }),
            )
            .await;
        assert_eq!(client.notifications(), Vec::<Value>::new());
    });
}

fn cancelled_request_cancels_its_job() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let (id, job) = start_call(harness, &mut client, HANG).await;
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })).await;
        assert_eq!(final_state(harness, job).await, model::StateName::Cancelled);
        // A cancelled request gets no response, and the connection still works.
        client.call_tool_ok("call_jobs", json!({})).await;
        assert_eq!(client.notifications(), Vec::<Value>::new());
    });
}

fn immediately_cancelled_request_cancels_its_job() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        for _ in 0..20 {
            let params = json!({ "name": "call_rehearsal", "arguments": { "prompt": HANG } });
            let id = client.send_request("tools/call", params).await;
            client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })).await;
        }
        // Each job is submitted eventually, and then cancelled.
        let count = async |states: Vec<model::StateName>| {
            harness.service.count(&calls::JobFilter { states, ..calls::JobFilter::default() }).await.unwrap()
        };
        let patience = std::time::Instant::now() + testkit::LONGEST_WAIT;
        while count(vec![model::StateName::Cancelled]).await < 20 {
            assert!(
                std::time::Instant::now() < patience,
                "{} are cancelled",
                count(vec![model::StateName::Cancelled]).await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

fn cancelled_wait_does_not_cancel_the_job() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let (_, job) = start_call(harness, &mut client, HANG).await;
        let mut other = harness.client().await;
        let id = other
            .send_request("tools/call", json!({ "name": "call_wait", "arguments": { "job_ids": [job] } }))
            .await;
        other.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })).await;
        other.call_tool_ok("call_jobs", json!({})).await;
        assert_eq!(state(harness, job).await, model::StateName::Running);
    });
}

fn disconnect_does_not_cancel_the_job() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let (_, job) = start_call(
            harness,
            &mut client,
            "@rehearse say on it\n@rehearse delay 1s\n@rehearse answer done",
        )
        .await;
        drop(client);
        // The connection ends, the job completes.
        harness.served.lock().await.join_next().await.unwrap().unwrap();
        assert_eq!(final_state(harness, job).await, model::StateName::Completed);
    });
}

fn cancel_on_disconnect_cancels_the_job() {
    let options = McpOptions { rehearsal: true, cancel_on_disconnect: true, ..McpOptions::default() };
    McpHarness::run_with(options, async |harness| {
        let mut client = harness.client().await;
        let (_, job) = start_call(harness, &mut client, HANG).await;
        drop(client);
        assert_eq!(final_state(harness, job).await, model::StateName::Cancelled);
    });
}

fn client_that_does_not_read_blocks_no_other() {
    McpHarness::run(async |harness| {
        let mut deaf = harness.client().await;
        // More progress than the pipe buffers, and no reader.
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": "@rehearse stream 400 200 1ms\n@rehearse answer done" },
            "_meta": { "progressToken": 1 },
        });
        for _ in 0..4 {
            deaf.send_request("tools/call", params.clone()).await;
        }
        let mut client = harness.client().await;
        let answer = client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello" })).await;
        assert_eq!(answer["status"], "completed");
    });
}

fn shutdown_answers_waiting_calls() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let (id, job) = start_call(harness, &mut client, HANG).await;
        harness.shutdown.cancel();
        let answer = client.response(id).await;
        assert_eq!(answer["result"]["structuredContent"]["status"], "running", "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["job_id"], job.to_string());
        assert_eq!(client.next().await, None, "the connection is closed");
        assert_eq!(state(harness, job).await, model::StateName::Running, "the job continues");
    });
}

fn concurrent_clients_are_answered() {
    McpHarness::run(async |harness| {
        let mut clients = Vec::new();
        for number in 0..10 {
            let mut client = harness.client().await;
            let params =
                json!({ "name": "call_rehearsal", "arguments": { "prompt": format!("client {number}") } });
            let id = client.send_request("tools/call", params).await;
            clients.push((client, id));
        }
        for (number, (client, id)) in clients.iter_mut().enumerate() {
            let answer = client.response(*id).await;
            assert_eq!(
                answer["result"]["structuredContent"]["output"],
                format!("You said: client {number}"),
                "{answer}"
            );
        }
    });
}
