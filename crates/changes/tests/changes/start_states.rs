//! Worktrees that differ from HEAD before the job starts.

use std::fs;

use crate::fixture::Project;

#[test]
fn unstaged_edit_of_user_is_not_a_change() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("a.txt", "edited\n");
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn staged_edit_of_user_is_not_a_change() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("a.txt", "edited\n");
    project.git(["add", "a.txt"]);
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn edit_on_top_of_unstaged_edit_is_listed_alone() {
    let project = Project::new(&[("a.txt", "1\n2\n3\n")]);
    project.write("a.txt", "1\nuser\n3\n");
    let changes = project.record_job(|| project.write("a.txt", "1\nuser\n3\njob\n"));
    assert_eq!(changes, ["modified a.txt +1 -0"]);
    project.undo();
    assert_eq!(project.read("a.txt"), "1\nuser\n3\n");
}

#[test]
fn edit_on_top_of_staged_edit_is_listed_alone() {
    let project = Project::new(&[("a.txt", "1\n2\n3\n")]);
    project.write("a.txt", "1\nstaged\n3\n");
    project.git(["add", "a.txt"]);
    project.write("a.txt", "1\nstaged\n3\nunstaged\n");
    let changes = project.record_job(|| project.write("a.txt", "1\nstaged\n3\nunstaged\njob\n"));
    assert_eq!(changes, ["modified a.txt +1 -0"]);
    project.undo();
    assert_eq!(project.read("a.txt"), "1\nstaged\n3\nunstaged\n");
}

#[test]
fn job_that_reverts_edit_of_user_is_listed() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("a.txt", "edited\n");
    assert_eq!(project.record_job(|| project.write("a.txt", "a\n")), ["modified a.txt +1 -1"]);
    project.undo();
    assert_eq!(project.read("a.txt"), "edited\n");
}

#[test]
fn file_deleted_by_user_is_not_a_change() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.remove("a.txt");
    project.git(["rm", "-q", "--cached", "b.txt"]);
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn file_deleted_by_user_and_created_by_job_is_added() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.remove("a.txt");
    assert_eq!(project.record_job(|| project.write("a.txt", "a\n")), ["added a.txt +1 -0"]);
    project.undo();
    assert!(!project.exists("a.txt"));
}

#[test]
fn untracked_file_of_user_is_not_a_change() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "b\n");
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn untracked_file_modified_by_job_is_modified() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "b\n");
    assert_eq!(project.record_job(|| project.write("b.txt", "b\nc\n")), ["modified b.txt +1 -0"]);
    project.undo();
    assert_eq!(project.read("b.txt"), "b\n");
}

#[test]
fn untracked_file_deleted_by_job_is_restored() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "b\n");
    assert_eq!(project.record_job(|| project.remove("b.txt")), ["deleted b.txt +0 -1"]);
    project.undo();
    assert_eq!(project.read("b.txt"), "b\n");
}

#[test]
fn untracked_file_added_to_index_by_job_is_no_change() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "b\n");
    assert!(project.record_job(|| project.commit("all")).is_empty());
}

#[test]
fn merge_conflict_at_start_is_not_a_change() {
    let project = conflicted_project();
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn resolved_conflict_is_a_change_and_is_undone() {
    let project = conflicted_project();
    let conflicted = project.read("a.txt");
    assert_eq!(project.record_job(|| project.write("a.txt", "both\n")), ["modified a.txt +1 -5"]);
    project.undo();
    assert_eq!(project.read("a.txt"), conflicted);
}

fn conflicted_project() -> Project {
    let project = Project::new(&[("a.txt", "base\n")]);
    project.git(["switch", "-q", "-c", "other"]);
    project.write("a.txt", "other\n");
    project.commit("other");
    project.git(["switch", "-q", "main"]);
    project.write("a.txt", "main\n");
    project.commit("main");
    let merge = crate::fixture::git_command(&project.worktree).args(["merge", "-q", "other"]).output();
    assert!(!merge.unwrap().status.success());
    project
}

#[test]
fn intent_to_add_is_not_a_change() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "b\n");
    project.git(["add", "-N", "b.txt"]);
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn edit_of_file_with_intent_to_add_is_modified() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "b\n");
    project.git(["add", "-N", "b.txt"]);
    assert_eq!(project.record_job(|| project.write("b.txt", "c\n")), ["modified b.txt +1 -1"]);
    project.undo();
    assert_eq!(project.read("b.txt"), "b\n");
}

#[test]
fn edit_of_assume_unchanged_file_is_listed() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.git(["update-index", "--assume-unchanged", "a.txt"]);
    assert_eq!(project.record_job(|| project.write("a.txt", "changed\n")), ["modified a.txt +1 -1"]);
    project.undo();
    assert_eq!(project.read("a.txt"), "a\n");
}

#[test]
fn edit_of_skip_worktree_file_is_listed() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.git(["update-index", "--skip-worktree", "a.txt"]);
    assert_eq!(project.record_job(|| project.write("a.txt", "changed\n")), ["modified a.txt +1 -1"]);
}

#[test]
fn file_ignored_before_but_not_after_is_not_listed() {
    let project = Project::new(&[(".gitignore", "secret\n")]);
    project.write("secret", "user\n");
    let changes = project.record_job(|| project.write(".gitignore", ""));
    assert_eq!(changes, ["modified .gitignore +0 -1"]);
    project.undo();
    assert_eq!(project.read("secret"), "user\n");
}

#[test]
fn file_ignored_before_survives_deletion_of_rules() {
    let project = Project::new(&[("d/.gitignore", "secret\n"), ("d/a", "a\n")]);
    project.write("d/secret", "user\n");
    project.record_job(|| {
        project.remove("d/.gitignore");
        project.remove("d/a");
    });
    project.undo();
    assert_eq!(project.read("d/secret"), "user\n");
}

#[test]
fn file_ignored_after_but_not_before_is_kept_in_record() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("b.txt", "user\n");
    let changes = project.record_job(|| {
        project.write(".gitignore", "b.txt\n");
        project.write("b.txt", "job\n");
    });
    assert_eq!(changes, ["added .gitignore +1 -0", "modified b.txt +1 -1"]);
    project.undo();
    assert_eq!(project.read("b.txt"), "user\n");
}

#[test]
fn stale_index_times_are_not_changes() {
    let project = Project::empty();
    for number in 0..100 {
        project.write(format!("f{number}"), format!("{number}\n"));
    }
    project.commit("many");
    for number in 0..100 {
        let path = project.path(format!("f{number}"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, format!("{number}\n")).unwrap();
    }
    assert_eq!(project.record_job(|| project.write("f7", "new\n")), ["modified f7 +1 -1"]);
}

#[test]
fn subdirectory_finds_the_whole_repository() {
    let project = Project::new(&[("a.txt", "a\n"), ("d/e/b.txt", "b\n")]);
    let found = changes::GitRepository::find(&project.path("d/e")).unwrap().unwrap();
    assert_eq!(found.worktree(), project.worktree);
}
