//! Checkouts whose user rewrites and prunes the history from which they borrow.

use std::fs;

use changes::ChangesError;

use crate::checkout::{Checkout, dirty_project};
use crate::fixture::{LIMIT, Project, describe};

/// Removes all objects that no ref of the user names.
fn prune(user: &Project) {
    user.git(["reflog", "expire", "--expire=now", "--all"]);
    user.git(["gc", "-q", "--prune=now"]);
}

/// Replaces the commit on which the job works by another one with other files.
fn rewrite(user: &Project) {
    user.write("a.txt", "rewritten\n");
    user.write("b.txt", "rewritten\n");
    user.git(["add", "-A"]);
    user.git(["commit", "-q", "--amend", "-m", "rewritten"]);
    prune(user);
}

fn has_object(user: &Project, id: &str) -> bool {
    crate::fixture::git_command(&user.worktree).args(["cat-file", "-e", id]).status().unwrap().success()
}

/// A checkout that keeps the objects of its user.
fn kept_checkout(project: Project) -> Checkout {
    let checkout = Checkout::new(project);
    checkout.job.begin();
    let before = crate::file_tree::read_exact(&checkout.user.worktree, |_| false);
    checkout.job.record.keep_objects(&checkout.user.repository()).unwrap();
    let after = crate::file_tree::read_exact(&checkout.user.worktree, |_| false);
    crate::file_tree::assert_same_tree(&before, &after, "keeping objects");
    checkout
}

#[test]
fn rewrite_during_the_job_loses_nothing() {
    for is_packed in [false, true] {
        let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n"), ("c.txt", "c\n")]);
        if is_packed {
            project.git(["gc", "-q"]);
        }
        let checkout = kept_checkout(project);
        let base = checkout.user.head();
        rewrite(&checkout.user);
        assert!(!has_object(&checkout.user, &base));
        checkout.job.write("a.txt", "job\n");
        checkout.job.remove("c.txt");
        let changes = checkout.job.record.finish(LIMIT, &[]).unwrap();
        assert_eq!(describe(&changes), ["modified a.txt +1 -1", "deleted c.txt +0 -1"]);
        assert!(checkout.job.patch(&[]).contains("-a\n+job\n"));
        checkout.publish().unwrap().unwrap();
        assert_eq!(checkout.user.git(["log", "--format=%s", "switchboard/1"]), "Job 1\nfirst");
        assert_eq!(checkout.user.git(["rev-parse", "switchboard/1~1"]), base);
        checkout.user.git(["fsck", "--strict"]);
        checkout.user.write("a.txt", "a\n");
        checkout.apply(false).unwrap();
        assert_eq!(checkout.user.read("a.txt"), "job\n");
    }
}

#[test]
fn rewrite_after_the_job_loses_nothing() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    rewrite(&checkout.user);
    assert!(checkout.job.patch(&[]).contains("-a\n+job\n"));
    checkout.user.write("a.txt", "a\n");
    checkout.apply(false).unwrap();
    assert_eq!(checkout.user.read("a.txt"), "job\n");
}

#[test]
fn rewrite_with_commits_of_the_agent_loses_nothing() {
    let checkout = kept_checkout(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    checkout.job.write("a.txt", "job\n");
    checkout.job.commit("by the agent");
    rewrite(&checkout.user);
    checkout.job.record.finish(LIMIT, &[]).unwrap();
    checkout.publish().unwrap().unwrap();
    assert_eq!(checkout.user.git(["log", "--format=%s", "switchboard/1"]), "by the agent\nfirst");
    checkout.user.git(["fsck", "--strict"]);
}

#[test]
fn unstaged_and_pruned_content_is_published() {
    let checkout = kept_checkout(dirty_project());
    let staged = checkout.user.git(["rev-parse", ":a.txt"]);
    checkout.user.git(["reset", "-q", "--hard"]);
    prune(&checkout.user);
    assert!(!has_object(&checkout.user, &staged));
    checkout.job.write("by-job.txt", "new\n");
    checkout.job.record.finish(LIMIT, &[]).unwrap();
    checkout.publish().unwrap().unwrap();
    assert_eq!(checkout.user.git(["show", "switchboard/1:a.txt"]), "staged");
    checkout.user.git(["fsck", "--strict"]);
}

#[test]
fn pruned_base_without_links_is_a_clear_error() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    checkout.job.record_job(|| checkout.job.write("a.txt", "job\n"));
    rewrite(&checkout.user);
    let error = checkout.publish().unwrap_err();
    assert!(matches!(error, ChangesError::BaseMissing { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("apply"));
}

#[test]
fn continued_record_keeps_the_objects() {
    let checkout = kept_checkout(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    checkout.job.record.finish(LIMIT, &[]).unwrap();
    let next = crate::fixture::open_record(checkout.job.root.join("next"));
    next.continue_from(&checkout.job.record).unwrap();
    checkout.job.record.seal().unwrap();
    rewrite(&checkout.user);
    checkout.job.write("b.txt", "job\n");
    let changes = next.finish(LIMIT, &[]).unwrap();
    assert_eq!(describe(&changes), ["modified b.txt +1 -1"]);
}

#[test]
fn sealed_record_keeps_no_objects() {
    let checkout = kept_checkout(Project::new(&[("a.txt", "a\n")]));
    let kept = checkout.job.root.join("record/git/kept/objects");
    assert!(fs::read_dir(&kept).unwrap().next().is_some());
    checkout.job.record.finish(LIMIT, &[]).unwrap();
    checkout.job.record.seal().unwrap();
    assert!(!kept.exists());
}
