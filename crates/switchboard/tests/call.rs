//! The installed programs together: a call without the daemon (`--direct`), with the real executables.
//! Calls through the daemon are in `tests/e2e/calls.rs`.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::is_running;

use tempfile::TempDir;

fn switchboard(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchboard"));
    command.env_clear().env("SWITCHBOARD_HOME", home.path()).args(args).stdin(Stdio::null());
    if args.first() == Some(&"call") {
        command.arg("--direct");
    }
    command
}

fn call(home: &TempDir, args: &[&str]) -> Output {
    switchboard(home, &[&["call", "rehearsal"], args].concat()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn only_answer_is_on_stdout() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["Hello"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "You said: Hello\n");
    assert!(stderr(&output).contains("\ncompleted in "), "{output:?}");
}

#[test]
fn prompt_is_read_from_stdin() {
    let home = tempfile::tempdir().unwrap();
    let mut child: Child = switchboard(&home, &["call", "rehearsal", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"--help is text").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "You said: --help is text\n");
}

#[test]
fn endless_prompt_is_read_only_up_to_the_limit() {
    let home = tempfile::tempdir().unwrap();
    let mut child: Child = switchboard(&home, &["call", "rehearsal", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The write fails when the program has exited without reading all of it.
    let part = vec![b'x'; 1 << 20];
    let accepted = (0..64).take_while(|_| stdin.write_all(&part).is_ok()).count();
    drop(stdin);
    assert!(accepted < 13, "{accepted} MiB");
    let output = child.wait_with_output().unwrap();
    let said = stderr(&output);
    assert!(
        said.contains("the prompt has more than 10485760 bytes, and rehearsal takes 10485760 bytes"),
        "{said}"
    );
}

#[test]
fn leftover_processes_are_killed_and_counted() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["@rehearse spawn daemon\n@rehearse spawn setsid\n@rehearse answer done"]);
    assert!(
        stderr(&output).contains("note: 2 processes that the agent left running were killed"),
        "{output:?}"
    );
}

#[test]
fn killed_call_leaves_no_process() {
    let home = tempfile::tempdir().unwrap();
    let pids = home.path().join("pids");
    let prompt = format!(
        "@rehearse pidfile {}\n@rehearse spawn setsid ignore-term\n@rehearse say up\n@rehearse hang",
        pids.display()
    );
    let mut program = switchboard(&home, &["call", "rehearsal", "--policy", "off", &prompt])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "up\n");
    let descendant: i32 = fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
    assert!(is_running(descendant));
    program.kill().unwrap();
    program.wait().unwrap();
    let patience = Instant::now() + Duration::from_secs(30);
    while is_running(descendant) {
        assert!(Instant::now() < patience, "{descendant} outlives the program that was killed");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_outcome_has_its_exit_code() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(call(&home, &["@rehearse exit 7"]).status.code(), Some(1));
    assert_eq!(call(&home, &["  "]).status.code(), Some(2));
    assert_eq!(call(&home, &["hi", "--cwd", "/nowhere"]).status.code(), Some(9));
    assert_eq!(call(&home, &["hi", "--timeout", "soon"]).status.code(), Some(2));
    assert_eq!(call(&home, &["@rehearse hang", "--timeout", "300ms"]).status.code(), Some(3));
}

#[test]
fn storage_failures_have_own_exit_code() {
    let home = tempfile::tempdir().unwrap();
    // A file that may not grow any further fails like a disk without room.
    let script = "ulimit -f 1000; exec \"$0\" call rehearsal --direct '@rehearse flood stdout 2MB'";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_switchboard")]);
    let output = shell.env_clear().env("SWITCHBOARD_HOME", home.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(10), "{}", stderr(&output));
    assert!(stderr(&output).contains("(spool_failed)"), "{}", stderr(&output));
    let blocked = tempfile::tempdir().unwrap();
    fs::write(blocked.path().join("state"), "a file, not a directory").unwrap();
    for direct in [&[][..], &["--direct"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_switchboard"));
        let command = command.env_clear().env("SWITCHBOARD_HOME", blocked.path());
        let output = command.args(["call", "rehearsal", "hi"]).args(direct).output().unwrap();
        assert_eq!(output.status.code(), Some(10), "{}", stderr(&output));
    }
}

#[test]
fn failure_has_kind_message_and_hint() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["@rehearse fail auth"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("(auth)"), "{text}");
    assert!(text.contains("because: ") && text.contains("hint: "), "{text}");
}

#[test]
fn exit_without_result_is_failure() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["@rehearse say half an answer\n@rehearse cut", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["verdict"]["kind"], "invalid_output");
    assert_eq!(outcome["text"], "half an answer");
}

#[test]
fn events_are_json_lines_ending_with_outcome() {
    let home = tempfile::tempdir().unwrap();
    let prompt =
        "@rehearse think hm\n@rehearse tool Bash ls => a\n@rehearse garbage json\n@rehearse answer done";
    let output = call(&home, &[prompt, "--events"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    for kind in ["session_started", "thinking", "tool_use", "tool_result", "unreadable", "text", "finished"] {
        assert!(kinds.contains(&kind), "{kind} is missing in {kinds:?}");
    }
    assert_eq!(lines.last().unwrap()["text"], "done");
}

#[test]
fn named_session_is_resumed() {
    let home = tempfile::tempdir().unwrap();
    let id = "0190a3b4-0000-4000-8000-000000000001";
    let output = call(&home, &["hi", "--session", id, "--json"]);
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["session"], id);
    assert_eq!(call(&home, &["hi", "--session", id, "--continue"]).status.code(), Some(2));
    assert_eq!(call(&home, &["hi", "--session=-p"]).status.code(), Some(2));
}

#[test]
fn missing_agent_error_has_install_hint() {
    let home = tempfile::tempdir().unwrap();
    let output = switchboard(&home, &["call", "claude", "hi"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(text.contains("claude CLI not found in PATH"), "{text}");
    assert!(text.contains("hint: install it with `npm install -g @anthropic-ai/claude-code`"), "{text}");
}

/// Creates an agent program that prints a recorded transcript.
fn playing_back(home: &TempDir, agent: &str, transcript: &str) -> Output {
    // Not below the configuration, which agents do not see.
    let programs = tempfile::tempdir().unwrap();
    let bin = programs.path().join("bin");
    fs::create_dir(&bin).unwrap();
    // Beside the program, where its sandbox shows it wherever this checkout is.
    let recorded = bin.join("recorded");
    let transcripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agents/transcripts");
    fs::copy(transcripts.join(transcript).join("stdout"), &recorded).unwrap();
    let recorded = recorded.display();
    // What a confined claude must be able to do.
    let help = "  --setting-sources <list>  x\n  --strict-mcp-config  x";
    let script =
        format!("#!/bin/sh\ncase \"$*\" in *--help*) echo '{help}';; *) exec /bin/cat {recorded};; esac\n");
    fs::write(bin.join(agent), script).unwrap();
    fs::set_permissions(bin.join(agent), fs::Permissions::from_mode(0o755)).unwrap();
    switchboard(home, &["call", agent, "hi"]).env("PATH", &bin).output().unwrap()
}

#[test]
fn answer_of_every_agent_is_printed_once() {
    for (agent, transcript) in [
        ("claude", "claude-2.1.325/new-session"),
        ("codex", "codex-0.166.0/new-session"),
        ("gemini", "gemini-0.61.0/new-session"),
    ] {
        let output = playing_back(&tempfile::tempdir().unwrap(), agent, transcript);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "Hello from the model.\n", "{agent}: {output:?}");
    }
}

#[test]
fn doctor_fails_if_no_agent_is_ready() {
    let home = tempfile::tempdir().unwrap();
    let output = switchboard(&home, &["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    for agent in ["claude: not ready", "codex: not ready", "gemini: not ready"] {
        assert!(text.contains(agent), "{text}");
    }
}

/// Creates a `claude` that answers the checks of the doctor, and runs the doctor.
fn doctor_with_claude_in(home: &TempDir, bin: &Path) -> Output {
    fs::create_dir_all(bin).unwrap();
    let script = "#!/bin/sh\ncase $1 in --version) echo '2.1.325 (Claude Code)';; *) echo '  --session-id <uuid>  x';; esac\n";
    fs::write(bin.join("claude"), script).unwrap();
    fs::set_permissions(bin.join("claude"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut doctor = switchboard(home, &["doctor", "--json"]);
    doctor.env("PATH", bin).env("ANTHROPIC_API_KEY", "canary-4711").output().unwrap()
}

#[test]
fn doctor_predicts_claude_root_rejection() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("config.toml"), "[sandbox]\npolicy = \"off\"\n").unwrap();
    let output = doctor_with_claude_in(&home, &home.path().join("bin"));
    let is_root = rustix::process::geteuid().is_root();
    let predicted =
        String::from_utf8_lossy(&output.stdout).contains("as root, claude runs only in a sandbox");
    assert_eq!(predicted, is_root, "{output:?}");
    assert_eq!(output.status.success(), !is_root, "{output:?}");
}

#[test]
fn doctor_predicts_hidden_program() {
    let home = tempfile::tempdir().unwrap();
    let output = doctor_with_claude_in(&home, &home.path().join("state/bin"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("which is hidden from sandboxed agents"),
        "{output:?}"
    );
}

#[test]
fn doctor_finds_agent_version() {
    let home = tempfile::tempdir().unwrap();
    let bin = home.path().join("bin");
    let output = doctor_with_claude_in(&home, &bin);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("canary-4711"));
    let checkup: serde_json::Value = serde_json::from_str(&text).unwrap();
    let claude = &checkup["agents"][0];
    assert_eq!(claude["agent"], "claude");
    assert_eq!(claude["program"], bin.join("claude").to_str().unwrap());
    assert_eq!(claude["version"], "2.1.325");
    assert_eq!(claude["standing"], "tested");
    assert_eq!(claude["login"], "by_variable");
}

#[test]
fn usage_error_has_hint() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["hi", "--cwd", "/nowhere"]);
    let text = stderr(&output);
    assert!(text.starts_with("error: cannot use directory `/nowhere`\n"), "{text}");
    assert!(text.contains("because: No such file"), "{text}");
    assert!(text.contains("hint: pass an existing directory"), "{text}");
    assert!(!home.path().join("state").exists(), "nothing is placed");
}

#[test]
fn direct_call_without_home_names_variable() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchboard"));
    let output = command.env_clear().args(["call", "rehearsal", "--direct", "hi"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("SWITCHBOARD_HOME"), "{output:?}");
}

#[test]
fn ctrl_c_cancels_call_and_leaves_no_process() {
    let home = tempfile::tempdir().unwrap();
    let pids = home.path().join("pids");
    let prompt = format!(
        "@rehearse pidfile {}\n@rehearse spawn setsid\n@rehearse say up\n@rehearse hang",
        pids.display()
    );
    // Without a namespace of its own, so that the number it writes down is this machine's.
    let mut child = switchboard(&home, &["call", "rehearsal", &prompt, "--policy", "off"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let pid = fs::read_to_string(&pids).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the descendant {pid} is alive");
}

#[test]
fn supervisor_without_spool_explains_itself() {
    let output = Command::new(env!("CARGO_BIN_EXE_switchboard-supervisor")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("hint: this program is started by Switchboard"), "{output:?}");
}

#[test]
fn rehearsal_is_installed() {
    let output = Command::new(env!("CARGO_BIN_EXE_rehearsal")).arg("--version").output().unwrap();
    assert_eq!(output.stdout, format!("rehearsal {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
}
