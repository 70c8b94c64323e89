//! Jobs as tasks (SEP-2663).

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::McpHarness;

testkit::tests![
    call_returns_a_task_with_the_job_id,
    failed_job_is_a_completed_task_with_error,
    cancelled_task_cancels_its_job,
    call_finished_within_its_wait_needs_no_task,
    client_without_tasks_gets_none,
    unknown_task_is_an_error,
];

async fn with_tasks(harness: &McpHarness) -> Client {
    let mut client = harness.uninitialized_client().await;
    let initialized =
        client.initialize_with(json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })).await;
    assert!(
        initialized["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(),
        "{initialized}"
    );
    client
}

async fn start_task(client: &mut Client, prompt: &str) -> Value {
    let params = json!({ "name": "call_rehearsal", "arguments": { "prompt": prompt } });
    let answer = client.request("tools/call", params).await;
    assert_eq!(answer["result"]["resultType"], "task", "{answer}");
    answer["result"].clone()
}

async fn wait_for_task(client: &mut Client, task: &Value) -> Value {
    loop {
        let answer = client.request("tasks/get", json!({ "taskId": task["taskId"] })).await;
        if answer["result"]["status"] != "working" {
            return answer["result"].clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn call_returns_a_task_with_the_job_id() {
    McpHarness::run(async |harness| {
        let mut client = with_tasks(harness).await;
        let task =
            start_task(&mut client, "@rehearse say on it\n@rehearse delay 300ms\n@rehearse answer done")
                .await;
        assert_eq!(task["status"], "working", "{task}");
        assert!(task["createdAt"].as_str().unwrap().ends_with('Z'), "{task}");
        let finished = wait_for_task(&mut client, &task).await;
        assert_eq!(finished["status"], "completed", "{finished}");
        assert_eq!(finished["result"]["structuredContent"]["output"], "done");
        // The task id is the job id, for all tools and clients.
        let status =
            harness.client().await.call_tool_ok("call_status", json!({ "job_id": task["taskId"] })).await;
        assert_eq!(status["output"], "done");
    });
}

fn failed_job_is_a_completed_task_with_error() {
    McpHarness::run(async |harness| {
        let mut client = with_tasks(harness).await;
        let task = start_task(&mut client, "@rehearse fail auth").await;
        let finished = wait_for_task(&mut client, &task).await;
        assert_eq!(
            (&finished["status"], &finished["result"]["isError"]),
            (&json!("completed"), &json!(true)),
            "{finished}"
        );
        assert_eq!(finished["result"]["structuredContent"]["error"]["kind"], "auth");
    });
}

fn cancelled_task_cancels_its_job() {
    McpHarness::run(async |harness| {
        let mut client = with_tasks(harness).await;
        let task = start_task(&mut client, "@rehearse say on it\n@rehearse hang").await;
        let id = json!({ "taskId": task["taskId"] });
        assert!(client.request("tasks/cancel", id.clone()).await.get("result").is_some());
        assert_eq!(wait_for_task(&mut client, &task).await["status"], "cancelled");
        let job = task["taskId"].as_str().unwrap().parse().unwrap();
        assert_eq!(
            harness.service.job(job).await.unwrap().progress.state.name(),
            model::StateName::Cancelled
        );
        // A second cancellation and unsolicited input are accepted.
        assert!(client.request("tasks/cancel", id).await.get("result").is_some());
        let update = json!({ "taskId": task["taskId"], "inputResponses": {} });
        assert!(client.request("tasks/update", update).await.get("result").is_some());
    });
}

fn call_finished_within_its_wait_needs_no_task() {
    McpHarness::run(async |harness| {
        let mut client = with_tasks(harness).await;
        let answer =
            client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello", "wait_ms": 50_000 })).await;
        assert_eq!(answer["status"], "completed");
    });
}

fn client_without_tasks_gets_none() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let answer =
            client.call_tool_ok("call_rehearsal", json!({ "prompt": "@rehearse hang", "wait_ms": 0 })).await;
        let answer = client.request("tasks/get", json!({ "taskId": answer["job_id"] })).await;
        assert_eq!(answer["error"]["code"], -32021, "{answer}");
    });
}

fn unknown_task_is_an_error() {
    McpHarness::run(async |harness| {
        let mut client = with_tasks(harness).await;
        for id in ["01a1dde2-642d-7027-95b7-67d9f29d1836", "nonsense"] {
            for method in ["tasks/get", "tasks/cancel"] {
                let answer = client.request(method, json!({ "taskId": id })).await;
                assert_eq!(answer["error"]["code"], -32602, "{answer}");
            }
        }
    });
}
