//! An agent that runs its commands through its client: the daemon, the supervisor, the sandbox and the installed `terminal-host`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::harness::{Harness, stdout};
use crate::restricted::can_confine;

/// Installs the scripted agent as `kimi`, in a directory that only its own exposure shows in the sandbox.
fn install_kimi(harness: &Harness) {
    let program = harness.scratch().join("kimi");
    fs::write(&program, format!("#!/bin/sh\nexec {} --as acp\n", env!("CARGO_BIN_EXE_rehearsal"))).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    harness.configure(&format!("[programs]\nkimi = \"{}\"\n", program.display()));
}

fn call(harness: &Harness, args: &[&str]) -> Output {
    let work = harness.work();
    harness.run(&[&["call", "kimi", "--cwd", work.to_str().unwrap()], args].concat())
}

#[test]
fn agent_without_a_shell_runs_commands_in_the_sandbox() {
    if !can_confine() {
        return;
    }
    let harness = Harness::new();
    install_kimi(&harness);
    let outside = harness.scratch().join("outside");
    let script = format!(
        "@rehearse terminal echo HI > inside; echo out > {}\n@rehearse answer Done.",
        outside.display()
    );
    let output = call(&harness, &["--require", &script]);
    assert_eq!(stdout(&output), "Done.\n", "{output:?}");
    assert_eq!(fs::read_to_string(harness.work().join("inside")).unwrap(), "HI\n", "{output:?}");
    assert!(!outside.exists());
}

#[test]
fn agent_without_a_shell_runs_commands_without_a_sandbox() {
    let harness = Harness::new();
    install_kimi(&harness);
    let script = "@rehearse terminal echo HI > inside\n@rehearse answer Done.";
    let output = call(&harness, &["--policy", "off", script]);
    assert_eq!(stdout(&output), "Done.\n", "{output:?}");
    assert_eq!(fs::read_to_string(harness.work().join("inside")).unwrap(), "HI\n");
}
