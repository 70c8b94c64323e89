//! While a call waits: progress, cancellation, disconnection.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::scene::{Scene, eventually};

crate::tests![
    progress_says_what_the_agent_does_and_only_ever_grows,
    progress_is_bounded_and_never_silent_for_long,
    progress_says_that_a_job_is_paused_and_until_when,
    a_wait_counts_from_when_the_host_asked,
    nobody_is_told_who_did_not_ask,
    requests_that_are_piped_in_are_answered,
    a_cancelled_request_cancels_its_job,
    a_request_that_is_cancelled_at_once_leaves_nothing_running,
    a_cancelled_wait_ends_no_job,
    a_client_that_goes_away_ends_nothing,
    a_client_that_goes_away_ends_its_calls_where_the_operator_wants_that,
    a_client_that_does_not_read_holds_up_nobody,
    a_stopping_daemon_answers_where_its_calls_stand,
    ten_clients_at_once_are_all_answered,
];

/// Begins a call and waits until its agent has said something.
async fn begin(scene: &Scene, client: &mut Client, prompt: &str) -> (u64, model::JobId) {
    let before = scene.jobs().await;
    let id = client
        .begin("tools/call", json!({ "name": "call_rehearsal", "arguments": { "prompt": prompt } }))
        .await;
    let job = loop {
        let jobs =
            scene.desk.list(&calls::JobFilter::default(), calls::PageRequest::default()).await.unwrap().jobs;
        if jobs.len() as u64 > before {
            break jobs[0].id;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    eventually("the agent says nothing", || {
        scene.desk.activity(job).is_some_and(|activity| activity.borrow().line == "on it")
    })
    .await;
    (id, job)
}

async fn state(scene: &Scene, job: model::JobId) -> model::StateName {
    scene.desk.job(job).await.unwrap().progress.state.name()
}

async fn ended(scene: &Scene, job: model::JobId) -> model::StateName {
    scene.desk.wait(&[job], calls::Until::All, crate::scene::LONG).await.unwrap();
    state(scene, job).await
}

const HANG: &str = "@rehearse say on it\n@rehearse hang";

fn progress_says_what_the_agent_does_and_only_ever_grows() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let prompt = "@rehearse say first\n@rehearse delay 700ms\n@rehearse tool Bash ls => x\n@rehearse delay 700ms\n@rehearse answer done";
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": prompt },
            "_meta": { "progressToken": "p" },
        });
        let answer = client.ask("tools/call", params).await;
        assert_eq!(answer["result"]["structuredContent"]["output"], "done", "{answer}");
        let told: Vec<Value> = client.unasked().into_iter().map(|told| told["params"].clone()).collect();
        assert!(told.iter().all(|told| told["progressToken"] == "p"), "{told:?}");
        let numbers: Vec<f64> = told.iter().map(|told| told["progress"].as_f64().unwrap()).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
        let lines: Vec<&str> = told.iter().map(|told| told["message"].as_str().unwrap()).collect();
        assert!(lines.contains(&"first") && lines.contains(&"using Bash"), "{lines:?}");
    });
}

fn progress_is_bounded_and_never_silent_for_long() {
    let heartbeat = Duration::from_millis(300);
    let options =
        switchboard::mcp::Options { rehearsal: true, heartbeat, ..switchboard::mcp::Options::default() };
    Scene::play_with(options, async |scene| {
        let mut client = scene.client().await;
        let ask = async |client: &mut Client, prompt: &str| {
            let params = json!({
                "name": "call_rehearsal",
                "arguments": { "prompt": prompt },
                "_meta": { "progressToken": 7 },
            });
            let began = std::time::Instant::now();
            client.ask("tools/call", params).await;
            (client.unasked().len() as u128, began.elapsed().as_millis())
        };
        // A word every few milliseconds is not passed on every time …
        let (told, took) = ask(&mut client, "@rehearse stream 300 20 3ms\n@rehearse answer done").await;
        assert!(told <= took / 250 + 2, "{told} notifications in {took} ms");
        // … and silence is broken although there is nothing new.
        let (told, _) =
            ask(&mut client, "@rehearse say on it\n@rehearse delay 2s\n@rehearse answer done").await;
        assert!(told >= 4, "{told} notifications in two silent seconds");
    });
}

fn progress_says_that_a_job_is_paused_and_until_when() {
    let heartbeat = Duration::from_millis(300);
    let options =
        switchboard::mcp::Options { rehearsal: true, heartbeat, ..switchboard::mcp::Options::default() };
    Scene::play_with(options, async |scene| {
        let mut client = scene.client().await;
        let prompt = "@rehearse fail rate-limit Too many requests, try again in 5 minutes";
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": prompt },
            "_meta": { "progressToken": "p" },
        });
        client.begin("tools/call", params).await;
        let line = loop {
            let told = client.next().await.unwrap();
            let line = told["params"]["message"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
            if line.starts_with("paused") {
                break line;
            }
        };
        let page =
            scene.desk.list(&calls::JobFilter::default(), calls::PageRequest::default()).await.unwrap();
        let job = scene.desk.job(page.jobs[0].id).await.unwrap();
        let model::JobState::Paused { until } = job.progress.state else { panic!("{:?}", job.progress) };
        let minutes = until.as_millis() / 60_000;
        let (hour, minute) = (minutes / 60 % 24, minutes % 60);
        assert_eq!(line, format!("paused until {hour:02}:{minute:02} UTC (quota)"));
    });
}

fn a_wait_counts_from_when_the_host_asked() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        // What a bridge writes, which says it again an hour later.
        let asked = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() - 3600;
        let mark = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, asked, 0));
        let meta = json!({ "switchboard/request": mark, "progressToken": "p" });
        let slow = "@rehearse say on it\n@rehearse delay 20s\n@rehearse answer done";
        for key in [Value::Null, json!("mine")] {
            let arguments = json!({ "prompt": slow, "wait_ms": 600_000, "idempotency_key": key });
            let params = json!({ "name": "call_rehearsal", "arguments": arguments, "_meta": meta });
            for _ in 0..2 {
                let answer = client.ask("tools/call", params.clone()).await;
                let answer = &answer["result"]["structuredContent"];
                assert!(answer["status"] != "completed" && answer["job_id"].is_string(), "{answer}");
                let note = answer["note"].as_str().unwrap_or_default();
                assert!(!note.contains("idempotency_key"), "it has placed the job itself: {answer}");
                let params = json!({ "name": "call_wait", "arguments": { "job_ids": [answer["job_id"]] }, "_meta": meta });
                let waited = client.ask("tools/call", params).await;
                assert_eq!(waited["result"]["structuredContent"]["done"], false, "{waited}");
            }
        }
        assert_eq!(scene.jobs().await, 2);
    });
}

fn requests_that_are_piped_in_are_answered() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let quick = json!({ "name": "call_rehearsal", "arguments": { "prompt": "@rehearse delay 300ms\n@rehearse answer done" } });
        let slow = json!({ "name": "call_rehearsal", "arguments": { "prompt": HANG } });
        let (quick, slow) = (client.begin("tools/call", quick).await, client.begin("tools/call", slow).await);
        client.close_its_side().await;
        assert_eq!(client.end(quick).await["result"]["structuredContent"]["output"], "done");
        let slow = client.end(slow).await;
        assert_eq!(slow["result"]["structuredContent"]["status"], "running", "{slow}");
        assert_eq!(client.next().await, None);
    });
}

fn nobody_is_told_who_did_not_ask() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        client
            .done(
                "call_rehearsal",
                json!({ "prompt": "@rehearse say a\n@rehearse delay 300ms\n@rehearse say b" }),
            )
            .await;
        assert_eq!(client.unasked(), Vec::<Value>::new());
    });
}

fn a_cancelled_request_cancels_its_job() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let (id, job) = begin(scene, &mut client, HANG).await;
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })).await;
        assert_eq!(ended(scene, job).await, model::StateName::Cancelled);
        // A cancelled request gets no answer; the connection is as good as before.
        client.done("call_jobs", json!({})).await;
        assert_eq!(client.unasked(), Vec::<Value>::new());
    });
}

fn a_request_that_is_cancelled_at_once_leaves_nothing_running() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        for _ in 0..20 {
            let params = json!({ "name": "call_rehearsal", "arguments": { "prompt": HANG } });
            let id = client.begin("tools/call", params).await;
            client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })).await;
        }
        // Each is placed, sooner or later, and then cancelled.
        let count = async |states: Vec<model::StateName>| {
            scene.desk.count(&calls::JobFilter { states, ..calls::JobFilter::default() }).await.unwrap()
        };
        let patience = std::time::Instant::now() + crate::scene::LONG;
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

fn a_cancelled_wait_ends_no_job() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let (_, job) = begin(scene, &mut client, HANG).await;
        let mut other = scene.client().await;
        let id = other
            .begin("tools/call", json!({ "name": "call_wait", "arguments": { "job_ids": [job] } }))
            .await;
        other.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })).await;
        other.done("call_jobs", json!({})).await;
        assert_eq!(state(scene, job).await, model::StateName::Running);
    });
}

fn a_client_that_goes_away_ends_nothing() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let (_, job) =
            begin(scene, &mut client, "@rehearse say on it\n@rehearse delay 1s\n@rehearse answer done").await;
        drop(client);
        // The connection is served to its end, and the job has its own.
        scene.served.lock().await.join_next().await.unwrap().unwrap();
        assert_eq!(ended(scene, job).await, model::StateName::Completed);
    });
}

fn a_client_that_goes_away_ends_its_calls_where_the_operator_wants_that() {
    let options = switchboard::mcp::Options {
        rehearsal: true,
        cancel_on_disconnect: true,
        ..switchboard::mcp::Options::default()
    };
    Scene::play_with(options, async |scene| {
        let mut client = scene.client().await;
        let (_, job) = begin(scene, &mut client, HANG).await;
        drop(client);
        assert_eq!(ended(scene, job).await, model::StateName::Cancelled);
    });
}

fn a_client_that_does_not_read_holds_up_nobody() {
    Scene::play(async |scene| {
        let mut deaf = scene.client().await;
        // More progress than the pipe holds, and nobody takes it out.
        let params = json!({
            "name": "call_rehearsal",
            "arguments": { "prompt": "@rehearse stream 400 200 1ms\n@rehearse answer done" },
            "_meta": { "progressToken": 1 },
        });
        for _ in 0..4 {
            deaf.begin("tools/call", params.clone()).await;
        }
        let mut client = scene.client().await;
        let answer = client.done("call_rehearsal", json!({ "prompt": "Hello" })).await;
        assert_eq!(answer["status"], "completed");
    });
}

fn a_stopping_daemon_answers_where_its_calls_stand() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let (id, job) = begin(scene, &mut client, HANG).await;
        scene.shutdown.cancel();
        let answer = client.end(id).await;
        assert_eq!(answer["result"]["structuredContent"]["status"], "running", "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["job_id"], job.to_string());
        assert_eq!(client.next().await, None, "the connection is closed");
        assert_eq!(state(scene, job).await, model::StateName::Running, "and the job goes on");
    });
}

fn ten_clients_at_once_are_all_answered() {
    Scene::play(async |scene| {
        let mut clients = Vec::new();
        for number in 0..10 {
            let mut client = scene.client().await;
            let params =
                json!({ "name": "call_rehearsal", "arguments": { "prompt": format!("client {number}") } });
            let id = client.begin("tools/call", params).await;
            clients.push((client, id));
        }
        for (number, (client, id)) in clients.iter_mut().enumerate() {
            let answer = client.end(*id).await;
            assert_eq!(
                answer["result"]["structuredContent"]["output"],
                format!("You said: client {number}"),
                "{answer}"
            );
        }
    });
}
