//! The order and the repetition of the steps, and their errors.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use changes::{ChangesError, ConflictReason, Direction, Restoration, RestoreError};

use crate::fixture::{LIMIT, Project, describe, open_record, run_test_in_process};

const ROOT: &str = "CHANGES_TEST_ROOT";

#[test]
fn second_begin_keeps_the_first_snapshot() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.begin();
    project.write("a.txt", "b\n");
    project.begin();
    assert_eq!(describe(&project.finish()), ["modified a.txt +1 -1"]);
}

#[test]
fn interrupted_begin_is_begun_anew() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.begin();
    let record = project.root.join("record");
    fs::remove_file(record.join("begin.json")).unwrap();
    fs::write(record.join("user.index"), "partial").unwrap();
    fs::write(record.join("before.index"), "partial").unwrap();
    fs::write(record.join("git/config"), "[partial").unwrap();
    fs::create_dir_all(record.join("scratch/ignored")).unwrap();
    fs::write(record.join("begin.json.new"), "{").unwrap();
    project.write("a.txt", "user\n");
    assert_eq!(project.record_job(|| project.write("a.txt", "job\n")), ["modified a.txt +1 -1"]);
    project.undo();
    assert_eq!(project.read("a.txt"), "user\n");
}

#[test]
fn second_finish_replaces_the_first() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| {
        project.write("a.txt", "b\n");
        project.write("c.txt", "c\n");
    });
    project.write("a.txt", "a\n");
    project.write("d.txt", "d\n");
    assert_eq!(describe(&project.finish()), ["added c.txt +1 -0", "added d.txt +1 -0"]);
    project.undo();
    assert!(!project.exists("c.txt") && !project.exists("d.txt"));
}

#[test]
fn repeated_finish_gives_the_same_change_set() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "b\n");
    project.begin();
    project.write("a.txt", "changed\n");
    project.write("b.txt", "changed\n");
    let (first, patch) = (project.finish(), project.patch(&[]));
    assert_eq!(project.finish(), first);
    assert_eq!(project.patch(&[]), patch);
}

#[test]
fn interrupted_finish_is_repeated() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("a.txt", "b\n"));
    let record = project.root.join("record");
    fs::remove_file(record.join("changes.json")).unwrap();
    fs::write(record.join("after.index"), "partial").unwrap();
    fs::create_dir_all(record.join("scratch/compare")).unwrap();
    fs::write(record.join("scratch/compare/before"), "partial").unwrap();
    assert_eq!(describe(&project.finish()), ["modified a.txt +1 -1"]);
}

#[test]
fn finish_without_begin_is_an_error() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let error = project.record.finish(LIMIT, &[]).unwrap_err();
    assert!(matches!(error, ChangesError::NotStarted { .. }), "{error:?}");
}

#[test]
fn read_before_finish_is_none() {
    let project = Project::new(&[("a.txt", "a\n")]);
    assert_eq!(project.record.read().unwrap(), None);
    project.begin();
    assert_eq!(project.record.read().unwrap(), None);
}

#[test]
fn patch_before_finish_is_an_error() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.begin();
    let error = project.record.patch(&[]).unwrap_err();
    assert!(matches!(error, ChangesError::NotFinished { .. }), "{error:?}");
}

#[test]
fn restore_before_finish_is_an_error() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.begin();
    let error = project.record.restore(&Restoration::new(Direction::Undo, &[])).unwrap_err();
    assert!(matches!(error, RestoreError::Changes(ChangesError::NotFinished { .. })), "{error:?}");
}

#[test]
fn unknown_path_is_an_error() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("a.txt", "b\n"));
    let error = project.record.patch(&[PathBuf::from("b.txt")]).unwrap_err();
    assert_eq!(error.to_string(), "no change of `b.txt` is recorded");
}

#[test]
fn damaged_record_is_reported() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.begin();
    fs::write(project.root.join("record/begin.json"), "{").unwrap();
    let error = project.record.finish(LIMIT, &[]).unwrap_err();
    assert!(matches!(error, ChangesError::DamagedRecord { .. }), "{error:?}");
}

#[test]
fn missing_worktree_is_reported() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.begin();
    fs::rename(&project.worktree, project.root.join("moved")).unwrap();
    let error = project.record.finish(LIMIT, &[]).unwrap_err();
    assert!(matches!(error, ChangesError::WorktreeMissing { .. }), "{error:?}");
}

#[test]
fn missing_git_is_reported() {
    if let Some(root) = std::env::var_os(ROOT) {
        let project = Project::open(root.into());
        let error = project.record.begin(&project.repository(), LIMIT).unwrap_err();
        assert!(matches!(error, ChangesError::GitMissing { .. }), "{error:?}");
        return;
    }
    let project = Project::new(&[("a.txt", "a\n")]);
    let variables = [(ROOT, project.root.as_os_str()), ("PATH", OsStr::new("/nonexistent"))];
    run_test_in_process("steps::missing_git_is_reported", &variables);
}

#[test]
fn record_inside_of_worktree_is_not_listed() {
    let mut project = Project::new(&[("a.txt", "a\n")]);
    project.record = open_record(project.path(".record/job"));
    project.write(".record/other", "of the user\n");
    assert_eq!(project.record_job(|| project.write("a.txt", "b\n")), ["modified a.txt +1 -1"]);
    project.undo();
    assert_eq!(project.read("a.txt"), "a\n");
}

#[test]
fn two_records_do_not_disturb_each_other() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    let other = open_record(project.root.join("record-of-other-job"));
    project.begin();
    project.write("a.txt", "job\n");
    other.begin(&project.repository(), LIMIT).unwrap();
    project.write("b.txt", "other\n");
    assert_eq!(describe(&other.finish(LIMIT, &[]).unwrap()), ["modified b.txt +1 -1"]);
    assert_eq!(describe(&project.finish()), ["modified a.txt +1 -1", "modified b.txt +1 -1"]);
}

#[test]
fn file_in_two_records_is_shared() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n"), ("c.txt", "c\n")]);
    project.begin();
    project.write("a.txt", "first\n");
    let other = open_record(project.root.join("other"));
    other.begin(&project.repository(), LIMIT).unwrap();
    project.write("b.txt", "either\n");
    project.rename("c.txt", "d.txt");
    other.finish(LIMIT, &[]).unwrap();
    let changes = project.record.finish(LIMIT, &[other]).unwrap();
    let shared: Vec<bool> = changes.files.iter().map(|file| file.shared).collect();
    assert_eq!((describe(&changes).len(), shared), (3, vec![false, true, true]));
}

#[test]
fn shared_file_is_undone_only_if_it_is_named() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.begin();
    let other = open_record(project.root.join("other"));
    other.begin(&project.repository(), LIMIT).unwrap();
    project.write("a.txt", "either\n");
    other.finish(LIMIT, &[]).unwrap();
    project.write("b.txt", "first\n");
    project.record.finish(LIMIT, &[other]).unwrap();
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [(PathBuf::from("a.txt"), ConflictReason::Shared)]);
    project.try_restore(Direction::Undo, &["a.txt"]).unwrap();
    assert_eq!(project.undo().len(), 2);
    assert_eq!((project.read("a.txt"), project.read("b.txt")), ("a\n".to_owned(), "b\n".to_owned()));
}

#[test]
fn begin_is_given_up_at_its_time_limit() {
    let project = Project::new(&[("a.txt", "a\n")]);
    // Git waits for a writer of the FIFO.
    rustix::fs::mkfifoat(rustix::fs::CWD, project.path(".gitignore"), 0o600.into()).unwrap();
    let limit = Duration::from_millis(300);
    let error = project.record.begin(&project.repository(), limit).unwrap_err();
    assert!(matches!(error, ChangesError::TimedOut { .. }), "{error:?}");
    assert!(matches!(project.record.finish(LIMIT, &[]), Err(ChangesError::NotStarted { .. })));
    assert!(!project.root.join("record/git").exists());
}

#[test]
fn sealed_record_keeps_its_changes_and_is_small() {
    let project = Project::empty();
    for number in 0..2_000 {
        project.write(format!("file-with-a-long-name-{number}"), format!("{number}\n"));
    }
    project.commit("many");
    project.record_job(|| project.write("a.txt", "a\n"));
    project.record.seal().unwrap();
    project.write("later.txt", "user\n");
    assert_eq!(describe(&project.record.finish(LIMIT, &[]).unwrap()), ["added a.txt +1 -0"]);
    let size: u64 = crate::file_tree::read_exact(&project.root.join("record"), |_| false)
        .values()
        .map(|node| u64::try_from(node.content.len()).unwrap())
        .sum();
    assert!(size < 20_000, "{size} bytes");
    project.undo();
    assert!(!project.exists("a.txt"));
}
