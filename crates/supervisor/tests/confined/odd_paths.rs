//! Paths that are not UTF-8 or contain control characters: they are protected, moved and reported like all others.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use model::{End, RunState};
use rustix::process::{Pid, Signal, kill_process};
use testkit::eventually_async;

use crate::harness::{Harness, confined};
use crate::quarantine::names;

testkit::tests![
    path_that_is_not_utf8_is_moved_and_named,
    path_that_is_not_utf8_is_named_after_a_killed_supervisor,
    workspace_with_a_repository_that_is_not_utf8_is_protected,
];

/// Creates a directory with a non-UTF-8 name, in a shell script.
const NAME: &str = r"d=$(printf '\377\n\376');";

fn odd_directory(harness: &Harness) -> PathBuf {
    harness.workspace().join(OsStr::from_bytes(b"\xff\n\xfe"))
}

fn path_that_is_not_utf8_is_moved_and_named() {
    Harness::run_test(async |harness: &Harness| {
        let script =
            r#"git init -q "$d" && echo evil > "$d/.git/hooks/pre-commit"; echo x > .envrc; echo $?"#;
        let report = harness.run(&harness.shell(&format!("{NAME} {script}"))).await;
        assert_eq!((&report.end, &*harness.output()), (&End::Exited, "0\n"), "{}", harness.error());
        let git = odd_directory(harness).join(".git");
        assert_eq!(names(&report), [harness.workspace().join(".envrc"), git.clone()]);
        let moved = confined(&report).quarantined[1].moved_to.clone().unwrap();
        assert!(!git.exists() && moved.join("hooks/pre-commit").exists());
        let status = supervisor::Spool::at(harness.spool()).status().unwrap().unwrap();
        assert_eq!(status.state, RunState::Ended(report));
    });
}

fn path_that_is_not_utf8_is_named_after_a_killed_supervisor() {
    Harness::run_test(async |harness: &Harness| {
        let git = odd_directory(harness).join(".git");
        fs::create_dir_all(git.join("hooks")).unwrap();
        fs::write(git.join("config"), "[core]\nbare = false\n").unwrap();
        let script = r#"echo x > "$d/.git/commondir"; echo up; while :; do sleep 1; done"#;
        let run = harness.start(&harness.shell(&format!("{NAME} {script}"))).await;
        harness.wait_for_output("up").await;
        eventually_async("it is moved", async || !git.join("commondir").exists()).await;
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!(names(&report), [git.join("commondir")]);
        assert_eq!(supervisor::recover(&harness.spool()).unwrap(), report);
    });
}

fn workspace_with_a_repository_that_is_not_utf8_is_protected() {
    Harness::run_test(async |harness: &Harness| {
        let made = harness.run(&harness.shell(&format!("{NAME} git init -q \"$d\"; echo $?"))).await;
        assert_eq!((harness.output(), names(&made)), ("0\n".to_owned(), vec![]), "{}", harness.error());
        fs::remove_dir_all(harness.spool()).unwrap();
        let script =
            r#"for name in config hooks/pre-commit; do echo evil > "$d/.git/$name" || echo refused; done"#;
        let report = harness.run(&harness.shell(&format!("{NAME} {script}"))).await;
        assert_eq!(harness.output(), "refused\nrefused\n", "{}{report:?}", harness.error());
        assert!(odd_directory(harness).join(".git").exists());
    });
}
