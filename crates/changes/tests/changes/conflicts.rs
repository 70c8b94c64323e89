//! Conflicts between a restoration and later changes. Nothing is written then.

use std::fs;
use std::path::PathBuf;

use changes::{ConflictReason, Direction, Obstacle, Restoration};

use crate::fixture::Project;

const TEXT: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

/// Records a change of `a.txt` and `other.txt`.
fn changed_project() -> Project {
    let project = Project::new(&[("a.txt", TEXT), ("other.txt", "other\n")]);
    project.record_job(|| {
        project.write("a.txt", TEXT.replace("2\n", "job\n"));
        project.write("other.txt", "job\n");
    });
    project
}

fn at(path: &str, reason: ConflictReason) -> (PathBuf, ConflictReason) {
    (path.into(), reason)
}

#[test]
fn later_edit_of_same_lines_is_a_conflict() {
    let project = changed_project();
    project.write("a.txt", TEXT.replace("2\n", "user\n"));
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [at("a.txt", ConflictReason::SameLines)]);
}

#[test]
fn unaffected_file_is_undone_by_selection() {
    let project = changed_project();
    project.write("a.txt", TEXT.replace("2\n", "user\n"));
    project.try_restore(Direction::Undo, &["other.txt"]).unwrap();
    assert_eq!(project.read("other.txt"), "other\n");
}

#[test]
fn later_deletion_is_a_conflict() {
    let project = changed_project();
    project.remove("a.txt");
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [at("a.txt", ConflictReason::DeletedSince)]);
}

#[test]
fn later_edit_of_added_file_is_a_conflict() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("b.txt", "b\n"));
    project.write("b.txt", "b\nuser\n");
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [at("b.txt", ConflictReason::EditedSince)]);
}

#[test]
fn later_file_at_deleted_path_is_a_conflict() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.record_job(|| project.remove("a.txt"));
    project.write("a.txt", "user\n");
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [at("a.txt", ConflictReason::CreatedSince)]);
}

#[test]
fn later_edit_of_binary_file_is_a_conflict() {
    let project = Project::empty();
    project.write("a.bin", b"\0\x01");
    project.commit("first");
    project.record_job(|| project.write("a.bin", b"\0\x02"));
    project.write("a.bin", b"\0\x03");
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [at("a.bin", ConflictReason::BinaryEdited)]);
}

#[test]
fn directory_at_deleted_path_is_a_conflict() {
    let project = Project::new(&[("a", "a\n"), ("b.txt", "b\n")]);
    project.record_job(|| project.remove("a"));
    project.write("a/user.txt", "user\n");
    let reason = ConflictReason::InTheWay { path: "a".into(), kind: Obstacle::Directory };
    assert_eq!(project.expect_conflicts(Direction::Undo), [at("a", reason)]);
}

#[test]
fn directory_in_place_of_modified_file_is_a_conflict() {
    let project = changed_project();
    project.remove("a.txt");
    fs::create_dir(project.path("a.txt")).unwrap();
    let reason = ConflictReason::InTheWay { path: "a.txt".into(), kind: Obstacle::Directory };
    assert_eq!(project.expect_conflicts(Direction::Undo), [at("a.txt", reason)]);
}

#[test]
fn link_in_place_of_file_is_a_conflict() {
    let project = changed_project();
    let outside = project.root.join("outside");
    fs::write(&outside, "outside\n").unwrap();
    project.remove("a.txt");
    project.link(&outside, "a.txt");
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [at("a.txt", ConflictReason::EditedSince)]);
}

#[test]
fn link_in_place_of_directory_is_a_conflict() {
    let project = Project::new(&[("d/a.txt", "a\n")]);
    project.record_job(|| project.write("d/a.txt", "job\n"));
    fs::rename(project.path("d"), project.root.join("outside")).unwrap();
    project.link(project.root.join("outside"), "d");
    let reason = ConflictReason::InTheWay { path: "d".into(), kind: Obstacle::File };
    assert_eq!(project.expect_conflicts(Direction::Undo), [at("d/a.txt", reason)]);
}

#[test]
fn link_in_place_of_removed_directory_is_a_conflict() {
    let project = Project::new(&[("d/a.txt", "a\n"), ("b.txt", "b\n")]);
    project.record_job(|| fs::remove_dir_all(project.path("d")).unwrap());
    fs::create_dir(project.root.join("outside")).unwrap();
    project.link(project.root.join("outside"), "d");
    let reason = ConflictReason::InTheWay { path: "d".into(), kind: Obstacle::File };
    assert_eq!(project.expect_conflicts(Direction::Undo), [at("d/a.txt", reason)]);
}

#[test]
fn added_file_behind_later_link_is_not_deleted() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("d/b.txt", "b\n"));
    fs::rename(project.path("d"), project.root.join("outside")).unwrap();
    project.link(project.root.join("outside"), "d");
    project.undo();
    assert!(project.root.join("outside/b.txt").exists());
}

#[test]
fn redo_over_later_edit_is_a_conflict() {
    let project = changed_project();
    project.undo();
    project.write("a.txt", TEXT.replace("2\n", "user\n"));
    let conflicts = project.expect_conflicts(Direction::Redo);
    assert_eq!(conflicts, [at("a.txt", ConflictReason::SameLines)]);
}

#[test]
fn conflict_names_the_file_and_the_reason() {
    let project = changed_project();
    project.remove("a.txt");
    let error = project.record.restore(&Restoration::new(Direction::Undo, &[])).unwrap_err();
    assert_eq!(error.to_string(), "cannot restore `a.txt`: deleted since");
}
