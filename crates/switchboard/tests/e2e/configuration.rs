//! `switchboard config` and the configuration file.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::harness::{Harness, stderr, stdout};

#[test]
fn config_prints_source_of_every_value() {
    let harness = Harness::new();
    harness.configure("[limits]\nat_once = 3\n");
    let output = harness.command(&["config"]).env("SWITCHBOARD_LOG_LEVEL", "debug").output().unwrap();
    let text = stdout(&output);
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    assert!(
        line("at_once = 3 ").ends_with(&format!("# {} line 2", harness.home.join("config.toml").display()))
    );
    assert!(line("level = \"debug\"").ends_with("# variable SWITCHBOARD_LOG_LEVEL"));
    assert!(line("timeout = \"1h\"").ends_with("# default"));
}

#[test]
fn config_json_has_source_of_every_setting() {
    let harness = Harness::new();
    harness.configure("labels = [\"gpu\"]\n");
    let output = harness.run(&["config", "--json"]);
    let config: Value = serde_json::from_slice(&output.stdout).unwrap();
    let settings = config["settings"].as_array().unwrap();
    let labels = settings.iter().find(|setting| setting["key"] == "labels").unwrap();
    assert_eq!(labels["value"], serde_json::json!(["gpu"]));
    assert_eq!(labels["source"]["from"], "file");
    assert_eq!(labels["source"]["line"], 1);
    assert_eq!(config["file_exists"], true);
}

#[test]
fn invalid_config_file_fails_every_command() {
    let harness = Harness::new();
    harness.configure("stroe = \"sqlite:\"\n");
    for args in
        [&["config"][..], &["serve"], &["serve", "--background"], &["call", "rehearsal", "hi"], &["doctor"]]
    {
        let output = harness.run(args);
        assert!(!output.status.success(), "{args:?}");
        let text = stderr(&output);
        assert!(text.contains("config.toml line 1: unknown key `stroe`"), "{args:?}: {text}");
        assert!(text.contains("did you mean `store`?"), "{args:?}: {text}");
    }
    assert!(harness.run(&["config", "--reference"]).status.success(), "the reference is there all the same");
}

#[test]
fn configured_program_is_called() {
    use std::os::unix::fs::PermissionsExt;
    let harness = Harness::new();
    let program = harness.scratch().join("my-agent");
    fs::write(&program, format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_rehearsal"))).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    harness.configure(&format!("[programs]\nrehearsal = \"{}\"\n", program.display()));
    let output = harness.run(&["call", "rehearsal", "Hello"]);
    assert_eq!(stdout(&output), "You said: Hello\n", "{output:?}");
    fs::remove_file(&program).unwrap();
    assert_eq!(harness.run(&["call", "rehearsal", "Hello"]).status.code(), Some(5));
}

#[test]
fn http_requires_token() {
    let harness = Harness::new();
    harness.configure("[http]\nallowed_hosts = [\"box.example\"]\n");
    let output = harness.run(&["serve", "--background", "--http", "127.0.0.1:0"]);
    assert!(output.status.success(), "{output:?}");
    let token = fs::read_to_string(harness.state().join("http-token")).unwrap();
    let port = || {
        let log = harness.log();
        let (_, after) = log.split_once("address=127.0.0.1:")?;
        after.split_once(' ')?.0.parse::<u16>().ok()
    };
    let port = std::iter::repeat_with(port).find_map(|port| port).unwrap();
    let token_file = harness.state().join("http-token");
    let line = format!("http: http://127.0.0.1:{port}/mcp (token in {})\n", token_file.display());
    for told in [stdout(&output), stdout(&harness.run(&["status"]))] {
        assert!(told.contains(&line), "{told}");
    }
    let refused = post(port, "127.0.0.1", "wrong");
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    for host in ["127.0.0.1", "box.example"] {
        let answer = post(port, host, token.trim());
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"switchboard\""), "{answer}");
    }
    let refused = post(port, "evil.example", token.trim());
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("`evil.example:"), "{refused}");
    // And nobody who is stuck in a request keeps it.
    let mut stuck = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stuck.write_all(b"POST /mcp HTTP/1.1\r\nHost: x\r\n").unwrap();
    assert!(harness.run(&["stop", "--now"]).status.success());
    assert!(harness.running_daemon().is_none());
}

fn post(port: u16, host: &str, token: &str) -> String {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a test","version":"1"}}}"#;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    // A stream of events stays open: what is looked for is in its first one.
    while !String::from_utf8_lossy(&answer).contains("serverInfo") {
        match stream.read(&mut piece).unwrap() {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn invalid_http_address_is_rejected() {
    let harness = Harness::new();
    let output = harness.run(&["serve", "--http", "nowhere"]);
    let expected = "option --http: `http.address` must be an IP address with a port, not `nowhere`";
    assert!(stderr(&output).contains(expected), "{output:?}");
}

/// Agents see the token in logs and in the configuration of HTTP clients.
#[test]
fn http_token_is_redacted() {
    let harness = Harness::new();
    harness.configure("[http]\naddress = \"127.0.0.1:0\"\n");
    harness.daemon();
    let path = harness.state().join("http-token");
    let token = fs::read_to_string(&path).unwrap();
    for _ in 0..2 {
        let work = harness.work();
        let prompt = format!("@rehearse answer the token is {token}");
        let args = ["call", "rehearsal", "--policy", "off", "--cwd", work.to_str().unwrap(), &prompt];
        assert!(harness.run(&args).status.success());
        let jobs = stdout(&harness.run(&["jobs", "--json"]));
        assert!(jobs.contains("[redacted]") && !jobs.contains(&token), "{jobs}");
        harness.run(&["stop"]);
        // The daemon serves no HTTP any more, and a client may use it again later.
        harness.configure("");
    }
}
