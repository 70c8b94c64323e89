//! Known vulnerabilities of other tools: each with its id, its class, and an attempt with the installed programs.
//!
//! One table, so that the attempts can be reviewed. A vulnerability of a new class gets a row. Missing prerequisites are reported;
//! the attempts with the real CLIs are in `crates/agents/tests/real/confined.rs`.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{Harness, TestHost, stderr, stdout};

/// A known vulnerability: its ids, its description, and the attempt.
type Hole = (&'static [&'static str], &'static str, fn(&Ground));

const HOLES: &[Hole] = &[
    (
        &["CVE-2026-0755", "CVE-2025-6514"],
        "shell metacharacters in string arguments run commands",
        metacharacters,
    ),
    (&["CVE-2026-19592"], "the configuration of a hostile repository runs commands", hostile_repository),
    (
        &["CVE-2026-21852"],
        "the settings of a workspace send the key to an address of its own",
        workspace_settings,
    ),
    (
        &["CVE-2025-59532"],
        "a directory that the model chooses becomes one that it may write",
        chosen_directory,
    ),
    (&["CVE-2025-53109"], "a symbolic link leads out of the workspace", link_out),
    (&["CVE-2025-53110"], "a directory whose name begins like the workspace's passes for it", sibling),
    (
        &["CVE-2025-66414", "CVE-2025-66416", "CVE-2026-42559"],
        "a web page reaches a server on loopback by rebinding its name",
        rebinding,
    ),
];

/// The setting of an attempt: a workspace, a directory beside it, and a marker that must not appear.
struct Ground {
    harness: Harness,
    work: PathBuf,
    beside: PathBuf,
}

impl Ground {
    fn new() -> Self {
        let harness = Harness::new();
        harness.configure("rehearsal = true\n");
        let (work, beside) = (harness.scratch().join("ws"), harness.scratch().join("ws-secret"));
        for directory in [&work, &beside] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(beside.join("key"), "canary").unwrap();
        Self { harness, work, beside }
    }

    /// In the workspace, where the sandbox permits a command to create it.
    fn mark(&self) -> PathBuf {
        self.work.join("mark")
    }

    fn call(&self, args: &[&str]) -> Output {
        self.harness.run(&[&["call", "rehearsal", "--cwd", self.work.to_str().unwrap()], args].concat())
    }

    fn file_tools(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_file-tools"));
        command
            .env_clear()
            .env("FILE_TOOLS_ROOT", &self.work)
            .current_dir(&self.work)
            .args(args)
            .output()
            .unwrap()
    }

    fn refused(&self, args: &[&str], code: &str) {
        let output = self.file_tools(args);
        assert!(!output.status.success() && stderr(&output).contains(code), "{args:?}: {output:?}");
        assert!(!stdout(&output).contains("canary"), "{output:?}");
    }
}

#[test]
fn known_sandbox_escapes_are_blocked() {
    for (numbers, what, attempt) in HOLES {
        println!("{}: {what}", numbers.join(", "));
        attempt(&Ground::new());
    }
}

/// Checks every string of a caller, through the tools, the command line and the file tools; without a sandbox, which would mask a defect.
fn metacharacters(ground: &Ground) {
    let mark = ground.mark();
    let tricks = [
        "$(touch MARK)",
        "`touch MARK`",
        "; touch MARK;",
        "| touch MARK",
        "&& touch MARK",
        "'; touch MARK; '",
        "\"; touch MARK; \"",
        "\ntouch MARK\n",
        "--flag=$(touch MARK)",
    ];
    let mut host = TestHost::start(ground.harness.command(&["mcp"]));
    host.initialize();
    let names = [
        "prompt",
        "model",
        "task_name",
        "system_prompt",
        "agent_name",
        "resume_session_id",
        "idempotency_key",
        "mode",
        "policy",
        "network",
        "cwd",
    ];
    let mut asked = 0;
    for trick in tricks.map(|trick| trick.replace("MARK", mark.to_str().unwrap())) {
        for name in names {
            let mut arguments = json!({ "prompt": "hi", "cwd": ground.work, "policy": "off" });
            arguments[name] = json!(trick);
            arguments["allowed_tools"] = json!([trick]);
            asked += 1;
            host.request(asked, "tools/call", &json!({ "name": "call_rehearsal", "arguments": arguments }));
            while host.receive()["id"] != asked {}
        }
        ground.call(&[&trick, "--policy", "off", "--task", &trick, "--model", &trick]);
        ground.file_tools(&[ground.work.to_str().unwrap(), "read", &trick]);
        ground.file_tools(&[ground.work.to_str().unwrap(), "search", &trick, "--glob", &trick]);
        assert!(!mark.exists(), "{trick}");
    }
}

/// An agent that runs git in its workspace, as all agents do.
fn hostile_repository(ground: &Ground) {
    let init = Command::new("git").args(["init", "-q"]).current_dir(&ground.work).status();
    if !init.is_ok_and(|init| init.success()) {
        println!("  SKIPPED: there is no git");
        return;
    }
    let trap = format!("\n[core]\n\tfsmonitor = \"touch {}; false\"\n", ground.mark().display());
    let config = ground.work.join(".git/config");
    fs::write(&config, fs::read_to_string(&config).unwrap() + &trap).unwrap();
    let program = ground.harness.scratch().join("claude");
    let script = "#!/bin/sh\ncase \"$*\" in *--help*) echo '  --setting-sources <x>  y\n  --strict-mcp-config  y';; *--version*) echo '2.1.325 (Claude Code)';; *) git status;; esac\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let call = |policy: &str| {
        let work = ground.work.to_str().unwrap();
        let args = ["call", "claude", "hi", "--cwd", work, "--direct", "--policy", policy];
        let path = std::env::var_os("PATH").unwrap();
        ground
            .harness
            .command(&args)
            .env("PATH", path)
            .env("SWITCHBOARD_PROGRAMS_CLAUDE", &program)
            .output()
            .unwrap()
    };
    let output = call("workspace");
    assert!(!ground.mark().exists(), "{output:?}");
    // The trap is real.
    let output = call("off");
    assert!(ground.mark().exists(), "{output:?}");
}

/// Workspace settings are ignored unless the caller trusts them. With the real claude a key was sent and now is
/// not: `a_hostile_workspace_gets_no_key_and_runs_nothing`.
fn workspace_settings(ground: &Ground) {
    let said = stdout(&ground.call(&["@rehearse args"]));
    let args: Vec<String> =
        serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(args.iter().any(|arg| arg == "--setting-sources=user"), "{args:?}");
    assert!(args.iter().any(|arg| arg == "--strict-mcp-config"), "{args:?}");
    let said = stdout(&ground.call(&["@rehearse args", "--trust-workspace"]));
    assert!(said.contains("--setting-sources=user,project,local"), "{said}");
}

/// The agent changes its directory and reports another one as its own.
fn chosen_directory(ground: &Ground) {
    let elsewhere = ground.beside.join("written");
    let prompt = format!(
        "@rehearse write {} x\n@rehearse write ../ws-secret/written x\n@rehearse answer done",
        elsewhere.display()
    );
    let output = ground.call(&[&prompt]);
    held(&output, !elsewhere.exists());
    for root in ["/", "..", ground.beside.to_str().unwrap()] {
        ground.refused(&[root, "read", "key"], "path_outside_workspace");
    }
}

fn link_out(ground: &Ground) {
    symlink(&ground.beside, ground.work.join("link")).unwrap();
    symlink(ground.beside.join("key"), ground.work.join("file")).unwrap();
    let work = ground.work.to_str().unwrap();
    for path in ["link/key", "file", "link/../link/key"] {
        ground.refused(&[work, "read", path], "path_outside_workspace");
    }
    ground.refused(&[work, "write", "link/new", "--content", "x"], "path_outside_workspace");
    let output = ground.call(&["@rehearse write link/new x\n@rehearse write file x"]);
    let untouched = fs::read_to_string(ground.beside.join("key")).unwrap() == "canary";
    held(&output, untouched && !ground.beside.join("new").exists());
}

fn sibling(ground: &Ground) {
    let (work, beside) = (ground.work.to_str().unwrap(), ground.beside.join("key"));
    for path in ["../ws-secret/key", beside.to_str().unwrap(), "../ws/../ws-secret/key"] {
        ground.refused(&[work, "read", path], "path_outside_workspace");
    }
    ground.refused(&[ground.beside.to_str().unwrap(), "read", "key"], "path_outside_workspace");
    let output = ground.call(&[&format!("@rehearse write {} x", ground.beside.join("new").display())]);
    held(&output, !ground.beside.join("new").exists());
}

/// The answer must report the gaps of a kernel without the mechanisms.
fn held(output: &Output, held: bool) {
    let said = stderr(output);
    assert!(said.contains("policy: workspace ("), "{output:?}");
    assert!(held || said.contains("NOT enforced: writes"), "{output:?}");
}

/// A page with DNS rebinding has neither the token nor the host name.
fn rebinding(ground: &Ground) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    ground.harness.configure(&format!("[http]\naddress = \"127.0.0.1:{port}\"\n"));
    let _daemon = ground.harness.daemon();
    let token = fs::read_to_string(ground.harness.state().join("http-token")).unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let own = format!("127.0.0.1:{port}");
    let ask =
        |host: &str, origin: Option<&str>, token: Option<&str>| posted(port, host, origin, token, &hello);
    assert_eq!(ask(&own, None, Some(token.trim())), 200, "who has both is served");
    for host in
        ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example", "localhost.evil.example"]
    {
        assert_eq!(ask(host, None, Some(token.trim())), 403, "{host}");
    }
    for origin in ["http://evil.example", &format!("http://evil.example:{port}"), "null"] {
        assert_eq!(ask(&own, Some(origin), Some(token.trim())), 403, "{origin}");
    }
    for wrong in [None, Some("guessed")] {
        assert_eq!(ask(&own, None, wrong), 401, "{wrong:?}");
    }
}

/// Returns the HTTP status of a request.
fn posted(port: u16, host: &str, origin: Option<&str>, token: Option<&str>, body: &Value) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let origin = origin.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let body = body.to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {host}\r\n{origin}{token}Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    std::str::from_utf8(&status[9..]).unwrap().parse().unwrap()
}
