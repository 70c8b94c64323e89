//! Undo and redo of each kind of change.

use std::fs;

use changes::{Direction, RestoreAction, RestoredFile};

use crate::file_tree::{assert_same_tree, read_worktree};
use crate::fixture::Project;

const TEXT: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

fn restored(path: &str, what: RestoreAction) -> RestoredFile {
    RestoredFile { path: path.into(), what, reason: None }
}

#[test]
fn undo_removes_added_file() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.assert_round_trip(|| project.write("b.txt", "b\n"));
}

#[test]
fn undo_restores_modified_file() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.assert_round_trip(|| project.write("a.txt", "b\n"));
}

#[test]
fn undo_restores_deleted_file() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.assert_round_trip(|| project.remove("a.txt"));
}

#[test]
fn undo_moves_renamed_file_back() {
    let project = Project::new(&[("a.txt", TEXT)]);
    project.assert_round_trip(|| project.rename("a.txt", "d/b.txt"));
}

#[test]
fn undo_restores_executable_bit() {
    let project = Project::new(&[("run.sh", "#!/bin/sh\n"), ("plain", "x\n")]);
    project.set_mode("plain", 0o755);
    project.commit("executable");
    project.assert_round_trip(|| {
        project.set_mode("run.sh", 0o755);
        project.set_mode("plain", 0o644);
    });
}

#[test]
fn undo_keeps_other_mode_bits() {
    let project = Project::new(&[("a.txt", "a\n"), ("run.sh", "a\n")]);
    project.set_mode("a.txt", 0o640);
    project.set_mode("run.sh", 0o750);
    project.assert_round_trip(|| {
        project.write("a.txt", "b\n");
        project.write("run.sh", "b\n");
    });
    assert_eq!((project.mode("a.txt"), project.mode("run.sh")), (0o640, 0o750));
}

#[test]
fn undo_restores_file_in_place_of_link() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.assert_round_trip(|| {
        project.remove("a.txt");
        project.link("b.txt", "a.txt");
    });
}

#[test]
fn undo_restores_link_in_place_of_file() {
    let project = Project::new(&[("b.txt", "b\n")]);
    project.link("b.txt", "a.txt");
    project.commit("link");
    project.assert_round_trip(|| {
        project.remove("a.txt");
        project.write("a.txt", "a\n");
    });
}

#[test]
fn undo_restores_binary_file() {
    let project = Project::empty();
    project.write("a.bin", b"\0\x01\r\n\x02");
    project.commit("first");
    project.assert_round_trip(|| project.write("a.bin", b"\0\xff"));
}

#[test]
fn undo_restores_directory_in_place_of_file() {
    let project = Project::new(&[("d/a.txt", "a\n"), ("d/e/b.txt", "b\n")]);
    project.assert_round_trip(|| {
        fs::remove_dir_all(project.path("d")).unwrap();
        project.write("d", "file\n");
    });
}

#[test]
fn undo_restores_file_in_place_of_directory() {
    let project = Project::new(&[("d", "file\n")]);
    project.assert_round_trip(|| {
        project.remove("d");
        project.write("d/a.txt", "a\n");
        project.write("d/e/b.txt", "b\n");
    });
}

#[test]
fn undo_restores_directory_in_place_of_link() {
    let project = Project::new(&[("d/a.txt", "a\n"), ("e/a.txt", "e\n")]);
    project.assert_round_trip(|| {
        fs::remove_dir_all(project.path("d")).unwrap();
        project.link("e", "d");
    });
    assert_eq!(project.read("e/a.txt"), "e\n");
}

#[test]
fn undo_restores_swapped_files() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.assert_round_trip(|| {
        project.rename("a.txt", "c.txt");
        project.rename("b.txt", "a.txt");
        project.rename("c.txt", "b.txt");
    });
}

#[test]
fn undo_removes_directories_of_job() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.assert_round_trip(|| project.write("x/y/z/b.txt", "b\n"));
}

#[test]
fn undo_keeps_directory_with_later_file() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("x/b.txt", "b\n"));
    project.write("x/user.txt", "user\n");
    project.undo();
    assert_eq!(project.read("x/user.txt"), "user\n");
}

#[test]
fn undo_keeps_empty_directory_of_user() {
    let project = Project::new(&[("a.txt", "a\n")]);
    fs::create_dir(project.path("mine")).unwrap();
    project.assert_round_trip(|| project.write("mine/b.txt", "b\n"));
}

#[test]
fn undo_reports_its_actions() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n"), ("c.txt", "c\n")]);
    project.record_job(|| {
        project.write("a.txt", "job\n");
        project.remove("b.txt");
        project.write("c.txt", "job\n");
        project.write("d.txt", "job\n");
    });
    project.write("c.txt", "c\n");
    let expected = [
        restored("a.txt", RestoreAction::Written),
        restored("b.txt", RestoreAction::Written),
        restored("c.txt", RestoreAction::AlreadySo),
        restored("d.txt", RestoreAction::Deleted),
    ];
    assert_eq!(project.undo(), expected);
}

#[test]
fn second_undo_changes_nothing() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| {
        project.write("a.txt", "job\n");
        project.write("d/b.txt", "b\n");
    });
    project.undo();
    let undone = read_worktree(&project.worktree);
    assert!(project.undo().iter().all(|file| file.what == RestoreAction::AlreadySo));
    assert_same_tree(&undone, &read_worktree(&project.worktree), "second undo");
}

#[test]
fn undo_of_selected_file_keeps_the_others() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.record_job(|| {
        project.write("a.txt", "job\n");
        project.write("b.txt", "job\n");
    });
    project.try_restore(Direction::Undo, &["a.txt"]).unwrap();
    assert_eq!((project.read("a.txt"), project.read("b.txt")), ("a\n".into(), "job\n".into()));
}

#[test]
fn undo_of_selected_directory_keeps_the_others() {
    let project = Project::new(&[("d/a.txt", "a\n"), ("dd.txt", "b\n")]);
    project.record_job(|| {
        project.write("d/a.txt", "job\n");
        project.write("d/new/c.txt", "job\n");
        project.write("dd.txt", "job\n");
    });
    project.try_restore(Direction::Undo, &["./d/"]).unwrap();
    assert_eq!((project.read("d/a.txt"), project.read("dd.txt")), ("a\n".into(), "job\n".into()));
    assert!(!project.exists("d/new"));
}

#[test]
fn undo_by_old_name_restores_renamed_file() {
    let project = Project::new(&[("a.txt", TEXT)]);
    project.record_job(|| project.rename("a.txt", "b.txt"));
    project.try_restore(Direction::Undo, &["a.txt"]).unwrap();
    assert!(project.exists("a.txt") && !project.exists("b.txt"));
}

#[test]
fn undo_merges_later_edit_of_other_lines() {
    let project = Project::new(&[("a.txt", TEXT)]);
    project.record_job(|| project.write("a.txt", TEXT.replace("2\n", "job\n")));
    project.write("a.txt", project.read("a.txt").replace("8\n", "user\n"));
    assert_eq!(project.undo(), [restored("a.txt", RestoreAction::Merged)]);
    assert_eq!(project.read("a.txt"), TEXT.replace("8\n", "user\n"));
}

#[test]
fn redo_merges_later_edit_of_other_lines() {
    let project = Project::new(&[("a.txt", TEXT)]);
    project.record_job(|| project.write("a.txt", TEXT.replace("2\n", "job\n")));
    project.undo();
    project.write("a.txt", TEXT.replace("8\n", "user\n"));
    assert_eq!(project.redo(), [restored("a.txt", RestoreAction::Merged)]);
    assert_eq!(project.read("a.txt"), TEXT.replace("2\n", "job\n").replace("8\n", "user\n"));
}

#[test]
fn merge_keeps_crlf() {
    let project = Project::empty();
    project.git(["config", "core.autocrlf", "true"]);
    let text = TEXT.replace('\n', "\r\n");
    project.write("a.txt", &text);
    project.commit("first");
    project.record_job(|| project.write("a.txt", text.replace('2', "job")));
    project.write("a.txt", project.read("a.txt").replace('8', "user"));
    project.undo();
    assert_eq!(project.read("a.txt"), text.replace('8', "user"));
}

#[test]
fn undo_keeps_later_executable_bit() {
    let project = Project::new(&[("a.txt", TEXT)]);
    project.record_job(|| project.write("a.txt", "job\n"));
    project.set_mode("a.txt", 0o755);
    project.undo();
    assert_eq!((project.read("a.txt"), project.mode("a.txt") & 0o100), (TEXT.into(), 0o100));
}

#[test]
fn undo_of_file_that_user_deleted_too_succeeds() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("b.txt", "b\n"));
    project.remove("b.txt");
    assert_eq!(project.undo(), [restored("b.txt", RestoreAction::AlreadySo)]);
}

#[test]
fn undo_leaves_no_temporary_files() {
    let project = Project::new(&[("a.txt", "a\n"), ("d/b.txt", "b\n")]);
    project.record_job(|| {
        project.write("a.txt", "job\n");
        fs::remove_dir_all(project.path("d")).unwrap();
        project.write("c.txt", "job\n");
    });
    project.undo();
    assert_eq!(project.git(["status", "--porcelain"]), "");
}
