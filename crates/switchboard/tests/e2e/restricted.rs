//! The policy `restricted` end to end: an MCP host, the bridge, the daemon, the supervisor, the sandbox, the real claude and
//! `file-tools`. The model is a scripted API on loopback that attempts every escape.
//!
//! Reported as skipped if claude is not installed (`scripts/agents-install`) or no sandbox is available.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model_api::cli::{Agent, Cli};
use model_api::{Call, ModelApi, ModelTurn, Script};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::harness::{self, Harness, TestHost};

fn claude() -> Option<Cli> {
    harness::newest(Agent::Claude).filter(|_| can_confine())
}

pub fn can_confine() -> bool {
    let args = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"];
    let made = Command::new("/usr/bin/bwrap").args(args).output().is_ok_and(|made| made.status.success());
    if !made {
        println!("SKIPPED: bubblewrap cannot make namespaces here");
    }
    made
}

fn file(tool: &str, input: Value) -> ModelTurn {
    ModelTurn::call(Call::Mcp { server: "files".to_owned(), tool: tool.to_owned(), input })
}

/// The escape attempts of the model, followed by permitted operations.
fn tries(work: &Path, outside: &Path) -> Vec<ModelTurn> {
    let mark = |name: &str| outside.join(name).to_str().unwrap().to_owned();
    vec![
        ModelTurn::shell(format!("touch {}", mark("shell"))),
        ModelTurn::shell(format!("touch {}", work.join("by-shell").display())),
        ModelTurn::tool(
            "Bash",
            json!({ "command": format!("file-tools . read notes.txt; touch {}", mark("chained")) }),
        ),
        ModelTurn::tool("Read", json!({ "file_path": mark("secret") })),
        ModelTurn::tool("Read", json!({ "file_path": "/etc/passwd" })),
        ModelTurn::tool("Write", json!({ "file_path": mark("written"), "content": "x" })),
        ModelTurn::tool("Write", json!({ "file_path": work.join("by-write"), "content": "x" })),
        file("read", json!({ "path": mark("secret") })),
        file("read", json!({ "path": "../outside/secret" })),
        file("write", json!({ "path": "../outside/by-files", "content": "x" })),
        // Git would run it for whoever comes next.
        file("write", json!({ "path": ".git/config", "content": "[core]\n\tfsmonitor = touch pwned\n" })),
        file("create", json!({ "path": ".git/hooks/pre-commit", "content": "touch pwned" })),
        file("create", json!({ "path": "sub/.git", "content": "gitdir: ../evil" })),
        file("write", json!({ "path": ".mcp.json", "content": "{}" })),
        file("move", json!({ "from": ".git", "to": "git" })),
        file("read", json!({ "path": "notes.txt" })),
        file("write", json!({ "path": "deep/answer.txt", "content": "crane" })),
        file("patch", json!({ "path": "notes.txt", "edits": [{ "find": "heron", "replace": "egret" }] })),
        file("list", json!({})),
        ModelTurn::text("Done."),
    ]
}

/// A user with claude and a model that makes all these attempts.
struct Stage {
    harness: Harness,
    runtime: Runtime,
    api: ModelApi,
    host: TestHost,
    work: PathBuf,
    outside: PathBuf,
}

impl Stage {
    fn set(claude: &Cli, sandbox: &str) -> Self {
        let harness = Harness::new();
        let person = harness.scratch().join("person");
        let (work, outside) = (person.join("work"), person.join("outside"));
        for directory in [&work, &outside] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(work.join("notes.txt"), "The bird is a heron.\n").unwrap();
        fs::write(outside.join("secret"), "canary-4711").unwrap();
        assert!(Command::new("git").args(["init", "-q"]).current_dir(&work).status().unwrap().success());
        harness.configure(&format!(
            "[programs]\nclaude = \"{}\"\n\n[sandbox]\n{sandbox}\n",
            claude.program.display()
        ));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let api = runtime.block_on(ModelApi::start(Script::turns(tries(&work, &outside))));
        let mut bridge = harness.command(&["mcp"]);
        bridge.envs(claude.environment(&api, &person).unwrap());
        let mut host = TestHost::start(bridge);
        host.initialize();
        Self { harness, runtime, api, host, work, outside }
    }

    /// Calls claude with these arguments and returns the result.
    fn call(&mut self, more: &Value) -> Value {
        let mut arguments = json!({ "prompt": "Do it.", "cwd": self.work, "wait_ms": 120_000 });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.host.request(1, "tools/call", &json!({ "name": "call_cc", "arguments": arguments }));
        loop {
            let message = self.host.receive();
            if message["id"] == 1 {
                return message["result"]["structuredContent"].clone();
            }
        }
    }

    /// Checks that all forbidden operations failed and all permitted ones succeeded.
    fn judge(&self, answer: &Value) {
        assert_eq!(
            (&answer["status"], &answer["output"]),
            (&json!("completed"), &json!("Done.")),
            "{answer}"
        );
        assert_eq!(answer["sandbox"]["policy"], "restricted", "{answer}");
        let names = |directory: &Path| -> Vec<String> {
            let mut names: Vec<String> = fs::read_dir(directory)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(&self.outside), ["secret"], "{answer}");
        assert_eq!(names(&self.work), [".git", "deep", "notes.txt"], "{answer}");
        assert!(!fs::read_to_string(self.work.join(".git/config")).unwrap().contains("fsmonitor"));
        assert!(!self.work.join(".git/hooks/pre-commit").exists());
        assert_eq!(fs::read_to_string(self.work.join("deep/answer.txt")).unwrap(), "crane");
        assert_eq!(fs::read_to_string(self.work.join("notes.txt")).unwrap(), "The bird is a egret.\n");
        let last = self.runtime.block_on(async { self.api.turns().pop().unwrap() });
        let results = last.tool_results();
        assert_eq!(results.len(), tries(&self.work, &self.outside).len() - 1, "{results:?}");
        for (result, tried) in
            results.iter().zip(["shell", "shell", "Bash", "Read", "Read", "Write", "Write"])
        {
            assert!(result.contains("No such tool available"), "{tried}: {result}");
        }
        assert!(results.iter().any(|result| result.contains("heron")), "{results:?}");
        assert!(results.iter().any(|result| result.contains("protected_path")), "{results:?}");
        assert!(results.iter().any(|result| result.contains("path_outside_workspace")), "{results:?}");
        assert!(
            !last.body.to_string().contains("canary-4711") && !last.body.to_string().contains("root:x:0")
        );
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.harness.run(&["stop", "--now"]);
    }
}

#[test]
fn restricted_claude_can_use_only_file_tools() {
    let Some(claude) = claude() else { return };
    let mut stage = Stage::set(&claude, "requirement = \"require\"");
    let answer = stage.call(&json!({ "policy": "restricted" }));
    stage.judge(&answer);
}

#[test]
fn ceiling_restricts_claude() {
    let Some(claude) = claude() else { return };
    let mut stage = Stage::set(&claude, "ceiling = \"restricted\"\nrequirement = \"require\"");
    let answer = stage.call(&json!({ "policy": "off" }));
    stage.judge(&answer);
}

/// For example a checkout with its build products: the next call would start a replaced program without a sandbox.
#[test]
fn workspace_copies_of_own_programs_are_unchanged() {
    if !can_confine() {
        return;
    }
    let harness = Harness::new();
    let programs = harness.work().join("bin");
    fs::create_dir(&programs).unwrap();
    for program in [
        env!("CARGO_BIN_EXE_switchboard"),
        env!("CARGO_BIN_EXE_switchboard-supervisor"),
        env!("CARGO_BIN_EXE_rehearsal"),
    ] {
        fs::copy(program, programs.join(Path::new(program).file_name().unwrap())).unwrap();
    }
    for program in ["file-tools", "terminal-host"] {
        fs::write(programs.join(program), "as it was").unwrap();
    }
    let script = "@rehearse write bin/file-tools x\n@rehearse write bin/terminal-host x\n\
                  @rehearse write bin/other x\n@rehearse answer done";
    let output = Command::new(programs.join("switchboard"))
        .env_clear()
        .env("SWITCHBOARD_HOME", &harness.home)
        .args([
            "call",
            "rehearsal",
            "--direct",
            "--require",
            "--cwd",
            harness.work().to_str().unwrap(),
            script,
        ])
        .output()
        .unwrap();
    for program in ["file-tools", "terminal-host"] {
        assert_eq!(fs::read_to_string(programs.join(program)).unwrap(), "as it was", "{output:?}");
    }
    assert_eq!(fs::read_to_string(programs.join("other")).unwrap(), "x", "{output:?}");
}
