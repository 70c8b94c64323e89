//! The handshake, and peers that violate it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::fake_daemon::FakeDaemon;
use crate::harness::{Daemon, Harness, stderr, stdout};

struct Raw(BufReader<UnixStream>);

impl Raw {
    fn to(daemon: &Daemon) -> Self {
        Self(BufReader::new(UnixStream::connect(daemon.socket.as_ref().unwrap()).unwrap()))
    }

    fn send(&mut self, text: &str) {
        // What is turned away early may not be read to its end.
        let _ = self.0.get_mut().write_all(text.as_bytes());
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or(Value::Null)
    }

    fn initialize(daemon: &Daemon) -> Self {
        let mut raw = Self::to(daemon);
        raw.send("{\"switchboard\":{\"protocol\":2,\"version\":\"9.9.9\",\"role\":\"control\",\"pid\":1}}\n");
        assert_eq!(raw.receive()["switchboard"]["error"], Value::Null);
        raw
    }
}

#[test]
fn daemon_rejects_other_protocol_with_remedy() {
    let harness = Harness::new();
    let mut raw = Raw::to(&harness.daemon());
    raw.send("{\"switchboard\":{\"protocol\":3,\"version\":\"9.9.9\",\"something\":\"new\"}}\n");
    let error = raw.receive()["switchboard"]["error"].clone();
    let message = error["message"].as_str().unwrap();
    let mine = env!("CARGO_PKG_VERSION");
    assert_eq!(
        message,
        format!(
            "protocol mismatch: the client (version 9.9.9) uses protocol 3, the daemon (version {mine}) uses protocol 2"
        )
    );
    assert!(error["hint"].as_str().unwrap().contains("`switchboard stop --now`"), "{error}");
}

#[test]
fn client_rejects_other_protocol() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| played.accept_as(3, "9.9.9"));
        harness.run(&["status"])
    });
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("the daemon (version 9.9.9) uses protocol 3"), "{text}");
    assert!(text.contains("this program is older than the daemon"), "{text}");
}

#[test]
fn version_skew_works_and_is_reported() {
    for (version, remedy) in
        [("9.9.9", "restart the process that started it"), ("0.0.1", "`switchboard stop --now`")]
    {
        let harness = Harness::new();
        let played = FakeDaemon::new(&harness);
        let mut host = harness.bridge();
        let mut line = played.accept_as(2, version);
        assert_eq!(line.hello["switchboard"]["role"], "mcp");
        host.request(1, "ping", &json!({}));
        let ping = line.receive();
        line.answer(&ping["id"], &json!({}));
        assert_eq!(host.receive()["id"], 1);
        let (_, aside) = host.finish();
        let daemon = format!("the running daemon is version {version}");
        assert!(aside.contains(&daemon) && aside.contains(remedy), "{aside}");
    }
}

#[test]
fn invalid_greeting_is_rejected_without_blocking() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    // Silent for as long as it likes.
    let _silent = Raw::to(&daemon);
    for (said, expected) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "not a greeting"),
        ("\n".to_owned(), "not a greeting"),
        ("x".repeat(100_000), "greeting is too long"),
        (
            "{\"switchboard\":{\"protocol\":2,\"version\":\"1\",\"role\":\"king\",\"pid\":1}}\n".to_owned(),
            "invalid greeting",
        ),
    ] {
        let mut raw = Raw::to(&daemon);
        raw.send(&said);
        let message = raw.receive()["switchboard"]["error"]["message"].to_string();
        assert!(message.contains(expected), "{said:.40}: {message}");
        let mut rest = Vec::new();
        let _ = raw.0.read_to_end(&mut rest);
        assert!(rest.is_empty(), "and the connection is closed");
    }
    harness.bridge().initialize();
    assert_eq!(harness.running_daemon().unwrap().pid, daemon.pid);
}

#[test]
fn invalid_request_keeps_connection_open() {
    let harness = Harness::new();
    let mut raw = Raw::initialize(&harness.daemon());
    raw.send("{\"request\":\"dance\"}\n");
    assert!(raw.receive()["message"].as_str().unwrap().contains("invalid request"));
    raw.send("{\"request\":\"status\"}\n");
    let status = raw.receive();
    assert_eq!(status["reply"], "status");
    assert_eq!(status["phase"], "open");
    assert_eq!(status["more"], Value::Null);
}

#[test]
fn full_daemon_rejects_hosts_and_serves_commands() {
    let harness = Harness::new();
    harness.configure("[limits]\nmax_connections = 8\n");
    let daemon = harness.daemon();
    let _crowd: Vec<Raw> = (0..8).map(|_| Raw::initialize(&daemon)).collect();
    let mut host = Raw::to(&daemon);
    host.send("{\"switchboard\":{\"protocol\":2,\"version\":\"9.9.9\",\"role\":\"mcp\",\"pid\":1}}\n");
    let error = host.receive()["switchboard"]["error"].clone();
    assert!(error["hint"].as_str().unwrap().contains("`limits.max_connections`"), "{error}");
    assert!(stdout(&harness.run(&["status"])).contains("the daemon is running"));
    assert!(harness.run(&["stop"]).status.success());
    daemon.wait();
}

#[test]
fn silent_connections_do_not_lock_out_commands() {
    let harness = Harness::new();
    harness.configure("[limits]\nmax_connections = 8\n");
    let daemon = harness.daemon();
    let _silent: Vec<Raw> = (0..8 * 4).map(|_| Raw::to(&daemon)).collect();
    for _ in 0..3 {
        let output = harness.run(&["status"]);
        assert!(output.status.success(), "{output:?}");
    }
    harness.bridge().initialize();
}

#[test]
fn connections_beyond_limit_are_rejected() {
    let harness = Harness::new();
    harness.configure("[limits]\nmax_connections = 8\n");
    let daemon = harness.daemon();
    // Those that are reserved for commands, too.
    let crowd: Vec<Raw> = (0..8 + 16).map(|_| Raw::initialize(&daemon)).collect();
    let output = harness.run(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("has reached its connection limit ("), "{output:?}");
    drop(crowd);
    // The daemon sees them go in its own time.
    while !harness.run(&["status"]).status.success() {
        std::thread::yield_now();
    }
    assert!(stdout(&harness.run(&["status"])).contains("the daemon is running"));
}
