//! Unusual repositories: submodules, nested ones, sparse checkouts and other formats.

use std::fs;
use std::path::PathBuf;

use changes::{ChangesError, ConflictReason, Direction, GitRepository, Restoration};
use model::NotRecorded;

use crate::fixture::{LIMIT, Project};

/// Creates a project with a submodule in `sub`, which has two commits and is at the first one.
fn project_with_submodule() -> (Project, String, String) {
    let project = Project::new(&[("a.txt", "a\n")]);
    let library = project.root.join("library");
    fs::create_dir(&library).unwrap();
    crate::fixture::git_in(&library, ["init", "-q"]);
    let commit = |message: &str| {
        fs::write(library.join("lib.txt"), message).unwrap();
        crate::fixture::git_in(&library, ["add", "-A"]);
        crate::fixture::git_in(&library, ["commit", "-q", "-m", message]);
        crate::fixture::git_in(&library, ["rev-parse", "HEAD"])
    };
    let (first, second) = (commit("one\n"), commit("two\n"));
    project.git(["submodule", "--quiet", "add", "../library", "sub"]);
    crate::fixture::git_in(&project.path("sub"), ["checkout", "-q", &first]);
    project.commit("submodule");
    (project, first, second)
}

#[test]
fn submodule_at_another_commit_is_listed() {
    let (project, first, second) = project_with_submodule();
    let changes = project.record_job(|| {
        crate::fixture::git_in(&project.path("sub"), ["checkout", "-q", &second]);
    });
    assert_eq!(changes, [format!("modified sub {first} to {second}")]);
}

#[test]
fn undo_of_submodule_is_a_conflict() {
    let (project, _, second) = project_with_submodule();
    project.record_job(|| {
        crate::fixture::git_in(&project.path("sub"), ["checkout", "-q", &second]);
    });
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert_eq!(conflicts, [(PathBuf::from("sub"), ConflictReason::Submodule)]);
}

#[test]
fn submodule_moved_by_user_is_not_a_change() {
    let (project, _, second) = project_with_submodule();
    crate::fixture::git_in(&project.path("sub"), ["checkout", "-q", &second]);
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn submodule_without_checkout_is_not_a_change() {
    let (project, ..) = project_with_submodule();
    project.git(["submodule", "--quiet", "deinit", "-f", "sub"]);
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn submodule_checked_out_by_job_is_not_a_change() {
    let (project, ..) = project_with_submodule();
    project.git(["submodule", "--quiet", "deinit", "-f", "sub"]);
    let job = || drop(project.git(["submodule", "--quiet", "update", "--init"]));
    assert!(project.record_job(job).is_empty());
}

#[test]
fn submodule_can_be_a_repository_of_its_own() {
    let (project, ..) = project_with_submodule();
    let found = GitRepository::find(&project.path("sub")).unwrap().unwrap();
    assert_eq!(found.worktree(), project.path("sub"));
    project.guard_all("begin", || project.record.begin(&found, LIMIT)).unwrap();
    project.write("sub/lib.txt", "changed\n");
    let changes = crate::fixture::describe(&project.finish());
    assert_eq!(changes, ["modified lib.txt +1 -1"]);
}

fn create_nested(project: &Project) -> PathBuf {
    let nested = project.path("nested");
    fs::create_dir(&nested).unwrap();
    crate::fixture::git_in(&nested, ["init", "-q"]);
    fs::write(nested.join("x"), "x\n").unwrap();
    crate::fixture::git_in(&nested, ["add", "-A"]);
    crate::fixture::git_in(&nested, ["commit", "-q", "-m", "nested"]);
    nested
}

#[test]
fn nested_repository_created_by_job_is_listed() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let changes = project.record_job(|| drop(create_nested(&project)));
    assert_eq!(changes, ["added nested Repository"]);
}

#[test]
fn undo_of_nested_repository_is_a_conflict() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| drop(create_nested(&project)));
    let reason = ConflictReason::NotRecorded(NotRecorded::Repository);
    assert_eq!(project.expect_conflicts(Direction::Undo), [(PathBuf::from("nested"), reason)]);
}

#[test]
fn nested_repository_of_user_is_not_a_change() {
    let project = Project::new(&[("a.txt", "a\n")]);
    create_nested(&project);
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn commit_in_nested_repository_is_listed() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let nested = create_nested(&project);
    let changes = project.record_job(|| {
        crate::fixture::git_in(&nested, ["commit", "-q", "--allow-empty", "-m", "second"]);
    });
    assert_eq!(changes, ["modified nested Repository"]);
}

fn sparse_project(options: &[&str]) -> Project {
    let project = Project::new(&[("a.txt", "a\n"), ("in/b.txt", "b\n"), ("out/c.txt", "c\n")]);
    project.git(["sparse-checkout", "init", "--cone"].iter().chain(options));
    project.git(["sparse-checkout", "set", "in"]);
    assert!(!project.exists("out"));
    project
}

#[test]
fn files_outside_of_sparse_checkout_are_not_changes() {
    for option in ["--no-sparse-index", "--sparse-index"] {
        let project = sparse_project(&[option]);
        let changes = project.record_job(|| project.write("in/b.txt", "changed\n"));
        assert_eq!(changes, ["modified in/b.txt +1 -1"], "{option}");
    }
}

#[test]
fn file_created_outside_of_sparse_checkout_is_added() {
    for option in ["--no-sparse-index", "--sparse-index"] {
        let project = sparse_project(&[option]);
        project.begin();
        project.write("out/c.txt", "changed\n");
        // Not guarded: git expands a sparse index here, and sets the times of existing trees. So does every `git status`.
        let changes = crate::fixture::describe(&project.record.finish(LIMIT, &[]).unwrap());
        assert_eq!(changes, ["added out/c.txt +1 -0"], "{option}");
        project.undo();
        assert!(!project.exists("out"), "{option}");
    }
}

#[test]
fn edit_with_split_index_is_undone() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.git(["update-index", "--split-index"]);
    project.write("b.txt", "staged\n");
    project.git(["add", "b.txt"]);
    project.assert_round_trip(|| {
        project.write("a.txt", "changed\n");
        project.remove("b.txt");
    });
}

#[test]
fn edit_with_index_version_4_is_undone() {
    let project = Project::new(&[("d/a.txt", "a\n"), ("d/b.txt", "b\n")]);
    project.git(["update-index", "--index-version=4", "--assume-unchanged", "d/b.txt"]);
    project.assert_round_trip(|| {
        project.write("d/a.txt", "changed\n");
        project.write("d/b.txt", "changed\n");
    });
}

#[test]
fn edit_in_sha256_repository_is_undone() {
    let project = Project::without_repository();
    project.git(["init", "-q", "--object-format=sha256"]);
    project.write("a.txt", "a\n");
    project.commit("first");
    project.write("b.txt", "untracked\n");
    project.assert_round_trip(|| {
        project.write("a.txt", "changed\n");
        project.write("b.txt", "changed\n");
    });
    assert_eq!(project.finish().base.unwrap().len(), 64);
}

#[test]
fn file_added_in_sha256_repository_is_undone() {
    let project = Project::without_repository();
    project.git(["init", "-q", "--object-format=sha256"]);
    project.write("a.txt", "a\n");
    project.commit("first");
    // No file is on one of the sides.
    project.assert_round_trip(|| project.write("b.txt", "b\n"));
}

#[test]
fn repository_without_commits_is_recorded() {
    let project = Project::empty();
    project.write("user.txt", "user\n");
    project.assert_round_trip(|| project.write("job.txt", "job\n"));
    assert_eq!(project.finish().base, None);
}

#[test]
fn detached_head_is_the_base() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git(["checkout", "-q", "--detach"]);
    project.record_job(|| project.write("a.txt", "b\n"));
    assert_eq!(project.finish().base, Some(project.head()));
}

#[test]
fn packed_branch_is_the_base() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git(["pack-refs", "--all"]);
    project.record_job(|| {});
    assert_eq!(project.finish().base, Some(project.head()));
}

#[test]
fn reftable_branch_is_the_base() {
    let project = Project::without_repository();
    let mut init = crate::fixture::git_command(&project.worktree);
    if !init.args(["init", "-q", "--ref-format=reftable"]).output().unwrap().status.success() {
        return; // Older versions of git do not have this format.
    }
    project.write("a.txt", "a\n");
    project.commit("first");
    project.record_job(|| project.commit("second"));
    let change_set = project.finish();
    assert_eq!(change_set.base, Some(project.git(["rev-parse", "HEAD~"])));
    assert_eq!(change_set.head, Some(project.head()));
}

#[test]
fn linked_worktree_is_recorded() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git(["worktree", "add", "-q", "../linked"]);
    let linked = project.root.join("linked");
    let repository = GitRepository::find(&linked).unwrap().unwrap();
    project.guard_all("begin", || project.record.begin(&repository, LIMIT)).unwrap();
    fs::write(linked.join("a.txt"), "linked\n").unwrap();
    assert_eq!(crate::fixture::describe(&project.finish()), ["modified a.txt +1 -1"]);
    project.record.restore(&Restoration::new(Direction::Undo, &[])).unwrap();
    assert_eq!(fs::read_to_string(linked.join("a.txt")).unwrap(), "a\n");
}

#[test]
fn clone_with_alternates_is_recorded() {
    let project = Project::without_repository();
    let origin = project.root.join("origin");
    fs::create_dir(&origin).unwrap();
    crate::fixture::git_in(&origin, ["init", "-q"]);
    fs::write(origin.join("a.txt"), "a\n").unwrap();
    crate::fixture::git_in(&origin, ["add", "-A"]);
    crate::fixture::git_in(&origin, ["commit", "-q", "-m", "first"]);
    crate::fixture::git_in(&project.root, ["clone", "-q", "--shared", "origin", "work"]);
    project.assert_round_trip(|| project.write("a.txt", "b\n"));
}

#[test]
fn partial_clone_fetches_nothing() {
    let project = Project::without_repository();
    let origin = project.root.join("origin");
    fs::create_dir(&origin).unwrap();
    crate::fixture::git_in(&origin, ["init", "-q"]);
    fs::write(origin.join("a.txt"), "a\n").unwrap();
    crate::fixture::git_in(&origin, ["add", "-A"]);
    crate::fixture::git_in(&origin, ["commit", "-q", "-m", "first"]);
    crate::fixture::git_in(&origin, ["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", origin.display());
    let clone = ["clone", "-q", "--filter=blob:none", "--no-checkout", &url, "work"];
    crate::fixture::git_in(&project.root, clone);
    project.git(["reset", "-q"]);
    // The index names a blob that is not there, and the file does not exist.
    assert_eq!(project.record_job(|| project.write("a.txt", "job\n")), ["added a.txt +1 -0"]);
    project.undo();
    assert!(!project.exists("a.txt"));
}

#[test]
fn missing_blob_of_user_is_not_recorded() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let id = project.git(["rev-parse", "HEAD:a.txt"]);
    let object = project.path(format!(".git/objects/{}/{}", &id[..2], &id[2..]));
    let changes = project.record_job(|| {
        fs::remove_file(object).unwrap();
        project.write("a.txt", "b\n");
    });
    assert_eq!(changes, ["modified a.txt Unreadable"]);
}

#[test]
fn directory_without_repository_is_none() {
    let project = Project::without_repository();
    // The temporary directory itself can be inside of a repository.
    fs::create_dir(project.path("objects")).unwrap();
    fs::create_dir(project.path("refs")).unwrap();
    fs::write(project.path("HEAD"), "ref: refs/heads/main\n").unwrap();
    assert_eq!(GitRepository::find(&project.worktree).unwrap(), None);
}

#[test]
fn bare_repository_is_none() {
    let project = Project::empty();
    project.git(["config", "core.bare", "true"]);
    assert_eq!(GitRepository::find(&project.worktree).unwrap(), None);
}

#[test]
fn git_directory_is_none() {
    let project = Project::empty();
    assert_eq!(GitRepository::find(&project.path(".git/refs")).unwrap(), None);
}

#[test]
fn broken_git_file_is_reported() {
    let project = Project::without_repository();
    fs::write(project.path(".git"), "gitdir: ../nowhere\n").unwrap();
    let error = GitRepository::find(&project.worktree).unwrap_err();
    assert!(matches!(&error, ChangesError::BrokenRepository { path } if *path == project.path(".git")));
}
