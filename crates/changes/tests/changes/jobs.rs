//! Jobs that use git themselves. The change set is about files, not about commits.

use crate::file_tree::read_worktree;
use crate::fixture::Project;

#[test]
fn commit_of_job_is_listed_by_its_files() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let base = project.head();
    let changes = project.record_job(|| {
        project.write("a.txt", "b\n");
        project.commit("job");
    });
    assert_eq!(changes, ["modified a.txt +1 -1"]);
    let change_set = project.finish();
    assert_eq!((change_set.base, change_set.head), (Some(base), Some(project.head())));
}

#[test]
fn head_is_absent_without_a_commit_of_the_job() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("a.txt", "b\n"));
    assert_eq!(project.finish().head, None);
}

#[test]
fn committed_job_is_undone_in_the_worktree() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.assert_round_trip(|| {
        project.write("a.txt", "changed\n");
        project.remove("b.txt");
        project.write("c.txt", "c\n");
        project.commit("job");
    });
}

#[test]
fn switched_branch_is_listed_by_its_files() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.git(["switch", "-q", "-c", "other"]);
    project.write("a.txt", "other\n");
    project.remove("b.txt");
    project.commit("other");
    project.git(["switch", "-q", "main"]);
    let changes = project.record_job(|| drop(project.git(["switch", "-q", "other"])));
    assert_eq!(changes, ["modified a.txt +1 -1", "deleted b.txt +0 -1"]);
}

#[test]
fn stash_of_job_is_listed_by_its_files() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("a.txt", "user\n");
    project.write("new.txt", "user\n");
    let before = read_worktree(&project.worktree);
    let changes = project.record_job(|| drop(project.git(["stash", "-q", "-u"])));
    assert_eq!(changes, ["modified a.txt +1 -1", "deleted new.txt +0 -1"]);
    project.assert_restorable(&before);
}

#[test]
fn undo_survives_gc_after_reset_commit() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("staged.txt", "staged\n");
    project.git(["add", "staged.txt"]);
    project.write("staged.txt", "unstaged\n");
    let before = read_worktree(&project.worktree);
    project.record_job(|| {
        project.write("a.txt", "job\n");
        project.remove("staged.txt");
        project.write("b.txt", "b\n");
        project.commit("job");
    });
    project.git(["update-ref", "-d", "HEAD"]);
    project.git(["reflog", "expire", "--expire=now", "--all"]);
    project.git(["rm", "-q", "-r", "--cached", "."]);
    project.git(["gc", "-q", "--prune=now"]);
    project.assert_restorable(&before);
}

#[test]
fn gc_during_job_does_not_lose_unstaged_edit() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("a.txt", "user\n");
    let before = read_worktree(&project.worktree);
    project.record_job(|| {
        project.write("a.txt", "job\n");
        project.git(["gc", "-q", "--prune=now"]);
    });
    project.assert_restorable(&before);
}

#[test]
fn deleted_index_does_not_matter() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let changes = project.record_job(|| {
        project.remove(".git/index");
        project.write("a.txt", "b\n");
    });
    assert_eq!(changes, ["modified a.txt +1 -1"]);
}
