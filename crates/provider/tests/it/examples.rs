//! The examples, run as a reader would, with the scripted agent.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::scene::Scene;

crate::tests! {
    the_example_ask_prints_an_answer,
    the_example_stream_prints_what_happens,
    the_example_session_remembers_its_session_across_restarts,
    the_example_restricted_executor_runs,
    restricted_executor_example_runs_or_reports_why_not,
    an_example_without_its_agent_says_what_to_do,
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
pub fn command(scene: &Scene, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(example(name));
    command
        .args(arguments)
        .env_clear()
        .envs(scene.environment())
        .env("TMPDIR", scene.path("spools"))
        .current_dir(scene.path("work"));
    command
}

fn run(scene: &Scene, name: &str, arguments: &[&str]) -> Output {
    command(scene, name, arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}\n{stderr}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn the_example_ask_prints_an_answer() {
    Scene::play(async |scene| {
        let output = run(scene, "ask", &["rehearsal", "What is 2 + 2?"]);
        assert_eq!(said(&output), "You said: What is 2 + 2?\n");
    });
}

fn the_example_stream_prints_what_happens() {
    Scene::play(async |scene| {
        let prompt = "@rehearse say Looking.\n@rehearse tool Bash ls => a\n@rehearse answer Done.";
        let text = said(&run(scene, "stream", &["rehearsal", prompt]));
        for expected in ["Looking.", "· Bash", "Done."] {
            assert!(text.contains(expected), "{text}");
        }
    });
}

fn the_example_session_remembers_its_session_across_restarts() {
    Scene::play(async |scene| {
        let first = said(&run(scene, "session", &["rehearsal", "Hello."]));
        let id = first.lines().find_map(|line| line.strip_prefix("session: ")).unwrap();
        assert!(first.contains("You said: Hello."), "{first}");
        let second = said(&run(scene, "session", &["rehearsal", "@rehearse args", id]));
        assert!(second.contains(&format!("--resume={id}")), "{second}");
    });
}

fn the_example_restricted_executor_runs() {
    Scene::play(async |scene| {
        scene.program("file-tools", "exit 0");
        let work = scene.path("work");
        let text = said(&run(
            scene,
            "restricted_executor",
            &["rehearsal", work.to_str().unwrap(), "@rehearse args"],
        ));
        assert!(text.contains("--tools=") && text.contains("mcp__files__read"), "{text}");
    });
}

fn restricted_executor_example_runs_or_reports_why_not() {
    Scene::play(async |scene| {
        scene.program("file-tools", "exit 0");
        let work = scene.path("work");
        let arguments = ["rehearsal", work.to_str().unwrap(), "@rehearse args", "by-shell"];
        let output = run(scene, "restricted_executor", &arguments);
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

fn an_example_without_its_agent_says_what_to_do() {
    Scene::play(async |scene| {
        std::fs::remove_file(scene.path("bin/rehearsal")).unwrap();
        let output = run(scene, "ask", &["rehearsal", "Hello."]);
        assert!(!output.status.success());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("rehearsal CLI not found in PATH") && stderr.contains("hint: "), "{stderr}");
    });
}

fn first_program_of_the_documents_runs_as_written() {
    Scene::play(async |scene| {
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
        scene.program("claude", &body);
        assert_eq!(said(&run(scene, "hello", &[])), "You said: What is 2 + 2?\n");
    });
}
