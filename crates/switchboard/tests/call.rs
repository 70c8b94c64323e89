//! The installed programs together: a call placed by a person, with the real executables.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

fn switchboard(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchboard"));
    command.env_clear().env("SWITCHBOARD_HOME", home.path()).args(args).stdin(Stdio::null());
    command
}

fn call(home: &TempDir, args: &[&str]) -> Output {
    switchboard(home, &[&["call", "rehearsal"], args].concat()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_answer_is_on_stdout_and_the_rest_on_stderr() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["Hello"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "You said: Hello\n");
    assert!(stderr(&output).contains("nothing is left running"), "{output:?}");
}

#[test]
fn the_prompt_can_come_from_stdin() {
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
fn what_the_agent_leaves_behind_is_ended_and_counted() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["@rehearse spawn daemon\n@rehearse spawn setsid\n@rehearse answer done"]);
    assert!(stderr(&output).contains("2 processes that it left behind were ended"), "{output:?}");
}

#[test]
fn every_end_has_its_exit_code() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(call(&home, &["@rehearse exit 7"]).status.code(), Some(1));
    assert_eq!(call(&home, &["  "]).status.code(), Some(2));
    assert_eq!(call(&home, &["hi", "--cwd", "/nowhere"]).status.code(), Some(2));
    assert_eq!(call(&home, &["hi", "--timeout", "soon"]).status.code(), Some(2));
    assert_eq!(call(&home, &["@rehearse hang", "--timeout", "300ms"]).status.code(), Some(3));
}

#[test]
fn a_mistake_names_the_thing_and_the_remedy() {
    let home = tempfile::tempdir().unwrap();
    let output = call(&home, &["hi", "--cwd", "/nowhere"]);
    let text = stderr(&output);
    assert!(text.starts_with("error: cannot work in `/nowhere`\n"), "{text}");
    assert!(text.contains("because: No such file"), "{text}");
    assert!(text.contains("hint: give a folder that exists"), "{text}");
    assert!(!home.path().join("state").exists(), "nothing is placed");
}

#[test]
fn without_a_home_it_says_what_to_set() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchboard"));
    let output = command.env_clear().args(["call", "rehearsal", "hi"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("SWITCHBOARD_HOME"), "{output:?}");
}

#[test]
fn ctrl_c_cancels_the_call_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let pids = home.path().join("pids");
    let prompt = format!(
        "@rehearse pidfile {}\n@rehearse spawn setsid\n@rehearse say up\n@rehearse hang",
        pids.display()
    );
    let mut child = switchboard(&home, &["call", "rehearsal", &prompt])
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
fn a_supervisor_without_a_spool_says_who_starts_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_switchboard-supervisor")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("hint: this program is started by Switchboard"), "{output:?}");
}

#[test]
fn the_scripted_agent_is_installed_with_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_rehearsal")).arg("--version").output().unwrap();
    assert_eq!(output.stdout, format!("rehearsal {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
}
