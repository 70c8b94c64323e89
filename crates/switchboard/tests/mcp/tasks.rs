//! Jobs as tasks, for clients that declare the extension (SEP-2663).

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::scene::Scene;

crate::tests![
    a_call_of_a_client_with_tasks_answers_a_task_that_is_the_job,
    a_failed_job_is_a_completed_task_whose_result_is_an_error,
    a_task_is_cancelled_with_its_job,
    a_call_that_is_done_within_its_wait_needs_no_task,
    a_client_without_tasks_gets_none,
    an_unknown_task_is_told_so,
];

async fn with_tasks(scene: &Scene) -> Client {
    let mut client = scene.stranger().await;
    let introduced =
        client.initialize_with(json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })).await;
    assert!(
        introduced["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(),
        "{introduced}"
    );
    client
}

async fn begin(client: &mut Client, prompt: &str) -> Value {
    let params = json!({ "name": "call_rehearsal", "arguments": { "prompt": prompt } });
    let answer = client.ask("tools/call", params).await;
    assert_eq!(answer["result"]["resultType"], "task", "{answer}");
    answer["result"].clone()
}

async fn settled(client: &mut Client, task: &Value) -> Value {
    loop {
        let answer = client.ask("tasks/get", json!({ "taskId": task["taskId"] })).await;
        if answer["result"]["status"] != "working" {
            return answer["result"].clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn a_call_of_a_client_with_tasks_answers_a_task_that_is_the_job() {
    Scene::play(async |scene| {
        let mut client = with_tasks(scene).await;
        let task =
            begin(&mut client, "@rehearse say on it\n@rehearse delay 300ms\n@rehearse answer done").await;
        assert_eq!(task["status"], "working", "{task}");
        assert!(task["createdAt"].as_str().unwrap().ends_with('Z'), "{task}");
        let settled = settled(&mut client, &task).await;
        assert_eq!(settled["status"], "completed", "{settled}");
        assert_eq!(settled["result"]["structuredContent"]["output"], "done");
        // Its id is the job's, for the tools and for every other client.
        let status = scene.client().await.done("call_status", json!({ "job_id": task["taskId"] })).await;
        assert_eq!(status["output"], "done");
    });
}

fn a_failed_job_is_a_completed_task_whose_result_is_an_error() {
    Scene::play(async |scene| {
        let mut client = with_tasks(scene).await;
        let task = begin(&mut client, "@rehearse fail auth").await;
        let settled = settled(&mut client, &task).await;
        assert_eq!(
            (&settled["status"], &settled["result"]["isError"]),
            (&json!("completed"), &json!(true)),
            "{settled}"
        );
        assert_eq!(settled["result"]["structuredContent"]["error"]["kind"], "auth");
    });
}

fn a_task_is_cancelled_with_its_job() {
    Scene::play(async |scene| {
        let mut client = with_tasks(scene).await;
        let task = begin(&mut client, "@rehearse say on it\n@rehearse hang").await;
        let id = json!({ "taskId": task["taskId"] });
        assert!(client.ask("tasks/cancel", id.clone()).await.get("result").is_some());
        assert_eq!(settled(&mut client, &task).await["status"], "cancelled");
        let job = task["taskId"].as_str().unwrap().parse().unwrap();
        assert_eq!(scene.desk.job(job).await.unwrap().progress.state.name(), model::StateName::Cancelled);
        // Once more is no mistake, and neither is input that nobody asked for.
        assert!(client.ask("tasks/cancel", id).await.get("result").is_some());
        let update = json!({ "taskId": task["taskId"], "inputResponses": {} });
        assert!(client.ask("tasks/update", update).await.get("result").is_some());
    });
}

fn a_call_that_is_done_within_its_wait_needs_no_task() {
    Scene::play(async |scene| {
        let mut client = with_tasks(scene).await;
        let answer = client.done("call_rehearsal", json!({ "prompt": "Hello", "wait_ms": 50_000 })).await;
        assert_eq!(answer["status"], "completed");
    });
}

fn a_client_without_tasks_gets_none() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let answer = client.done("call_rehearsal", json!({ "prompt": "@rehearse hang", "wait_ms": 0 })).await;
        let answer = client.ask("tasks/get", json!({ "taskId": answer["job_id"] })).await;
        assert_eq!(answer["error"]["code"], -32021, "{answer}");
    });
}

fn an_unknown_task_is_told_so() {
    Scene::play(async |scene| {
        let mut client = with_tasks(scene).await;
        for id in ["01a1dde2-642d-7027-95b7-67d9f29d1836", "nonsense"] {
            for method in ["tasks/get", "tasks/cancel"] {
                let answer = client.ask(method, json!({ "taskId": id })).await;
                assert_eq!(answer["error"]["code"], -32602, "{answer}");
            }
        }
    });
}
