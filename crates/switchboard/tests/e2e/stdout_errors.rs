//! Commands whose stdout is not writable.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::harness::{Harness, stderr, stdout};

/// Runs with a full stdout (`/dev/full`).
fn on_a_full_disk(harness: &Harness, args: &[&str]) -> Output {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    harness.command(args).stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

/// Runs with a closed stdout.
fn closed(harness: &Harness, args: &[&str]) -> Output {
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().env("SWITCHBOARD_HOME", &harness.home).stdin(Stdio::null());
    shell
        .args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_switchboard")])
        .args(args)
        .output()
        .unwrap()
}

fn assert_told(args: &[&str], output: &Output, because: &str) {
    let aside = stderr(output);
    assert_eq!(output.status.code(), Some(10), "{args:?}: {aside}");
    let told = format!("error: cannot write to stdout\n  because: {because}");
    assert!(aside.contains(&told), "{args:?}: {aside}");
}

#[test]
fn every_command_reports_unwritable_stdout() {
    let harness = Harness::new();
    let id = stdout(&harness.run(&["call", "rehearsal", "--background", "Hello"])).trim().to_owned();
    assert_eq!(harness.run(&["wait", &id]).status.code(), Some(0));
    let commands: [&[&str]; 27] = [
        &["call", "rehearsal", "Hello"],
        &["call", "rehearsal", "Hello", "--json"],
        &["call", "rehearsal", "Hello", "--events"],
        &["call", "rehearsal", "Hello", "--background"],
        &["call", "rehearsal", "Hello", "--direct"],
        &["call", "rehearsal", "Hello", "--direct", "--json"],
        &["jobs"],
        &["jobs", "--json"],
        &["jobs", "--watch"],
        &["status"],
        &["status", &id],
        &["logs", &id],
        &["logs", &id, "--raw"],
        &["logs", &id, "-f", "--json"],
        &["wait", &id],
        &["wait", &id, "--json"],
        &["retry", &id],
        &["stats"],
        &["stats", "--json"],
        &["config"],
        &["config", "--reference"],
        &["man"],
        &["completions", "bash"],
        &["setup", "service"],
        &["--help"],
        &["call", "--help"],
        &["--version"],
    ];
    for args in commands {
        assert_told(args, &on_a_full_disk(&harness, args), "No space left on device");
        assert_told(args, &closed(&harness, args), "Bad file descriptor");
    }
}

#[test]
fn unwritable_stdout_error_names_result_copy() {
    let harness = Harness::new();
    for more in [&[][..], &["--json"], &["--background"]] {
        let aside = stderr(&on_a_full_disk(&harness, &[&["call", "rehearsal", "Hello"], more].concat()));
        let (_, after) = aside.rsplit_once("`switchboard logs ").unwrap();
        let (id, _) = after.split_once('`').unwrap();
        assert_eq!(stdout(&harness.run(&["logs", "-f", id])), "You said: Hello\n", "{aside}");
    }
    let aside = stderr(&on_a_full_disk(&harness, &["call", "rehearsal", "Hello", "--direct"]));
    let (_, after) = aside.split_once("the agent's output is in `").unwrap();
    let printed = fs::read_to_string(after.split_once('`').unwrap().0).unwrap();
    assert!(printed.contains("You said: Hello"), "{printed}");
}

#[test]
fn broken_pipe_is_not_a_failure() {
    let harness = Harness::new();
    let prompt = "@rehearse say one\n@rehearse delay 200ms\n@rehearse say two\n@rehearse answer done";
    let mut call = harness.command(&["call", "rehearsal", prompt]);
    let mut call = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(call.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = call.wait_with_output().unwrap();
    assert_eq!((line.as_str(), output.status.code()), ("one\n", Some(0)), "{output:?}");
    assert!(!stderr(&output).contains("error:"), "{output:?}");
}

#[test]
fn unwritable_state_directory_has_own_exit_code() {
    let harness = Harness::new();
    harness.daemon();
    // As on a full disk: the first thing that is written of a call.
    let environments = harness.state().join("environments");
    fs::remove_dir_all(&environments).unwrap();
    fs::write(&environments, "").unwrap();
    let output = harness.run(&["call", "rehearsal", "hello"]);
    assert_eq!(output.status.code(), Some(10), "{output:?}");
    assert!(stderr(&output).contains("cannot use the state directory"), "{output:?}");
    assert_eq!(stdout(&harness.run(&["jobs"])), "no jobs\n");
}
