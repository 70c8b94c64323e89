//! Clients that ask for more than they read, or never finish their requests: their cost, and that others are served meanwhile.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use switchboard::mcp::{Options, RequestCapacity};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::http::{Door, Reply, introduction};
use crate::scene::{Scene, eventually};

crate::tests![
    unread_answers_stop_the_reading,
    unread_refusals_stop_the_reading,
    waiting_requests_block_no_ping_and_no_cancellation,
    wait_beyond_the_limit_is_answered_at_once,
    half_sent_heads_hold_up_no_client,
    anonymous_flood_closes_no_authenticated_connection,
    authenticated_connections_are_bounded,
    oldest_idle_session_makes_room_for_a_new_one,
    session_with_an_open_request_is_not_closed,
];

/// So many lines fit into no buffer between a client and the server.
const FLOOD: usize = 20_000;
/// For how long nothing is taken from a client whose server has stopped reading. A server that is only slow makes no test fail.
const STALLED: Duration = Duration::from_secs(2);

/// Writes lines without reading until none is taken any more, and then reads while it writes the rest. Returns how many lines were
/// written before the first was read, and all that was read.
async fn flood(scene: &Scene, line: impl Fn(usize) -> String) -> (usize, Vec<Value>) {
    let (here, there) = tokio::io::duplex(64 * 1024);
    scene.serve(there).await;
    let (read, mut write) = tokio::io::split(here);
    let mut read = BufReader::new(read).lines();
    write.write_all(format!("{}\n", introduction()).as_bytes()).await.unwrap();
    read.next_line().await.unwrap();
    let mut rest: std::collections::VecDeque<String> =
        (1..=FLOOD).map(|number| line(number) + "\n").collect();
    // The line that blocks is written to its end later.
    let mut unwritten = Vec::new();
    while let Some(line) = rest.pop_front() {
        unwritten = line.into_bytes();
        while !unwritten.is_empty() {
            let Ok(written) = tokio::time::timeout(STALLED, write.write(&unwritten)).await else { break };
            unwritten.drain(..written.unwrap());
        }
        if !unwritten.is_empty() {
            break;
        }
    }
    let early = FLOOD - rest.len();
    let mut answers = Vec::new();
    let writing = async {
        write.write_all(&unwritten).await.unwrap();
        for line in rest {
            write.write_all(line.as_bytes()).await.unwrap();
        }
    };
    let reading = async {
        while answers.len() < FLOOD {
            let line = read.next_line().await.unwrap().expect("the server has closed the connection");
            answers.push(serde_json::from_str(&line).unwrap());
        }
    };
    tokio::join!(writing, reading);
    (early, answers)
}

fn unread_answers_stop_the_reading() {
    Scene::play(async |scene| {
        let ping = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }).to_string();
        let (early, answers) = flood(scene, ping).await;
        assert!(early < FLOOD, "all requests were read although no answer was");
        let mut ids: Vec<u64> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(1..=FLOOD as u64), "not every request was answered once");
    });
}

fn unread_refusals_stop_the_reading() {
    Scene::play(async |scene| {
        let (early, answers) = flood(scene, |_| "no message".to_owned()).await;
        assert!(early < FLOOD, "all lines were read although no refusal was");
        assert!(answers.iter().all(|answer| answer["error"].is_object()));
    });
}

async fn hanging_job(client: &mut Client) -> Value {
    let arguments = json!({ "prompt": "@rehearse hang", "fire_and_forget": true });
    client.done("call_rehearsal", arguments).await["job_id"].clone()
}

async fn wait_for(client: &mut Client, job: &Value) -> u64 {
    client.begin("tools/call", json!({ "name": "call_wait", "arguments": { "job_ids": [job] } })).await
}

fn waiting_requests_block_no_ping_and_no_cancellation() {
    Scene::play(async |scene| {
        let mut client = scene.client().await;
        let job = hanging_job(&mut client).await;
        // More than are handled at once.
        for _ in 0..200 {
            wait_for(&mut client, &job).await;
        }
        let prompt = json!({ "prompt": "@rehearse hang" });
        let call = client.begin("tools/call", json!({ "name": "call_rehearsal", "arguments": prompt })).await;
        client.ask("ping", json!({})).await;
        let params = json!({ "requestId": call });
        client
            .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }))
            .await;
        let cancelled =
            calls::JobFilter { states: vec![model::StateName::Cancelled], ..calls::JobFilter::default() };
        while scene.desk.count(&cancelled).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

fn wait_beyond_the_limit_is_answered_at_once() {
    let options =
        Options { rehearsal: true, capacity: Arc::new(RequestCapacity::new(2)), ..Options::default() };
    Scene::play_with(options, async |scene| {
        let (mut client, mut other) = (scene.client().await, scene.client().await);
        let job = hanging_job(&mut client).await;
        // Ten may wait, whichever they are.
        for _ in 0..11 {
            wait_for(&mut client, &job).await;
        }
        let beyond = client.next().await.unwrap();
        let note = beyond["result"]["structuredContent"]["pending"][0]["note"].as_str().unwrap();
        assert!(note.contains("`limits.max_waits`"), "{beyond}");
        // Its job is there all the same.
        let call = client.done("call_rehearsal", json!({ "prompt": "@rehearse hang" })).await;
        assert!(call["note"].as_str().unwrap().contains("`limits.max_waits`"), "{call}");
        scene.desk.job(call["job_id"].as_str().unwrap().parse().unwrap()).await.unwrap();
        // Another client still waits: it is answered when the job has ended, and not before.
        let waits = wait_for(&mut other, &job).await;
        other.ask("ping", json!({})).await;
        other.done("call_cancel", json!({ "job_id": job })).await;
        let answer = other.end(waits).await;
        assert_eq!(answer["result"]["structuredContent"]["done"], true, "{answer}");
    });
}

/// Opens so many connections whose requests stop in the middle of the head.
async fn half_sent_heads(door: &Door, number: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..number {
        let mut stream = TcpStream::connect(door.address).await.unwrap();
        stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthor").await.unwrap();
        streams.push(stream);
    }
    streams
}

fn half_sent_heads_hold_up_no_client() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let streams = half_sent_heads(&door, 384).await;
        assert_eq!(door.post(&[], &introduction()).await.status, 200);
        drop(streams);
    });
}

fn anonymous_flood_closes_no_authenticated_connection() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let session = door.session().await;
        let mut stream = BufReader::new(TcpStream::connect(door.address).await.unwrap());
        let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
        let headers = [("Mcp-Session-Id", session.as_str()), ("Connection", "keep-alive")];
        for _ in 0..2 {
            stream.write_all(door.request(&headers, &ping).as_bytes()).await.unwrap();
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            assert_eq!(line, "HTTP/1.1 200 OK\r\n");
            // To the last chunk.
            while line != "0\r\n" {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
            }
            stream.read_line(&mut line).await.unwrap();
            drop(half_sent_heads(&door, 384).await);
        }
    });
}

fn authenticated_connections_are_bounded() {
    Scene::play(async |scene| {
        let door = Door::open_with(scene, |limits| limits.max_connections = 8).await;
        let mut held = Vec::new();
        let half = door.request(&[("Content-Length", "1000")], "{");
        for _ in 0..8 {
            let mut stream = TcpStream::connect(door.address).await.unwrap();
            stream.write_all(half.as_bytes()).await.unwrap();
            held.push(stream);
        }
        // They count as soon as their heads are read.
        let refused = loop {
            let reply = door.post(&[], &introduction()).await;
            if reply.status != 200 {
                break reply;
            }
        };
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(
            refused.header("retry-after").is_some() && refused.error().contains("`limits.max_connections`")
        );
        drop(held);
        while door.post(&[], &introduction()).await.status != 200 {}
    });
}

async fn ping(door: &Door, session: &str) -> Reply {
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    door.post(&[("Mcp-Session-Id", session)], &ping).await
}

fn oldest_idle_session_makes_room_for_a_new_one() {
    Scene::play(async |scene| {
        let door = Door::open_with(scene, |limits| limits.max_sessions = 2).await;
        let (first, second) = (door.session().await, door.session().await);
        assert_eq!(ping(&door, &first).await.status, 200);
        let third = door.session().await;
        let closed = ping(&door, &second).await;
        assert_eq!(closed.status, 404, "it was idle for longest");
        assert!(closed.error().contains("hint: initialize again"), "{closed:?}");
        assert_eq!(ping(&door, &first).await.status, 200);
        assert_eq!(ping(&door, &third).await.status, 200);
    });
}

fn session_with_an_open_request_is_not_closed() {
    Scene::play(async |scene| {
        let door = Door::open_with(scene, |limits| limits.max_sessions = 1).await;
        let session = door.session().await;
        let arguments =
            json!({ "prompt": "@rehearse delay 500ms\n@rehearse answer done", "cwd": scene.work() });
        let request = json!({
            "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": { "name": "call_rehearsal", "arguments": arguments },
        });
        let headers = [("Mcp-Session-Id", session.as_str())];
        let call = door.post(&headers, &request);
        let other = async {
            let running = || scene.desk.running() == 1;
            eventually("the call does not start", running).await;
            door.post(&[], &introduction()).await
        };
        let (call, other) = tokio::join!(call, other);
        assert_eq!(call.messages().last().unwrap()["result"]["structuredContent"]["status"], "completed");
        assert_eq!(other.status, 503, "{other:?}");
        assert!(other.header("retry-after").is_some() && other.error().contains("`http.max_sessions`"));
        assert_eq!(door.post(&[], &introduction()).await.status, 200);
    });
}
