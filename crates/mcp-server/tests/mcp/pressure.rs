//! Clients that do not read, or never finish their requests: their cost, and the service for other clients meanwhile.

use std::sync::Arc;
use std::time::Duration;

use mcp_server::{McpOptions, RequestCapacity};
use serde_json::{Value, json};
use testkit::eventually_async;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::harness::McpHarness;
use crate::http::{HttpFixture, Reply, initialize_request};

testkit::tests![
    unread_responses_stop_reading,
    unread_errors_stop_reading,
    waiting_requests_do_not_block_other_messages,
    wait_over_the_limit_returns_at_once,
    half_sent_heads_do_not_block_clients,
    anonymous_flood_evicts_no_authenticated_client,
    authenticated_connections_are_limited,
    longest_idle_session_is_evicted,
    session_with_an_open_request_is_not_closed,
];

/// More lines than fit into the buffers between client and server.
const FLOOD: usize = 20_000;
/// A server that accepts no byte for this long has stopped reading. A slow server fails no test.
const STALLED: Duration = Duration::from_secs(2);

/// Writes lines without reading until the server stops reading, then reads while it writes the rest. Returns how many lines were
/// written before the first read, and all responses.
async fn flood(harness: &McpHarness, line: impl Fn(usize) -> String) -> (usize, Vec<Value>) {
    let (here, there) = tokio::io::duplex(64 * 1024);
    harness.serve(there).await;
    let (read, mut write) = tokio::io::split(here);
    let mut read = BufReader::new(read).lines();
    write.write_all(format!("{}\n", initialize_request()).as_bytes()).await.unwrap();
    read.next_line().await.unwrap();
    let mut rest: std::collections::VecDeque<String> =
        (1..=FLOOD).map(|number| line(number) + "\n").collect();
    // The blocked line is completed later.
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

fn unread_responses_stop_reading() {
    McpHarness::run(async |harness| {
        let ping = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }).to_string();
        let (early, answers) = flood(harness, ping).await;
        assert!(early < FLOOD, "all requests were read although no answer was");
        let mut ids: Vec<u64> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(1..=FLOOD as u64), "not every request was answered once");
    });
}

fn unread_errors_stop_reading() {
    McpHarness::run(async |harness| {
        let (early, answers) = flood(harness, |_| "no message".to_owned()).await;
        assert!(early < FLOOD, "all lines were read although no error was");
        assert!(answers.iter().all(|answer| answer["error"].is_object()));
    });
}

async fn hanging_job(client: &mut Client) -> Value {
    let arguments = json!({ "prompt": "@rehearse hang", "fire_and_forget": true });
    client.call_tool_ok("call_rehearsal", arguments).await["job_id"].clone()
}

async fn wait_for(client: &mut Client, job: &Value) -> u64 {
    client.send_request("tools/call", json!({ "name": "call_wait", "arguments": { "job_ids": [job] } })).await
}

fn waiting_requests_do_not_block_other_messages() {
    McpHarness::run(async |harness| {
        let mut client = harness.client().await;
        let job = hanging_job(&mut client).await;
        // More than the slots of a connection.
        for _ in 0..200 {
            wait_for(&mut client, &job).await;
        }
        let prompt = json!({ "prompt": "@rehearse hang" });
        let call =
            client.send_request("tools/call", json!({ "name": "call_rehearsal", "arguments": prompt })).await;
        client.request("ping", json!({})).await;
        let params = json!({ "requestId": call });
        client
            .send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }))
            .await;
        let cancelled =
            calls::JobFilter { states: vec![model::StateName::Cancelled], ..calls::JobFilter::default() };
        while harness.service.count(&cancelled).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

fn wait_over_the_limit_returns_at_once() {
    let options =
        McpOptions { rehearsal: true, capacity: Arc::new(RequestCapacity::new(2)), ..McpOptions::default() };
    McpHarness::run_with(options, async |harness| {
        let (mut client, mut other) = (harness.client().await, harness.client().await);
        let job = hanging_job(&mut client).await;
        // Eight reserved waits and two shared ones.
        for _ in 0..11 {
            wait_for(&mut client, &job).await;
        }
        let beyond = client.next().await.unwrap();
        let note = beyond["result"]["structuredContent"]["pending"][0]["note"].as_str().unwrap();
        assert!(note.contains("`limits.max_waits`"), "{beyond}");
        // The job exists nevertheless.
        let call = client.call_tool_ok("call_rehearsal", json!({ "prompt": "@rehearse hang" })).await;
        assert!(call["note"].as_str().unwrap().contains("`limits.max_waits`"), "{call}");
        harness.service.job(call["job_id"].as_str().unwrap().parse().unwrap()).await.unwrap();
        // Another client can still wait.
        let waits = wait_for(&mut other, &job).await;
        other.request("ping", json!({})).await;
        other.call_tool_ok("call_cancel", json!({ "job_id": job })).await;
        let answer = other.response(waits).await;
        assert_eq!(answer["result"]["structuredContent"]["done"], true, "{answer}");
    });
}

/// Opens connections whose requests stop in the middle of the head.
async fn half_sent_heads(server: &HttpFixture, number: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..number {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthor").await.unwrap();
        streams.push(stream);
    }
    streams
}

fn half_sent_heads_do_not_block_clients() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let streams = half_sent_heads(&server, 384).await;
        assert_eq!(server.post(&[], &initialize_request()).await.status, 200);
        drop(streams);
    });
}

fn anonymous_flood_evicts_no_authenticated_client() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let session = server.session().await;
        let mut stream = BufReader::new(TcpStream::connect(server.address).await.unwrap());
        let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
        let headers = [("Mcp-Session-Id", session.as_str()), ("Connection", "keep-alive")];
        for _ in 0..2 {
            stream.write_all(server.request(&headers, &ping).as_bytes()).await.unwrap();
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            assert_eq!(line, "HTTP/1.1 200 OK\r\n");
            // Read to the last chunk.
            while line != "0\r\n" {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
            }
            stream.read_line(&mut line).await.unwrap();
            drop(half_sent_heads(&server, 384).await);
        }
    });
}

fn authenticated_connections_are_limited() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve_with(harness, |limits| limits.max_connections = 8).await;
        let mut held = Vec::new();
        let half = server.request(&[("Content-Length", "1000")], "{");
        for _ in 0..8 {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(half.as_bytes()).await.unwrap();
            held.push(stream);
        }
        // They count once their heads are read.
        let rejected = loop {
            let reply = server.post(&[], &initialize_request()).await;
            if reply.status != 200 {
                break reply;
            }
        };
        assert_eq!(rejected.status, 503, "{rejected:?}");
        assert!(
            rejected.header("retry-after").is_some() && rejected.error().contains("`limits.max_connections`")
        );
        drop(held);
        while server.post(&[], &initialize_request()).await.status != 200 {}
    });
}

async fn ping(server: &HttpFixture, session: &str) -> Reply {
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    server.post(&[("Mcp-Session-Id", session)], &ping).await
}

fn longest_idle_session_is_evicted() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve_with(harness, |limits| limits.max_sessions = 2).await;
        let (first, second) = (server.session().await, server.session().await);
        assert_eq!(ping(&server, &first).await.status, 200);
        let third = server.session().await;
        let closed = ping(&server, &second).await;
        assert_eq!(closed.status, 404, "it had the longest idle time");
        assert!(closed.error().contains("hint: initialize again"), "{closed:?}");
        assert_eq!(ping(&server, &first).await.status, 200);
        assert_eq!(ping(&server, &third).await.status, 200);
    });
}

fn session_with_an_open_request_is_not_closed() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve_with(harness, |limits| limits.max_sessions = 1).await;
        let session = server.session().await;
        let arguments =
            json!({ "prompt": "@rehearse delay 500ms\n@rehearse answer done", "cwd": harness.work() });
        let request = json!({
            "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": { "name": "call_rehearsal", "arguments": arguments },
        });
        let headers = [("Mcp-Session-Id", session.as_str())];
        let call = server.post(&headers, &request);
        let other = async {
            let running = || harness.service.running() == 1;
            eventually_async("the call does not start", async || running()).await;
            server.post(&[], &initialize_request()).await
        };
        let (call, other) = tokio::join!(call, other);
        assert_eq!(call.messages().last().unwrap()["result"]["structuredContent"]["status"], "completed");
        assert_eq!(other.status, 503, "{other:?}");
        assert!(other.header("retry-after").is_some() && other.error().contains("`http.max_sessions`"));
        assert_eq!(server.post(&[], &initialize_request()).await.status, 200);
    });
}
