//! Paths with names that are not UTF-8 or contain control characters: they are protected, moved and named like all others.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use model::{End, RunState};
use rustix::process::{Pid, Signal, kill_process};

use crate::quarantine::names;
use crate::scene::{Scene, confined, eventually};

crate::tests![
    path_that_is_not_utf8_is_moved_and_named,
    path_that_is_not_utf8_is_named_after_a_killed_supervisor,
    workspace_with_a_repository_that_is_not_utf8_is_protected,
];

/// Names a directory that is not UTF-8, in a shell script.
const NAME: &str = r"d=$(printf '\377\n\376');";

fn odd_directory(scene: &Scene) -> PathBuf {
    scene.workspace().join(OsStr::from_bytes(b"\xff\n\xfe"))
}

fn path_that_is_not_utf8_is_moved_and_named() {
    Scene::play(async |scene: &Scene| {
        let script =
            r#"git init -q "$d" && echo evil > "$d/.git/hooks/pre-commit"; echo x > .envrc; echo $?"#;
        let report = scene.run(&scene.shell(&format!("{NAME} {script}"))).await;
        assert_eq!((&report.end, &*scene.output()), (&End::Exited, "0\n"), "{}", scene.error());
        let git = odd_directory(scene).join(".git");
        assert_eq!(names(&report), [scene.workspace().join(".envrc"), git.clone()]);
        let moved = confined(&report).quarantined[1].moved_to.clone().unwrap();
        assert!(!git.exists() && moved.join("hooks/pre-commit").exists());
        let status = supervisor::Spool::at(scene.spool()).status().unwrap().unwrap();
        assert_eq!(status.state, RunState::Ended(report));
    });
}

fn path_that_is_not_utf8_is_named_after_a_killed_supervisor() {
    Scene::play(async |scene: &Scene| {
        let git = odd_directory(scene).join(".git");
        fs::create_dir_all(git.join("hooks")).unwrap();
        fs::write(git.join("config"), "[core]\nbare = false\n").unwrap();
        let script = r#"echo x > "$d/.git/commondir"; echo up; while :; do sleep 1; done"#;
        let run = scene.start(&scene.shell(&format!("{NAME} {script}"))).await;
        scene.says("up").await;
        eventually("it is moved", || !git.join("commondir").exists()).await;
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!(names(&report), [git.join("commondir")]);
        assert_eq!(supervisor::recover(&scene.spool()).unwrap(), report);
    });
}

fn workspace_with_a_repository_that_is_not_utf8_is_protected() {
    Scene::play(async |scene: &Scene| {
        let made = scene.run(&scene.shell(&format!("{NAME} git init -q \"$d\"; echo $?"))).await;
        assert_eq!((scene.output(), names(&made)), ("0\n".to_owned(), vec![]), "{}", scene.error());
        fs::remove_dir_all(scene.spool()).unwrap();
        let script =
            r#"for name in config hooks/pre-commit; do echo evil > "$d/.git/$name" || echo refused; done"#;
        let report = scene.run(&scene.shell(&format!("{NAME} {script}"))).await;
        assert_eq!(scene.output(), "refused\nrefused\n", "{}{report:?}", scene.error());
        assert!(odd_directory(scene).join(".git").exists());
    });
}
