//! Agents that run their commands through the client, which is `terminal-host`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use agent_run::RunFollower;
use model::{AgentEvent, CallPolicy, FailureKind, Policy, PolicyContext, Preset, ToolOutput};
use tempfile::TempDir;

use crate::Test;
use crate::harness::{ACP, Conversation, Ended, LiveProtocol, read_to_end};

pub const TESTS: &[Test] = &[
    ("command_in_a_terminal_is_reported", ACP, command_in_a_terminal_is_reported),
    ("client_without_terminals_rejects_a_command", ACP, client_without_terminals_rejects_a_command),
    ("output_is_found_by_its_terminal", ACP, output_is_found_by_its_terminal),
    ("hosted_agent_answers_like_any_other", ACP, hosted_agent_answers_like_any_other),
    ("exit_of_a_hosted_agent_is_its_own", ACP, exit_of_a_hosted_agent_is_its_own),
    ("stopped_run_leaves_no_command", ACP, stopped_run_leaves_no_command),
    ("confined_command_writes_only_in_the_workspace", ACP, confined_command_writes_only_in_the_workspace),
    ("stopped_confined_run_leaves_no_command", ACP, stopped_confined_run_leaves_no_command),
];

fn hosted(protocol: LiveProtocol, script: impl Into<String>) -> Conversation {
    Conversation { has_terminals: true, ..Conversation::new(protocol, script) }
}

/// Confines a conversation to a workspace.
fn confined(workspace: &Path, conversation: Conversation) -> Conversation {
    let context = PolicyContext {
        workspaces: vec![workspace.to_owned()],
        hosted_program: Some(std::env::current_exe().unwrap()),
        ..PolicyContext::default()
    };
    let policy = CallPolicy::from(Preset::Workspace).confine(&context).unwrap();
    assert_ne!(policy, Policy::Off);
    Conversation { policy, cwd: workspace.to_owned(), ..conversation }
}

/// Returns a directory that is visible in a sandbox, and a workspace in it.
fn directories() -> (TempDir, PathBuf) {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let workspace = directory.path().canonicalize().unwrap().join("workspace");
    fs::create_dir(&workspace).unwrap();
    (directory, workspace)
}

/// Returns the results of the tools, with their exit codes.
fn results(ended: &Ended) -> Vec<(String, bool, Option<i32>)> {
    let results = ended.events.iter().filter_map(|event| match event {
        AgentEvent::ToolResult { output: ToolOutput::Text(text), is_error, exit_code, .. } => {
            Some((text.to_string(), *is_error, *exit_code))
        }
        _ => None,
    });
    results.collect()
}

fn command_in_a_terminal_is_reported(protocol: LiveProtocol) {
    let ended = hosted(protocol, "terminal echo HI; exit 3\nterminal printf ok\nanswer Done.").end();
    assert_eq!(ended.answer(), "Done.");
    let expected = [("HI\n".to_owned(), true, None), ("ok".to_owned(), false, None)];
    assert_eq!(results(&ended), expected);
    assert!(
        !ended.input.contains("terminalId"),
        "the driver sees no request for a terminal: {}",
        ended.input
    );
}

fn client_without_terminals_rejects_a_command(protocol: LiveProtocol) {
    let ended = Conversation::new(protocol, "terminal echo HI\nanswer Done.").end();
    let expected = ("this client has no method `terminal/create`".to_owned(), true, None);
    assert_eq!(results(&ended), [expected]);
}

/// Some agents report a command only by the id of its terminal.
fn output_is_found_by_its_terminal(protocol: LiveProtocol) {
    let update = r#"raw {"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"failed","rawInput":{},"content":[{"type":"terminal","terminalId":"terminal-1"}]}}}"#;
    let ended = hosted(protocol, format!("terminal echo HI; exit 3\n{update}\nanswer Done.")).end();
    assert_eq!(results(&ended)[1], ("HI\n".to_owned(), true, Some(3)));
}

fn hosted_agent_answers_like_any_other(protocol: LiveProtocol) {
    let text = "The quick brown fox. ".repeat(150_000);
    let script = "garbage utf8\nraw not json\nflood stdout 3MB\nask Bash ls => a b\nstdin-bytes";
    let steps: usize = script.lines().map(|step| "@rehearse \n".len() + step.len()).sum();
    let length = text.len() + "\n".len() + steps;
    let ended = Conversation { text, ..hosted(protocol, script) }.end();
    assert_eq!(ended.answer(), length.to_string());
    assert_eq!(ended.end.early_stop, None, "the agent exits at the end of its input");
}

fn exit_of_a_hosted_agent_is_its_own(protocol: LiveProtocol) {
    let ended = hosted(protocol, "say Half of\nexit 3").end();
    assert!(ended.failure().1.contains("exit code 3"), "{ended:?}");
    let ended = hosted(protocol, "say Half of\nsignal KILL").end();
    assert_eq!(*ended.failure().0, FailureKind::Killed { signal: 9 }, "{ended:?}");
}

/// Runs a command that holds a FIFO open together with its descendants, stops the run, and waits for the end of the FIFO.
fn stop_with_a_command(workspace: &Path, conversation: &Conversation) {
    let fifo = workspace.join("fifo");
    let end = conversation.end_with(async |run, patience| {
        let (path, stop) = (fifo.clone(), run.clone());
        // Opening blocks until the command opens it, too.
        let reading = tokio::task::spawn_blocking(move || {
            let mut fifo = BufReader::new(File::open(&path).unwrap());
            let mut first = String::new();
            fifo.read_line(&mut first).unwrap();
            stop.stop().unwrap();
            fifo.read_to_string(&mut first).unwrap();
            first
        });
        let mut follower = RunFollower::new(&run, conversation.agent(), Some(patience)).unwrap();
        let mut events = Vec::new();
        let end = read_to_end(&mut follower, &mut events).await;
        assert_eq!(reading.await.unwrap(), "started\n");
        (end, events)
    });
    assert!(results(&end).is_empty(), "{end:?}");
}

fn holder(workspace: &Path) -> String {
    let fifo = workspace.join("fifo");
    #[expect(clippy::disallowed_methods, reason = "a test may")]
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    format!("terminal exec 3>{}; setsid sleep 1000 & sleep 1000 & echo started >&3; wait", fifo.display())
}

fn stopped_run_leaves_no_command(protocol: LiveProtocol) {
    let (_directory, workspace) = directories();
    stop_with_a_command(&workspace, &hosted(protocol, holder(&workspace)));
}

fn stopped_confined_run_leaves_no_command(protocol: LiveProtocol) {
    let (_directory, workspace) = directories();
    let conversation = confined(&workspace, hosted(protocol, holder(&workspace)));
    stop_with_a_command(&workspace, &conversation);
}

fn confined_command_writes_only_in_the_workspace(protocol: LiveProtocol) {
    let (directory, workspace) = directories();
    let script = "terminal echo in > inside; echo out > ../outside\nanswer Done.";
    let ended = confined(&workspace, hosted(protocol, script)).end();
    assert_eq!(ended.answer(), "Done.");
    assert_eq!(fs::read_to_string(workspace.join("inside")).unwrap(), "in\n");
    assert!(!directory.path().join("outside").exists());
    assert!(results(&ended)[0].1, "{ended:?}");
}
