//! The changes of calls in git repositories at the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{Harness, stdout};

fn git(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("git");
    command.current_dir(directory).args(["-c", "user.name=Ana", "-c", "user.email=ana@example.org"]);
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// Creates a repository with one committed file.
fn create_repository(harness: &Harness) -> PathBuf {
    let work = harness.work();
    fs::write(work.join("a.txt"), "first\n").unwrap();
    git(&work, &["init", "-q"]);
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-q", "-m", "first"]);
    work
}

/// Runs a command in the repository, with git in the PATH.
fn run(harness: &Harness, args: &[&str]) -> Output {
    let mut command = harness.command(args);
    command.current_dir(harness.work()).env("PATH", "/usr/local/bin:/usr/bin:/bin").output().unwrap()
}

/// Places a call that writes files, and returns its id and its stderr.
fn call(harness: &Harness, script: &str) -> (String, String) {
    let script = format!("@rehearse {}\n", script.replace('\n', "\n@rehearse "));
    let output = run(harness, &["call", "rehearsal", "--policy", "off", &script]);
    assert!(output.status.success(), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let id = stderr.lines().find_map(|line| line.strip_prefix("job: ")).unwrap().to_owned();
    (id, stderr)
}

#[test]
fn closing_lines_and_status_name_the_changes() {
    let harness = Harness::new();
    create_repository(&harness);
    let (job, stderr) = call(&harness, "write a.txt changed\nwrite b.txt new\nanswer done");
    let line = format!("changed: 2 files (+2 −1); switchboard diff {}", &job[..13]);
    assert!(stderr.lines().any(|found| found == line), "{stderr}");
    let status = stdout(&run(&harness, &["status", &job]));
    assert!(status.lines().any(|found| found == line), "{status}");
    let json: Value = serde_json::from_str(&stdout(&run(&harness, &["status", &job, "--json"]))).unwrap();
    assert_eq!(json["changes"]["files"][1]["path"], "b.txt");
}

#[test]
fn call_without_changes_prints_no_line_about_them() {
    let harness = Harness::new();
    create_repository(&harness);
    let (_, stderr) = call(&harness, "answer done");
    assert!(!stderr.contains("changed"), "{stderr}");
}

#[test]
fn diff_in_a_pipe_is_applied_by_git() {
    let harness = Harness::new();
    let work = create_repository(&harness);
    let (job, _) = call(&harness, "write a.txt changed\nwrite b.txt new\nanswer done");
    let patch = run(&harness, &["diff", &job]).stdout;
    git(&work, &["checkout", "-q", "a.txt"]);
    fs::remove_file(work.join("b.txt")).unwrap();
    fs::write(harness.scratch().join("patch"), patch).unwrap();
    git(&work, &["apply", "../patch"]);
    assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "changed");
    assert_eq!(fs::read_to_string(work.join("b.txt")).unwrap(), "new");
}

#[test]
fn diff_on_a_terminal_is_colored_and_sanitized() {
    let harness = Harness::new();
    create_repository(&harness);
    let (job, _) = call(&harness, "write a.txt x\u{1b}]0;title\u{7}y\u{1b}[2J\nanswer done");
    let shown = stdout(&run(&harness, &["diff", &job, "--color", "always"]));
    assert!(
        shown.contains("\u{1b}[31m-first\u{1b}[0m\n")
            && shown.contains("\u{1b}[32m+x␛]0;title␇y␛[2J\u{1b}[0m\n"),
        "{shown:?}"
    );
    let raw = stdout(&run(&harness, &["diff", &job]));
    assert!(raw.contains("+x\u{1b}]0;title"), "{raw:?}");
}

#[test]
fn diff_stat_lists_the_selected_files() {
    let harness = Harness::new();
    fs::create_dir(create_repository(&harness).join("d")).unwrap();
    let (job, _) = call(&harness, "write a.txt changed\nwrite d/b.txt new\nanswer done");
    let listed = stdout(&run(&harness, &["diff", &job, "--stat", "d"]));
    assert_eq!(listed, "CHANGE  LINES  FILE\nadded   +1 −0  d/b.txt\n1 file (+1 −0)\n");
}

#[test]
fn diff_rejects_a_file_that_the_job_did_not_change() {
    let harness = Harness::new();
    create_repository(&harness);
    let (job, _) = call(&harness, "write a.txt changed\nanswer done");
    let output = run(&harness, &["diff", &job, "missing"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no change of `missing`"), "{stderr}");
}

#[test]
fn undo_and_redo_restore_the_files() {
    let harness = Harness::new();
    let work = create_repository(&harness);
    let (job, _) = call(&harness, "write a.txt changed\nwrite b.txt new\nanswer done");
    assert_eq!(stdout(&run(&harness, &["undo", &job])), "restored: a.txt\ndeleted: b.txt\n");
    assert_eq!(git(&work, &["status", "--porcelain"]).stdout, b"");
    assert_eq!(stdout(&run(&harness, &["undo", "--redo", &job])), "restored: a.txt\nrestored: b.txt\n");
    assert_eq!(fs::read_to_string(work.join("b.txt")).unwrap(), "new");
}

#[test]
fn undo_with_conflicts_lists_them_and_fails() {
    let harness = Harness::new();
    let work = create_repository(&harness);
    let (job, _) = call(&harness, "write a.txt changed\nwrite b.txt new\nanswer done");
    fs::write(work.join("a.txt"), "mine\n").unwrap();
    let output = run(&harness, &["undo", &job]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("`a.txt`: edited since in the same or adjacent lines"), "{stderr}");
    assert!(work.join("b.txt").exists());
}

#[test]
fn job_outside_of_git_has_no_diff() {
    let harness = Harness::new();
    let (job, _) = call(&harness, "write a.txt changed\nanswer done");
    let output = run(&harness, &["diff", &job]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("has no recorded changes"), "{stderr}");
}

#[test]
fn git_worktree_is_unchanged_by_a_call_that_writes_nothing() {
    let harness = Harness::new();
    let work = create_repository(&harness);
    let times = || {
        let index = fs::metadata(work.join(".git/index")).unwrap();
        (index.modified().unwrap(), fs::read_dir(work.join(".git")).unwrap().count())
    };
    let before = times();
    call(&harness, "answer done");
    assert_eq!(times(), before);
    let fsck =
        Command::new("git").current_dir(&work).args(["fsck", "--strict"]).stdout(Stdio::null()).status();
    assert!(fsck.unwrap().success());
}
