//! The start of the daemon on demand.

use std::fs;
use std::io::Read;
use std::process::Command;

use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::json;

use crate::harness::{Harness, TestHost, stderr, stdout};

#[test]
fn ten_concurrent_hosts_start_one_daemon() {
    let harness = Harness::new();
    let mut hosts: Vec<TestHost> = (0..10).map(|_| harness.bridge()).collect();
    for host in &mut hosts {
        host.initialize();
    }
    assert_eq!(harness.ready_count(), 1, "{}", harness.log());
    let status = harness.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["connections"], 11);
    assert_eq!(status["pid"], harness.running_daemon().unwrap().pid.as_raw_pid());
}

#[test]
fn second_daemon_fails_and_names_first() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    for args in [&["serve"][..], &["serve", "--background"]] {
        let output = harness.run(args);
        assert!(!output.status.success());
        let text = stderr(&output);
        assert!(text.contains("a daemon is already running for"), "{text}");
        assert!(text.contains(&format!("pid {}", daemon.pid.as_raw_pid())), "{text}");
    }
    assert_eq!(harness.running_daemon().unwrap().pid, daemon.pid);
}

#[test]
fn daemon_killed_at_every_start_is_reported() {
    let harness = Harness::new();
    // The daemon cannot write a byte to any file, and the signal of the kernel kills it before its first output.
    let script = "ulimit -f 0; exec \"$0\" jobs";
    let mut command = Command::new("/bin/sh");
    command.env_clear().env("SWITCHBOARD_HOME", &harness.home);
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_switchboard")]).output().unwrap();
    assert!(!output.status.success());
    let text = stderr(&output);
    assert!(text.contains("the daemon was killed by SIGXFSZ before it started"), "{text}");
    assert!(text.contains("check the resource limits (`ulimit -a`) and the free memory"), "{text}");
}

#[test]
fn stale_socket_is_replaced() {
    let harness = Harness::new();
    let first = harness.daemon();
    first.kill();
    assert!(first.socket.as_ref().unwrap().exists(), "a killed daemon leaves its socket behind");
    harness.bridge().initialize();
    let second = harness.running_daemon().unwrap();
    assert_ne!(second.pid, first.pid);
    assert_eq!(second.socket, first.socket);
}

#[test]
fn removed_socket_is_recreated() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    fs::remove_file(daemon.socket.as_ref().unwrap()).unwrap();
    harness.bridge().initialize();
    assert_eq!(harness.running_daemon().unwrap().pid, daemon.pid);
    assert_eq!(harness.ready_count(), 1);
}

#[test]
fn daemon_is_detached_from_its_starter() {
    let harness = Harness::new();
    // Without CLOEXEC, as careless hosts leave them: whoever reads this pipe waits until all copies are closed.
    let (heard, leaked) = pipe_with(PipeFlags::empty()).unwrap();
    let daemon = harness.daemon();
    drop(leaked);
    assert_eq!(fs::File::from(heard).read(&mut [0]).unwrap(), 0);
    let pid = daemon.pid.as_raw_pid();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_eq!(fields[3], pid.to_string(), "session");
    let file = |number: u32| fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
    assert_eq!(file(0).to_str(), Some("/dev/null"));
    assert_eq!(file(1).to_str(), Some("/dev/null"));
    assert_eq!(file(2), harness.state().join("logs/daemon.log"));
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
}

#[test]
fn start_error_is_reported_and_retried() {
    let harness = Harness::new();
    harness.configure("[limits]\nat_onec = 3\n");
    let mut host = harness.bridge();
    for id in 1..3 {
        let answer = host.ping(id);
        assert_eq!(answer["id"], id);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("line 2: unknown key `limits.at_onec`"), "{message}");
        assert!(message.contains("did you mean `limits.at_once`?"), "{message}");
    }
    harness.configure("[limits]\nat_once = 3\n");
    assert_eq!(host.ping(3)["result"], json!({}));
}

#[test]
fn missing_home_error_names_variable() {
    let harness = Harness::new();
    let mut command = harness.command(&["mcp"]);
    command.env_remove("SWITCHBOARD_HOME");
    let mut host = TestHost::start(command);
    let message = host.ping(1)["error"]["message"].to_string();
    assert!(message.contains("set HOME, or set SWITCHBOARD_HOME"), "{message}");
}

/// Starts a bridge whose parent has the run id in its environment, as an agent has; the bridge itself only if requested.
fn inside_a_call(harness: &Harness, keep: bool) -> TestHost {
    let strip = if keep { "" } else { "env -u SWITCHBOARD_RUN_ID" };
    let mut command = Command::new("sh");
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("SWITCHBOARD_HOME", &harness.home)
        .env("SWITCHBOARD_RUN_ID", "0190a3b400004000800000000000000a")
        // Something after it, or the shell would become the bridge instead of its parent.
        .args(["-c", &format!("{strip} {} mcp; exit $?", env!("CARGO_BIN_EXE_switchboard"))]);
    TestHost::start(command)
}

#[test]
fn no_daemon_is_started_inside_call() {
    let harness = Harness::new();
    for keep in [true, false] {
        let message = inside_a_call(&harness, keep).ping(1)["error"]["message"].to_string();
        assert!(message.contains("none can be started inside a call"), "{message}");
        assert!(message.contains("ask the user to check Switchboard's daemon"), "{message}");
    }
    assert!(harness.running_daemon().is_none());
    harness.daemon();
    for keep in [true, false] {
        assert_eq!(inside_a_call(&harness, keep).ping(1)["result"], json!({}));
    }
}

#[test]
fn deep_home_has_its_daemon() {
    let harness = Harness::with_deep_home();
    let mut host = harness.bridge();
    host.initialize();
    let socket = harness.running_daemon().unwrap().socket.unwrap();
    assert!(socket.as_os_str().len() > 200, "{}", socket.display());
    assert!(socket.starts_with(harness.state()), "an agent could see {}", socket.display());
    assert!(stdout(&harness.run(&["stop"])).contains("stopped the daemon"));
}

#[test]
fn clients_with_other_variables_find_same_daemon() {
    let harness = Harness::new();
    let runtime = harness.scratch().join("runtime");
    let xdg = |args: &[&str], with_runtime: bool| {
        let mut command = harness.command(args);
        command.env_remove("SWITCHBOARD_HOME").env("HOME", &harness.home);
        if with_runtime {
            command.env("XDG_RUNTIME_DIR", &runtime);
        }
        command
    };
    let started = xdg(&["serve", "--background"], true).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    // A host hands on hardly any variable.
    TestHost::start(xdg(&["mcp"], false)).initialize();
    let status = xdg(&["status"], false).output().unwrap();
    assert!(stdout(&status).contains(runtime.to_str().unwrap()), "{status:?}");
    let stopped = xdg(&["stop", "--now"], false).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
}
