//! The bridge against a fake daemon and against the real one.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fake_daemon::FakeDaemon;
use crate::harness::Harness;

fn mark(message: &Value) -> String {
    message["params"]["_meta"]["switchboard/request"].as_str().unwrap().to_owned()
}

#[test]
fn tool_calls_are_replayed_with_same_request_key() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut first = played.accept();
    let greeting = thread::scope(|scope| {
        let greeted = scope.spawn(|| first.initialize());
        host.initialize();
        greeted.join()
    });
    greeting.unwrap();
    host.request("a", "tools/call", &json!({"name": "call_cc", "_meta": {"progressToken": 7}}));
    host.request(2, "tools/call", &json!({"name": "call_codex"}));
    host.request(3, "tools/list", &json!({}));
    let (one, two, three) = (first.receive(), first.receive(), first.receive());
    assert_eq!(one["params"]["_meta"]["progressToken"], 7);
    assert_ne!(mark(&one), mark(&two));
    // One is answered; of the next answer only a part comes before the end.
    first.answer(&three["id"], &json!({"tools": []}));
    assert_eq!(host.receive()["id"], 3);
    first.send_bytes(br#"{"jsonrpc":"2.0","id":2,"resu"#);
    drop(first);

    let mut second = played.accept();
    second.initialize();
    assert_eq!(second.receive(), one, "with its progress token and its mark");
    assert_eq!(second.receive(), two);
    second.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 7, "progress": 1}}));
    second.answer(&json!(2), &json!({"n": 2}));
    second.answer(&json!("a"), &json!({"n": 1}));
    assert_eq!(host.receive()["method"], "notifications/progress");
    assert_eq!(host.receive()["result"]["n"], 2);
    assert_eq!(host.receive()["result"]["n"], 1);
    let (rest, _) = host.finish();
    assert_eq!(rest, "", "no answer comes twice, and the second greeting's to nobody");
    assert!(second.is_closed());
}

#[test]
fn requests_are_queued_while_daemon_is_away() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    drop(played.accept());
    // Whether the bridge knows already that it is gone or not.
    for id in 0..100 {
        host.request(id, "ping", &json!({}));
    }
    let mut second = played.accept();
    for id in 0..100 {
        assert_eq!(second.receive()["id"], id);
        second.answer(&json!(id), &json!({}));
    }
    for id in 0..100 {
        assert_eq!(host.receive()["id"], id);
    }
}

#[test]
fn request_that_crashes_every_daemon_is_failed() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    host.request(1, "tools/call", &json!({"name": "poison"}));
    let mut heard = 0;
    let answer = thread::scope(|scope| {
        let answer = scope.spawn(|| host.receive());
        while !answer.is_finished() {
            let mut line = played.accept();
            // The last connection brings nothing: the request has been given up.
            heard += u32::from(!line.receive_bytes().is_empty());
            if heard == 6 {
                break;
            }
        }
        answer.join().unwrap()
    });
    assert_eq!(answer["id"], 1);
    assert!(
        answer["error"]["message"].as_str().unwrap().contains("the daemon exited 5 times in a row"),
        "{answer}"
    );
}

#[test]
fn unread_cancellation_is_replayed_to_next_daemon() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut first = played.accept();
    host.request(1, "tools/call", &json!({"name": "call_cc"}));
    host.request(2, "tools/call", &json!({"name": "call_cc"}));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    host.send(&cancel);
    let (one, two) = (first.receive(), first.receive());
    assert_eq!(first.receive(), cancel);
    drop(first);
    let mut second = played.accept();
    assert_eq!([second.receive(), second.receive(), second.receive()], [one, cancel, two]);
}

#[test]
fn duplicate_request_id_is_rejected() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut line = played.accept();
    host.request(7, "tools/call", &json!({"name": "call_cc"}));
    host.request(7, "tools/call", &json!({"name": "call_codex"}));
    let refused = host.receive();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32600)), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("the id 7"), "{refused}");
    host.request("7", "ping", &json!({}));
    assert_eq!(line.receive()["params"]["name"], "call_cc");
    assert_eq!(line.receive()["id"], "7", "a text is no number");
    line.answer(&json!(7), &json!({"n": 1}));
    assert_eq!(host.receive()["result"]["n"], 1);
}

#[test]
fn lines_are_forwarded_byte_for_byte() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut line = played.accept();
    let odd: [&[u8]; 7] = [
        b"garbage\n",
        b"\xff\xfe{\"id\":1}\n",
        b"\n",
        b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]\n",
        b" { \"id\" : 1 , \"method\":\"x\", \"b\":1.50, \"a\":\"\\u00e9\" } \r\n",
        b"{\"id\":2,\"method\":\"tools/call\",\"params\":[1, 2]}\n",
        b"{\"id\":null,\"method\":\"tools/call\",\"params\":{}}\n",
    ];
    for bytes in odd {
        host.send_bytes(bytes);
        assert_eq!(line.receive_bytes(), bytes);
    }
    line.send_bytes(b"{\"jsonrpc\":\"2.0\",  \"id\":1,\"result\":{\"z\":1.50}}\n");
    assert_eq!(host.receive()["result"]["z"], 1.5);
}

#[test]
fn line_of_50_mb_is_forwarded() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut line = played.accept();
    let prompt = "0123456789 \\n ü ".repeat(50 * 1024 * 1024 / 16);
    let sent = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"prompt\":\"{prompt}\"}}}}\n"
    );
    let heard = thread::scope(|scope| {
        let heard = scope.spawn(|| line.receive_bytes());
        host.send_bytes(sent.as_bytes());
        heard.join().unwrap()
    });
    let added = heard.len() - sent.len();
    assert_eq!(added, "\"_meta\":{\"switchboard/request\":\"01234567-89ab-cdef-0123-456789abcdef\"},".len());
    let place = sent.find("\"prompt\"").unwrap();
    assert!(heard[..place] == sent.as_bytes()[..place] && heard[place + added..] == sent.as_bytes()[place..]);
    // And back again.
    let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"text\":\"{prompt}\"}}}}\n");
    let heard = thread::scope(|scope| {
        scope.spawn(|| line.send_bytes(answer.as_bytes()));
        host.receive()
    });
    assert_eq!(heard["result"]["text"].as_str().unwrap().len(), prompt.replace("\\n", "\n").len());
}

#[test]
fn reply_to_dead_daemon_is_not_forwarded() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut first = played.accept();
    first.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "roots/list"}));
    assert_eq!(host.receive()["method"], "roots/list");
    drop(first);
    host.request(1, "ping", &json!({}));
    let mut second = played.accept();
    assert_eq!(second.receive()["id"], 1);
    host.send(&json!({"jsonrpc": "2.0", "id": 0, "result": {"roots": []}}));
    host.request(2, "ping", &json!({}));
    assert_eq!(second.receive()["id"], 2, "the stale answer is left out");
}

#[test]
fn in_flight_requests_survive_daemon_kill() {
    let harness = Harness::new();
    let mut host = harness.bridge();
    host.initialize();
    for round in 0..5 {
        let daemon = harness.running_daemon().unwrap();
        // Suspended, it takes what it is told and answers nothing.
        daemon.signal(Signal::STOP);
        for id in 1..=3 {
            host.request(round * 10 + id, "ping", &json!({}));
        }
        daemon.kill();
        // In any order: the server works on them at the same time.
        let mut answers: Vec<_> = (1..=3).map(|_| host.receive()).collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let expected = |id| json!({"jsonrpc": "2.0", "id": round * 10 + id, "result": {}});
        assert_eq!(answers, [1, 2, 3].map(expected));
        assert_ne!(harness.running_daemon().unwrap().pid, daemon.pid);
    }
    let (rest, _) = host.finish();
    assert_eq!(rest, "");
    assert_eq!(harness.ready_count(), 6);
}

#[test]
fn ten_hosts_share_next_daemon_after_kill() {
    let harness = Harness::new();
    let mut hosts: Vec<_> = (0..10).map(|_| harness.bridge()).collect();
    hosts.iter_mut().for_each(crate::harness::TestHost::initialize);
    let daemon = harness.running_daemon().unwrap();
    daemon.signal(Signal::STOP);
    for host in &mut hosts {
        host.request(1, "ping", &json!({}));
    }
    daemon.kill();
    for host in &mut hosts {
        assert_eq!(host.receive()["id"], 1);
    }
    assert_eq!(harness.ready_count(), 2, "{}", harness.log());
}

#[test]
fn bad_input_is_answered_without_crash() {
    let harness = Harness::new();
    let mut host = harness.bridge();
    host.initialize();
    let daemon = harness.running_daemon().unwrap().pid;
    for bad in [&b"\xc3\x28\n"[..], b"{]\n", b"42\n"] {
        host.send_bytes(bad);
        let answer = host.receive();
        assert_eq!(answer["id"], Value::Null);
        assert!(answer["error"]["code"].is_i64(), "{answer}");
    }
    assert_eq!(host.ping(1)["result"], json!({}));
    assert_eq!(harness.running_daemon().unwrap().pid, daemon);
}

#[test]
fn replies_arrive_after_host_closes_stdin() {
    let harness = Harness::new();
    let mut host = harness.bridge();
    host.request(1, "ping", &json!({}));
    host.send_bytes(br#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    let (rest, aside) = host.finish();
    assert_eq!(rest.lines().count(), 2, "{rest}");
    assert_eq!(aside, "");
    assert!(harness.running_daemon().is_some());
}

#[test]
fn slow_piped_requests_are_answered() {
    let harness = Harness::new();
    harness.configure("rehearsal = true\n");
    let mut host = harness.bridge();
    host.initialize();
    let work = harness.work();
    let call = |prompt: &str| {
        let arguments = json!({"prompt": prompt, "cwd": work});
        json!({"name": "call_rehearsal", "arguments": arguments})
    };
    host.request(1, "tools/call", &call("@rehearse delay 1500ms\n@rehearse answer done"));
    host.request(2, "tools/call", &call("@rehearse hang"));
    let (rest, aside) = host.finish();
    let mut answers: Vec<Value> = rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    let told: Vec<&Value> = answers.iter().map(|answer| &answer["result"]["structuredContent"]).collect();
    assert_eq!((told.len(), aside.as_str()), (2, ""), "{rest}");
    assert_eq!(told[0]["output"], "done", "{rest}");
    assert_eq!(told[1]["status"], "running", "{rest}");
    let job = told[1]["job_id"].as_str().unwrap();
    assert!(harness.run(&["cancel", job]).status.success());
}

#[test]
fn piped_requests_are_answered_by_next_daemon() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut first = played.accept();
    host.request(1, "ping", &json!({}));
    assert_eq!(first.receive()["id"], 1);
    drop(host.input.take());
    assert!(first.is_closed(), "it is told that no more comes");
    drop(first);
    let mut second = played.accept();
    assert_eq!(second.receive()["id"], 1);
    assert!(second.is_closed());
    second.answer(&json!(1), &json!({}));
    assert_eq!(host.receive()["id"], 1);
}

#[test]
fn bridge_exits_with_its_host() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut host = harness.bridge();
    let mut line = played.accept();
    host.request(1, "tools/call", &json!({"name": "call_cc"}));
    line.receive();
    host.child.kill().unwrap();
    assert!(line.is_closed());
}
