//! The bridge, against a daemon that a test plays and against the real one.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::played::Played;

fn mark(message: &Value) -> String {
    message["params"]["_meta"]["switchboard/request"].as_str().unwrap().to_owned()
}

#[test]
fn tool_calls_are_replayed_with_same_request_key() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    let mut first = played.accept();
    let greeting = thread::scope(|scope| {
        let greeted = scope.spawn(|| first.greet());
        host.greet();
        greeted.join()
    });
    greeting.unwrap();
    host.ask("a", "tools/call", &json!({"name": "call_cc", "_meta": {"progressToken": 7}}));
    host.ask(2, "tools/call", &json!({"name": "call_codex"}));
    host.ask(3, "tools/list", &json!({}));
    let (one, two, three) = (first.hear(), first.hear(), first.hear());
    assert_eq!(one["params"]["_meta"]["progressToken"], 7);
    assert_ne!(mark(&one), mark(&two));
    // One is answered; of the next answer only a part comes before the end.
    first.answer(&three["id"], &json!({"tools": []}));
    assert_eq!(host.hear()["id"], 3);
    first.say_bytes(br#"{"jsonrpc":"2.0","id":2,"resu"#);
    drop(first);

    let mut second = played.accept();
    second.greet();
    assert_eq!(second.hear(), one, "with its progress token and its mark");
    assert_eq!(second.hear(), two);
    second.say(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 7, "progress": 1}}));
    second.answer(&json!(2), &json!({"n": 2}));
    second.answer(&json!("a"), &json!({"n": 1}));
    assert_eq!(host.hear()["method"], "notifications/progress");
    assert_eq!(host.hear()["result"]["n"], 2);
    assert_eq!(host.hear()["result"]["n"], 1);
    let (rest, _) = host.end();
    assert_eq!(rest, "", "no answer comes twice, and the second greeting's to nobody");
    assert!(second.is_closed());
}

#[test]
fn requests_are_queued_while_daemon_is_away() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    drop(played.accept());
    // Whether the bridge knows already that it is gone or not.
    for id in 0..100 {
        host.ask(id, "ping", &json!({}));
    }
    let mut second = played.accept();
    for id in 0..100 {
        assert_eq!(second.hear()["id"], id);
        second.answer(&json!(id), &json!({}));
    }
    for id in 0..100 {
        assert_eq!(host.hear()["id"], id);
    }
}

#[test]
fn request_that_crashes_every_daemon_is_failed() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    host.ask(1, "tools/call", &json!({"name": "poison"}));
    let mut heard = 0;
    let answer = thread::scope(|scope| {
        let answer = scope.spawn(|| host.hear());
        while !answer.is_finished() {
            let mut line = played.accept();
            // The last connection brings nothing: the request has been given up.
            heard += u32::from(!line.hear_bytes().is_empty());
            if heard == 6 {
                break;
            }
        }
        answer.join().unwrap()
    });
    assert_eq!(answer["id"], 1);
    assert!(answer["error"]["message"].as_str().unwrap().contains("the daemon ended 5 times"), "{answer}");
}

#[test]
fn unread_cancellation_is_replayed_to_next_daemon() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    let mut first = played.accept();
    host.ask(1, "tools/call", &json!({"name": "call_cc"}));
    host.ask(2, "tools/call", &json!({"name": "call_cc"}));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    host.say(&cancel);
    let (one, two) = (first.hear(), first.hear());
    assert_eq!(first.hear(), cancel);
    drop(first);
    let mut second = played.accept();
    assert_eq!([second.hear(), second.hear(), second.hear()], [one, cancel, two]);
}

#[test]
fn duplicate_request_id_is_rejected() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    let mut line = played.accept();
    host.ask(7, "tools/call", &json!({"name": "call_cc"}));
    host.ask(7, "tools/call", &json!({"name": "call_codex"}));
    let refused = host.hear();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32600)), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("the id 7"), "{refused}");
    host.ask("7", "ping", &json!({}));
    assert_eq!(line.hear()["params"]["name"], "call_cc");
    assert_eq!(line.hear()["id"], "7", "a text is no number");
    line.answer(&json!(7), &json!({"n": 1}));
    assert_eq!(host.hear()["result"]["n"], 1);
}

#[test]
fn lines_are_forwarded_byte_for_byte() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
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
        host.say_bytes(bytes);
        assert_eq!(line.hear_bytes(), bytes);
    }
    line.say_bytes(b"{\"jsonrpc\":\"2.0\",  \"id\":1,\"result\":{\"z\":1.50}}\n");
    assert_eq!(host.hear()["result"]["z"], 1.5);
}

#[test]
fn line_of_50_mb_is_forwarded() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    let mut line = played.accept();
    let prompt = "0123456789 \\n ü ".repeat(50 * 1024 * 1024 / 16);
    let sent = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"prompt\":\"{prompt}\"}}}}\n"
    );
    let heard = thread::scope(|scope| {
        let heard = scope.spawn(|| line.hear_bytes());
        host.say_bytes(sent.as_bytes());
        heard.join().unwrap()
    });
    let added = heard.len() - sent.len();
    assert_eq!(added, "\"_meta\":{\"switchboard/request\":\"01234567-89ab-cdef-0123-456789abcdef\"},".len());
    let place = sent.find("\"prompt\"").unwrap();
    assert!(heard[..place] == sent.as_bytes()[..place] && heard[place + added..] == sent.as_bytes()[place..]);
    // And back again.
    let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"text\":\"{prompt}\"}}}}\n");
    let heard = thread::scope(|scope| {
        scope.spawn(|| line.say_bytes(answer.as_bytes()));
        host.hear()
    });
    assert_eq!(heard["result"]["text"].as_str().unwrap().len(), prompt.replace("\\n", "\n").len());
}

#[test]
fn reply_to_dead_daemon_is_not_forwarded() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    let mut first = played.accept();
    first.say(&json!({"jsonrpc": "2.0", "id": 0, "method": "roots/list"}));
    assert_eq!(host.hear()["method"], "roots/list");
    drop(first);
    host.ask(1, "ping", &json!({}));
    let mut second = played.accept();
    assert_eq!(second.hear()["id"], 1);
    host.say(&json!({"jsonrpc": "2.0", "id": 0, "result": {"roots": []}}));
    host.ask(2, "ping", &json!({}));
    assert_eq!(second.hear()["id"], 2, "the stale answer is left out");
}

#[test]
fn in_flight_requests_survive_daemon_kill() {
    let bed = Bed::new();
    let mut host = bed.bridge();
    host.greet();
    for round in 0..5 {
        let daemon = bed.running().unwrap();
        // Suspended, it takes what it is told and answers nothing.
        daemon.signal(Signal::STOP);
        for id in 1..=3 {
            host.ask(round * 10 + id, "ping", &json!({}));
        }
        daemon.kill();
        // In any order: the server works on them at the same time.
        let mut answers: Vec<_> = (1..=3).map(|_| host.hear()).collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let expected = |id| json!({"jsonrpc": "2.0", "id": round * 10 + id, "result": {}});
        assert_eq!(answers, [1, 2, 3].map(expected));
        assert_ne!(bed.running().unwrap().pid, daemon.pid);
    }
    let (rest, _) = host.end();
    assert_eq!(rest, "");
    assert_eq!(bed.ready(), 6);
}

#[test]
fn ten_hosts_share_next_daemon_after_kill() {
    let bed = Bed::new();
    let mut hosts: Vec<_> = (0..10).map(|_| bed.bridge()).collect();
    hosts.iter_mut().for_each(crate::bed::Host::greet);
    let daemon = bed.running().unwrap();
    daemon.signal(Signal::STOP);
    for host in &mut hosts {
        host.ask(1, "ping", &json!({}));
    }
    daemon.kill();
    for host in &mut hosts {
        assert_eq!(host.hear()["id"], 1);
    }
    assert_eq!(bed.ready(), 2, "{}", bed.log());
}

#[test]
fn bad_input_is_answered_without_crash() {
    let bed = Bed::new();
    let mut host = bed.bridge();
    host.greet();
    let daemon = bed.running().unwrap().pid;
    for bad in [&b"\xc3\x28\n"[..], b"{]\n", b"42\n"] {
        host.say_bytes(bad);
        let answer = host.hear();
        assert_eq!(answer["id"], Value::Null);
        assert!(answer["error"]["code"].is_i64(), "{answer}");
    }
    assert_eq!(host.ping(1)["result"], json!({}));
    assert_eq!(bed.running().unwrap().pid, daemon);
}

#[test]
fn replies_arrive_after_host_closes_stdin() {
    let bed = Bed::new();
    let mut host = bed.bridge();
    host.ask(1, "ping", &json!({}));
    host.say_bytes(br#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    let (rest, aside) = host.end();
    assert_eq!(rest.lines().count(), 2, "{rest}");
    assert_eq!(aside, "");
    assert!(bed.running().is_some());
}

#[test]
fn slow_piped_requests_are_answered() {
    let bed = Bed::new();
    bed.configure("rehearsal = true\n");
    let mut host = bed.bridge();
    host.greet();
    let work = bed.work();
    let call = |prompt: &str| {
        let arguments = json!({"prompt": prompt, "cwd": work});
        json!({"name": "call_rehearsal", "arguments": arguments})
    };
    host.ask(1, "tools/call", &call("@rehearse delay 1500ms\n@rehearse answer done"));
    host.ask(2, "tools/call", &call("@rehearse hang"));
    let (rest, aside) = host.end();
    let mut answers: Vec<Value> = rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    let told: Vec<&Value> = answers.iter().map(|answer| &answer["result"]["structuredContent"]).collect();
    assert_eq!((told.len(), aside.as_str()), (2, ""), "{rest}");
    assert_eq!(told[0]["output"], "done", "{rest}");
    assert_eq!(told[1]["status"], "running", "{rest}");
    let job = told[1]["job_id"].as_str().unwrap();
    assert!(bed.run(&["cancel", job]).status.success());
}

#[test]
fn piped_requests_are_answered_by_next_daemon() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    let mut first = played.accept();
    host.ask(1, "ping", &json!({}));
    assert_eq!(first.hear()["id"], 1);
    drop(host.input.take());
    assert!(first.is_closed(), "it is told that no more comes");
    drop(first);
    let mut second = played.accept();
    assert_eq!(second.hear()["id"], 1);
    assert!(second.is_closed());
    second.answer(&json!(1), &json!({}));
    assert_eq!(host.hear()["id"], 1);
}

#[test]
fn bridge_exits_with_its_host() {
    let bed = Bed::new();
    let played = Played::at(&bed);
    let mut host = bed.bridge();
    let mut line = played.accept();
    host.ask(1, "tools/call", &json!({"name": "call_cc"}));
    line.hear();
    host.child.kill().unwrap();
    assert!(line.is_closed());
}
