//! The examples, run as a reader would, with the scripted agent.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::harness::Harness;

crate::tests! {
    ask_example_prints_an_answer,
    stream_example_prints_events,
    session_example_resumes_after_a_restart,
    restricted_executor_example_runs,
    restricted_executor_example_runs_or_reports_why_not,
    example_without_agent_prints_a_hint,
    first_program_of_the_documents_runs_as_written,
}

/// Returns the example's executable, which cargo builds with the tests.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let program = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(program.exists(), "build it first: cargo build -p provider --examples");
    program
}

/// Returns the command of an example.
pub fn command(harness: &Harness, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(example(name));
    command
        .args(arguments)
        .env_clear()
        .envs(harness.environment())
        .env("TMPDIR", harness.path("spools"))
        .current_dir(harness.path("work"));
    command
}

fn run(harness: &Harness, name: &str, arguments: &[&str]) -> Output {
    command(harness, name, arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}\n{stderr}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn ask_example_prints_an_answer() {
    Harness::run(async |harness| {
        let output = run(harness, "ask", &["rehearsal", "What is 2 + 2?"]);
        assert_eq!(said(&output), "You said: What is 2 + 2?\n");
    });
}

fn stream_example_prints_events() {
    Harness::run(async |harness| {
        let prompt = "@rehearse say Looking.\n@rehearse tool Bash ls => a\n@rehearse answer Done.";
        let text = said(&run(harness, "stream", &["rehearsal", prompt]));
        for expected in ["Looking.", "· Bash", "Done."] {
            assert!(text.contains(expected), "{text}");
        }
    });
}

fn session_example_resumes_after_a_restart() {
    Harness::run(async |harness| {
        let first = said(&run(harness, "session", &["rehearsal", "Hello."]));
        let id = first.lines().find_map(|line| line.strip_prefix("session: ")).unwrap();
        assert!(first.contains("You said: Hello."), "{first}");
        let second = said(&run(harness, "session", &["rehearsal", "@rehearse args", id]));
        assert!(second.contains(&format!("--resume={id}")), "{second}");
    });
}

fn restricted_executor_example_runs() {
    Harness::run(async |harness| {
        harness.program("file-tools", "exit 0");
        let work = harness.path("work");
        let text = said(&run(
            harness,
            "restricted_executor",
            &["rehearsal", work.to_str().unwrap(), "@rehearse args"],
        ));
        assert!(text.contains("--tools=") && text.contains("mcp__files__read"), "{text}");
    });
}

fn restricted_executor_example_runs_or_reports_why_not() {
    Harness::run(async |harness| {
        harness.program("file-tools", "exit 0");
        let work = harness.path("work");
        let arguments = ["rehearsal", work.to_str().unwrap(), "@rehearse args", "by-shell"];
        let output = run(harness, "restricted_executor", &arguments);
        if crate::policies::can_confine() {
            let text = said(&output);
            assert!(text.contains("--tools=Bash") && text.contains("Bash(file-tools . read *)"), "{text}");
        } else {
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert!(
                stderr.contains("rehearsal CLI cannot be confined here: ") && stderr.contains("hint: "),
                "{stderr}"
            );
        }
    });
}

fn example_without_agent_prints_a_hint() {
    Harness::run(async |harness| {
        std::fs::remove_file(harness.path("bin/rehearsal")).unwrap();
        let output = run(harness, "ask", &["rehearsal", "Hello."]);
        assert!(!output.status.success());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("rehearsal CLI not found in PATH") && stderr.contains("hint: "), "{stderr}");
    });
}

fn first_program_of_the_documents_runs_as_written() {
    Harness::run(async |harness| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let example = std::fs::read_to_string(format!("{root}/crates/provider/examples/hello.rs")).unwrap();
        for page in ["README.md", "docs/provider.md"] {
            let text = std::fs::read_to_string(format!("{root}/{page}")).unwrap();
            let first = text.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
            assert!(example.ends_with(first), "{page} differs from examples/hello.rs");
        }
        let this = std::env::current_exe().unwrap();
        // The output of the real program.
        let body = format!(
            "case \"$1\" in --version) echo '2.1.325 (Claude Code)'; exit;; --help) \
             printf '  %s <x>\\n' --setting-sources --strict-mcp-config --session-id; exit;; esac\n\
             exec '{}' {} --as claude \"$@\"",
            this.display(),
            rehearsal::CUE
        );
        harness.program("claude", &body);
        assert_eq!(said(&run(harness, "hello", &[])), "You said: What is 2 + 2?\n");
    });
}
