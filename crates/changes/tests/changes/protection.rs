//! The index, stash, refs and objects of the user. The fixture compares them in every test; these states need a setup.

use std::fs;

use crate::fixture::Project;

#[test]
fn stash_and_refs_of_user_are_kept() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("a.txt", "stashed\n");
    project.git(["stash", "-q"]);
    project.git(["tag", "v1"]);
    project.git(["pack-refs", "--all"]);
    project.assert_round_trip(|| project.write("a.txt", "job\n"));
    assert_eq!(project.git(["stash", "list"]).lines().count(), 1);
}

#[test]
fn existing_object_keeps_its_time() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    // The contents before and after are objects of the user already. The fixture compares their modification times.
    project.assert_round_trip(|| project.write("a.txt", "b\n"));
}

#[test]
fn stale_index_of_user_is_not_refreshed() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let content = fs::read(project.path("a.txt")).unwrap();
    project.remove("a.txt");
    project.write("a.txt", content);
    project.record_job(|| project.write("b.txt", "b\n"));
}

#[test]
fn locked_index_of_user_is_no_obstacle() {
    let project = Project::new(&[("a.txt", "a\n")]);
    fs::write(project.path(".git/index.lock"), "").unwrap();
    project.assert_round_trip(|| project.write("a.txt", "b\n"));
}

#[test]
fn grafts_and_replaced_objects_are_not_used() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "other\n")]);
    let (old, new) = (project.git(["rev-parse", "HEAD:a.txt"]), project.git(["rev-parse", "HEAD:b.txt"]));
    project.git(["replace", &old, &new]);
    project.assert_round_trip(|| project.write("a.txt", "job\n"));
}
