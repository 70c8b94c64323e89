//! Consistency of the daemon and its callers: programs, variables and configuration.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use testkit::eventually;

use serde_json::{Value, json};

use crate::harness::{Harness, TestHost, stderr, stdout};

/// Creates a `claude` that wraps the scripted agent in the real one's output format.
fn install_claude(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let flags = [
        "--session-id",
        "--resume",
        "--fork-session",
        "--model",
        "--max-turns",
        "--tools",
        "--allowedTools",
        "--mcp-config",
        "--strict-mcp-config",
        "--setting-sources",
        "--settings",
        "--permission-mode",
        "--dangerously-skip-permissions",
        "--include-partial-messages",
        "--system-prompt",
        "--append-system-prompt",
        "--add-dir",
    ]
    .join(" ");
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in\n--version) echo '2.1.325 (Claude Code)';;\n--help) echo '{flags}';;\n*) exec '{}' --as claude \"$@\";;\nesac\n",
        env!("CARGO_BIN_EXE_rehearsal")
    );
    let program = directory.join("claude");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the value of a variable as the agent of a call sees it.
fn variable(harness: &Harness, name: &str, environment: &[(&str, &str)]) -> String {
    let prompt = format!("@rehearse env {name}");
    let mut command = harness.command(&["call", "rehearsal", &prompt]);
    command.envs(environment.iter().copied());
    stdout(&command.output().unwrap()).trim().to_owned()
}

#[test]
fn agent_installed_after_daemon_start_is_found() {
    let harness = Harness::new();
    harness.daemon();
    let directory = harness.scratch().join("bin");
    install_claude(&directory);
    let call = |path: &str| -> Output {
        let mut command = harness.command(&["call", "claude", "Hello", "--policy", "off"]);
        command.env("PATH", path).output().unwrap()
    };
    let path = format!("{}:/usr/bin:/bin", directory.display());
    let output = call(&path);
    assert_eq!(stdout(&output), "You said: Hello\n", "{output:?}");
    // A shell that does not have it is told so, whatever another one has.
    let output = call("/usr/bin:/bin");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(stderr(&output).contains("claude CLI not found in PATH"), "{output:?}");
}

#[test]
fn variables_of_calling_shell_reach_agent() {
    let harness = Harness::new();
    let mut first = harness.command(&["serve", "--background"]);
    assert!(first.env("REHEARSAL_WORD", "old").status().unwrap().success());
    assert_eq!(variable(&harness, "REHEARSAL_WORD", &[("REHEARSAL_WORD", "new")]), "REHEARSAL_WORD=new");
    assert_eq!(variable(&harness, "REHEARSAL_WORD", &[]), "REHEARSAL_WORD is not set");
    // Others are no business of an agent.
    assert_eq!(variable(&harness, "SOME_SECRET", &[("SOME_SECRET", "x")]), "SOME_SECRET is not set");
}

#[test]
fn variables_of_mcp_host_extend_those_of_daemon() {
    let harness = Harness::new();
    harness.configure("rehearsal = true\n");
    let mut first = harness.command(&["serve", "--background"]);
    first.env("REHEARSAL_WORD", "old").env("REHEARSAL_OTHER", "kept");
    assert!(first.status().unwrap().success());
    let mut bridge = harness.command(&["mcp"]);
    bridge.env("REHEARSAL_WORD", "new");
    let mut host = TestHost::start(bridge);
    host.initialize();
    for (name, expected) in [("REHEARSAL_WORD", "new"), ("REHEARSAL_OTHER", "kept")] {
        let arguments = json!({ "prompt": format!("@rehearse env {name}"), "cwd": harness.work() });
        host.request(1, "tools/call", &json!({ "name": "call_rehearsal", "arguments": arguments }));
        let answer = host.receive();
        let output = &answer["result"]["structuredContent"]["output"];
        assert_eq!(*output, format!("{name}={expected}"), "{answer}");
    }
}

#[test]
fn caller_inside_run_cannot_set_variables() {
    let harness = Harness::new();
    harness.daemon();
    let inside = [("REHEARSAL_WORD", "mine"), ("SWITCHBOARD_RUN_ID", "01a1dde2-642d-7027-95b7-67d9f29d1836")];
    assert_eq!(variable(&harness, "REHEARSAL_WORD", &inside), "REHEARSAL_WORD is not set");
}

#[test]
fn queued_call_keeps_variables_across_restart() {
    let harness = Harness::new();
    harness.configure("[limits]\nat_once = 1\n");
    let daemon = harness.daemon();
    let first =
        stdout(&harness.run(&["call", "rehearsal", "--background", "@rehearse say up\n@rehearse hang"]));
    let mut second = harness.command(&["call", "rehearsal", "--background", "@rehearse env REHEARSAL_KEY"]);
    let second = stdout(&second.env("REHEARSAL_KEY", "hunter22").output().unwrap());
    let kept = harness.state().join("environments").join(format!("{}.json", second.trim()));
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.kill();
    // The next daemon has another environment.
    assert!(harness.run(&["cancel", first.trim()]).status.success());
    harness.run(&["wait", second.trim()]);
    // A key is used, and redacted in stored texts.
    let status = stdout(&harness.run(&["status", "--json", second.trim()]));
    assert!(status.contains("REHEARSAL_KEY=[redacted]"), "{status}");
    assert!(!kept.exists(), "secrets are gone with the end of the job");
    let database = fs::read(harness.state().join("switchboard.db")).unwrap();
    assert!(!database.windows(8).any(|bytes| bytes == b"hunter22"));
}

#[test]
fn variables_of_unsubmitted_call_are_removed() {
    let harness = Harness::new();
    harness.daemon().kill();
    // What a daemon leaves that is killed between the two writes.
    let left = harness.state().join("environments/01a1dde2-642d-7027-95b7-67d9f29d1836.json");
    fs::write(&left, "{}").unwrap();
    harness.daemon();
    eventually("the variables are removed", || !left.exists());
}

#[test]
fn changed_configuration_is_reported() {
    let harness = Harness::new();
    harness.configure("[limits]\nat_once = 3\n");
    let daemon = harness.daemon();
    assert!(!stderr(&harness.run(&["status"])).contains("configuration"));
    harness.configure("[limits]\nat_once = 5\n");
    let expected = format!(
        "note: the configuration has changed since the daemon (pid {}) started: `limits.at_once` was 3 and is now 5\n  hint: `switchboard stop --now`",
        daemon.pid.as_raw_pid()
    );
    for command in ["status", "config", "doctor"] {
        let said = stderr(&harness.run(&[command]));
        assert!(said.contains(&expected), "{command}: {said}");
    }
    let status: Value = serde_json::from_str(&stdout(&harness.run(&["status", "--json"]))).unwrap();
    let changed = &status["config_drift"]["changed"][0];
    assert_eq!(*changed, json!({ "key": "limits.at_once", "daemon": "3", "configured": "5" }));
    assert!(harness.run(&["stop", "--now"]).status.success());
    harness.daemon();
    assert!(!stderr(&harness.run(&["status"])).contains("configuration"));
}

#[test]
fn replaced_program_is_reported() {
    let harness = Harness::new();
    let program = harness.work().join("switchboard");
    let link = |built: &str, to: &Path| {
        fs::hard_link(built, to).or_else(|_| fs::copy(built, to).map(drop)).unwrap();
    };
    link(env!("CARGO_BIN_EXE_switchboard-supervisor"), &program.with_file_name("switchboard-supervisor"));
    let install = || link(env!("CARGO_BIN_EXE_switchboard"), &program);
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.env_clear().env("SWITCHBOARD_HOME", &harness.home).args(args).output().unwrap()
    };
    install();
    assert!(run(&["serve", "--background"]).status.success());
    let daemon = harness.running_daemon().unwrap();
    assert!(!stderr(&run(&["status"])).contains("note:"));
    fs::remove_file(&program).unwrap();
    install();
    // As a new program may have other defaults.
    harness.configure("[limits]\nat_once = 5\n");
    let expected = format!(
        "note: the program was replaced since the daemon (pid {}) started, which still runs the old one\n  hint: `switchboard stop --now`",
        daemon.pid.as_raw_pid()
    );
    for command in ["status", "config", "doctor"] {
        let said = stderr(&run(&[command]));
        assert!(said.contains(&expected) && !said.contains("configuration has changed"), "{command}: {said}");
    }
    assert!(run(&["stop", "--now"]).status.success());
}

#[test]
fn lost_database_is_reported_everywhere() {
    let harness = Harness::new();
    harness.daemon();
    assert_eq!(stdout(&harness.run(&["call", "rehearsal", "Hello"])), "You said: Hello\n");
    fs::remove_file(harness.state().join("switchboard.db")).unwrap();
    let refused = harness.run(&["call", "rehearsal", "Hello"]);
    assert_eq!(refused.status.code(), Some(10), "{refused:?}");
    for said in [stderr(&refused), stdout(&harness.run(&["status"])), stderr(&harness.run(&["doctor"]))] {
        assert!(said.contains("its file was removed"), "{said}");
        assert!(said.contains("hint: stop the daemon"), "{said}");
    }
    let status: Value = serde_json::from_str(&stdout(&harness.run(&["status", "--json"]))).unwrap();
    assert!(status["problem"]["message"].as_str().unwrap().contains("was lost"), "{status}");
    assert!(harness.run(&["stop", "--now"]).status.success());
}

#[test]
fn daemon_survives_invalid_configuration() {
    let harness = Harness::new();
    harness.daemon();
    harness.configure("stroe = \"sqlite:\"\n");
    let output = harness.run(&["status"]);
    assert!(output.status.success(), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("keeps the configuration it started with") && said.contains("stroe"), "{said}");
    harness.configure("");
    assert_eq!(stdout(&harness.run(&["call", "rehearsal", "Hello"])), "You said: Hello\n");
}

/// Posts a message to the daemon's HTTP endpoint and returns the response up to the reply to that message.
fn post(harness: &Harness, session: &str, message: &Value) -> String {
    let log = harness.log();
    let (_, after) = log.split_once("address=127.0.0.1:").unwrap();
    let port: u16 = after.split_once(' ').unwrap().0.parse().unwrap();
    let token = fs::read_to_string(harness.state().join("http-token")).unwrap();
    let body = message.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{session}Content-Length: {}\r\nConnection: close\r\n\r\n",
        token.trim(),
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&response).contains("\"result\":") {
        match stream.read(&mut piece).unwrap() {
            0 => break,
            count => response.extend_from_slice(&piece[..count]),
        }
    }
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn ceiling_change_applies_to_running_daemon() {
    let harness = Harness::new();
    harness.configure("rehearsal = true\n");
    assert!(harness.run(&["serve", "--background", "--http", "127.0.0.1:0"]).status.success());
    let work = harness.work();
    let prompt = |name: &str| format!("@rehearse write {name} x");
    let call = |name: &str| {
        harness.run(&["call", "rehearsal", &prompt(name), "--policy", "off", "--cwd", work.to_str().unwrap()])
    };
    let mut host = harness.bridge();
    host.initialize();
    let arguments = |name: &str| json!({ "prompt": prompt(name), "cwd": work, "policy": "off" });
    let request = |name: &str| json!({ "name": "call_rehearsal", "arguments": arguments(name) });
    let mut over_mcp = |name: &str| {
        host.request(1, "tools/call", &request(name));
        host.receive()
    };
    let client = json!({ "name": "a test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    let greeted =
        post(&harness, "", &json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }));
    let session = greeted.lines().find(|line| line.starts_with("mcp-session-id:")).unwrap();
    let session = format!("{}\r\n", session.trim());
    let over_http = |name: &str| {
        post(
            &harness,
            &session,
            &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": request(name) }),
        )
    };

    over_mcp("before");
    assert!(work.join("before").exists(), "no ceiling yet");
    harness.configure("rehearsal = true\n\n[sandbox]\nceiling = \"observe\"\n");
    let said = [stderr(&call("cli")), over_mcp("bridge").to_string(), over_http("http")];
    for (name, said) in ["cli", "bridge", "http"].into_iter().zip(said) {
        assert!(!work.join(name).exists(), "{name} is not below the ceiling: {said}");
        assert!(said.contains("the policy is `observe`, not `off`: `sandbox.ceiling`"), "{name}: {said}");
    }
    // The last ceiling that could be read counts.
    harness.configure("ceilling\n");
    over_mcp("unreadable");
    assert!(!work.join("unreadable").exists());
    // One that came after the start of the daemon also goes without a restart.
    harness.configure("rehearsal = true\n");
    over_mcp("lifted");
    assert!(work.join("lifted").exists());
}

#[test]
fn program_in_workspace_is_not_an_agent() {
    let harness = Harness::new();
    let work = harness.work();
    // As a confined call would leave it: the next one must not ask it for its version.
    install_claude(&work.join("node_modules/.bin"));
    let asked = work.join("asked");
    let planted = work.join("node_modules/.bin/codex");
    fs::write(&planted, format!("#!/bin/sh\ntouch {}\n", asked.display())).unwrap();
    fs::set_permissions(&planted, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", work.join("node_modules/.bin").display());
    for how in [&["call", "codex"][..], &["call", "codex", "--direct"], &["doctor"]] {
        let mut command = harness.command(how);
        if how[0] == "call" {
            command.args(["--cwd", work.to_str().unwrap(), "hello"]);
        }
        let output = command.current_dir(&work).env("PATH", &path).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        assert!(!asked.exists(), "{how:?} ran the program: {output:?}");
        let told = stdout(&output) + &stderr(&output);
        assert!(told.contains("codex is only at `") && told.contains("[programs] codex ="), "{told}");
    }
}

#[test]
fn program_in_earlier_workspace_is_not_an_agent() {
    for direct in [&[][..], &["--direct"]] {
        let harness = Harness::new();
        let (earlier, work) = (harness.scratch().join("earlier"), harness.work());
        let bin = earlier.join("node_modules/.bin");
        fs::create_dir_all(&earlier).unwrap();
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let run = |how: &[&str], cwd: &Path| {
            harness.command(how).current_dir(cwd).env("PATH", &path).output().unwrap()
        };
        let output = run(&[&["call", "rehearsal", "hello"], direct].concat(), &earlier);
        assert!(output.status.success(), "{output:?}");
        // A directory of `PATH`, and a link that leads there.
        install_claude(&bin);
        let linked = harness.scratch().join("linked");
        fs::create_dir_all(&linked).unwrap();
        std::os::unix::fs::symlink(bin.join("claude"), linked.join("claude")).unwrap();
        let by_link = format!("{}:/usr/bin:/bin", linked.display());
        let output =
            harness.command(&["call", "claude", "hello"]).current_dir(&work).env("PATH", by_link).output();
        let told = stderr(&output.unwrap());
        assert!(told.contains("claude is only at `"), "{told}");
        for how in [&["call", "claude", "hello"][..], &["call", "claude", "hello", "--direct"], &["doctor"]] {
            let output = run(how, &work);
            let told = stdout(&output) + &stderr(&output);
            assert!(told.contains("claude is only at `"), "{told}");
        }
        let listed = stdout(&run(&["agents"], &work));
        assert!(listed.starts_with("claude: not ready"), "{listed}");
    }
}

#[test]
fn program_in_renamed_workspace_is_not_an_agent() {
    let harness = Harness::new();
    let (earlier, renamed) = (harness.scratch().join("earlier"), harness.scratch().join("renamed"));
    install_claude(&earlier.join("bin"));
    let output = harness.command(&["call", "rehearsal", "hello"]).current_dir(&earlier).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::rename(&earlier, &renamed).unwrap();
    let path = format!("{}:/usr/bin:/bin", renamed.join("bin").display());
    for how in [&["call", "claude", "hello"][..], &["call", "claude", "hello", "--direct"], &["doctor"]] {
        let output = harness.command(how).current_dir(harness.work()).env("PATH", &path).output().unwrap();
        let told = stdout(&output) + &stderr(&output);
        assert!(told.contains("claude is only at `"), "{told}");
    }
}

#[test]
fn unwritable_directory_stays_trusted() {
    let harness = Harness::new();
    let (bin, work) = (harness.scratch().join("bin"), harness.work());
    install_claude(&bin);
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let run =
        |how: &[&str], cwd: &Path| harness.command(how).current_dir(cwd).env("PATH", &path).output().unwrap();
    // Refused, and read-only.
    let refused = run(&["call", "claude", "hello"], &bin);
    assert!(stderr(&refused).contains("claude is only at `"), "{refused:?}");
    let output = run(&["call", "rehearsal", "--observe", "hello"], &bin);
    assert!(output.status.success(), "{output:?}");
    let found = run(&["call", "claude", "hello"], &work);
    assert!(stderr(&found).contains("the installed claude 2.1.325 does not support"), "{found:?}");
}

/// No sandboxed agent can write to the home directory, which contains most programs of a user.
#[test]
fn program_is_found_from_home_directory() {
    let harness = Harness::new();
    let person = harness.work();
    install_claude(&person.join(".local/bin"));
    let path = format!("{}:/usr/bin:/bin", person.join(".local/bin").display());
    let run = |how: &[&str]| {
        let mut command = harness.command(how);
        command.current_dir(&person).env("PATH", &path).env("HOME", &person).output().unwrap()
    };
    let doctor = run(&["doctor"]);
    assert!(stdout(&doctor).contains(person.join(".local/bin/claude").to_str().unwrap()), "{doctor:?}");
    for direct in [&[][..], &["--direct"]] {
        // It was asked for its version, and lacks a required option.
        let refused = run(&[&["call", "claude", "hello"], direct].concat());
        assert!(stderr(&refused).contains("the installed claude 2.1.325 does not support"), "{refused:?}");
    }
}
