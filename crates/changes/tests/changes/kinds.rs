//! The kinds of changes and their sizes.

use std::fs;

use model::ChangeSet;

use crate::fixture::Project;

const TEXT: &str = "one\ntwo\nthree\nfour\nfive\nsix\n";

#[test]
fn unchanged_repository_has_no_changes() {
    let project = Project::new(&[("a.txt", "a\n")]);
    assert!(project.record_job(|| {}).is_empty());
    assert_eq!(project.patch(&[]), "");
}

#[test]
fn added_file_is_listed() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let changes = project.record_job(|| project.write("new/b.txt", "one\ntwo\n"));
    assert_eq!(changes, ["added new/b.txt +2 -0"]);
}

#[test]
fn modified_file_is_listed_with_its_lines() {
    let project = Project::new(&[("a.txt", TEXT)]);
    let changes = project.record_job(|| project.write("a.txt", TEXT.replace("two\n", "2\n2b\n")));
    assert_eq!(changes, ["modified a.txt +2 -1"]);
}

#[test]
fn same_size_edit_right_after_start_is_found() {
    let project = Project::new(&[("a.txt", "1\n")]);
    let changes = project.record_job(|| project.write("a.txt", "2\n"));
    assert_eq!(changes, ["modified a.txt +1 -1"]);
}

#[test]
fn changes_of_files_older_than_the_index_are_found() {
    let names = ["content", "deleted", "link", "mode", "same"];
    let project = Project::new(&names.map(|name| (name, "1\n")));
    project.age(&names);
    project.git(["add", "-A"]);
    let changes = project.record_job(|| {
        project.write("content", "2\n");
        project.remove("deleted");
        project.remove("link");
        project.link("1\n", "link");
        project.set_mode("mode", 0o755);
    });
    let expected = ["modified content +1 -1", "deleted deleted +0 -1", "type changed link +0 -0"];
    assert_eq!(changes[..3], expected);
    assert_eq!(changes[3..], ["mode changed mode +0 -0"]);
}

#[test]
fn directory_moved_behind_a_link_is_found() {
    let project = Project::new(&[("d/a.txt", "a\n")]);
    project.age(&["d/a.txt"]);
    project.git(["add", "-A"]);
    let changes = project.record_job(|| {
        project.rename("d", "e");
        project.link("e", "d");
    });
    assert_eq!(changes, ["added d +1 -0", "renamed d/a.txt to e/a.txt +0 -0"]);
}

#[test]
fn deleted_file_is_listed() {
    let project = Project::new(&[("a.txt", TEXT), ("b.txt", "b\n")]);
    assert_eq!(project.record_job(|| project.remove("a.txt")), ["deleted a.txt +0 -6"]);
}

#[test]
fn renamed_file_is_listed_with_its_old_path() {
    let project = Project::new(&[("a.txt", TEXT)]);
    let changes = project.record_job(|| project.rename("a.txt", "sub/b.txt"));
    assert_eq!(changes, ["renamed a.txt to sub/b.txt +0 -0"]);
}

#[test]
fn renamed_and_modified_file_is_one_change() {
    let project = Project::new(&[("a.txt", TEXT)]);
    let changes = project.record_job(|| {
        project.rename("a.txt", "b.txt");
        project.write("b.txt", TEXT.replace("six", "6"));
    });
    assert_eq!(changes, ["renamed a.txt to b.txt +1 -1"]);
}

#[test]
fn executable_bit_is_a_change_of_the_mode() {
    let project = Project::new(&[("run.sh", "#!/bin/sh\n")]);
    let changes = project.record_job(|| project.set_mode("run.sh", 0o755));
    assert_eq!(changes, ["mode changed run.sh +0 -0"]);
}

#[test]
fn file_that_becomes_link_changes_its_type() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    let changes = project.record_job(|| {
        project.remove("a.txt");
        project.link("b.txt", "a.txt");
    });
    assert_eq!(changes, ["type changed a.txt +1 -1"]);
}

#[test]
fn link_that_becomes_file_changes_its_type() {
    let project = Project::new(&[("b.txt", "b\n")]);
    project.link("b.txt", "a.txt");
    project.commit("link");
    let changes = project.record_job(|| {
        project.remove("a.txt");
        project.write("a.txt", "a\n");
    });
    assert_eq!(changes, ["type changed a.txt +1 -1"]);
}

#[test]
fn directory_that_becomes_file_is_listed() {
    let project = Project::new(&[("d/a.txt", TEXT), ("b.txt", "b\n")]);
    let changes = project.record_job(|| {
        fs::remove_dir_all(project.path("d")).unwrap();
        project.write("d", "other\n");
    });
    assert_eq!(changes, ["added d +1 -0", "deleted d/a.txt +0 -6"]);
}

#[test]
fn binary_file_is_listed_with_its_sizes() {
    let project = Project::empty();
    project.write("a.bin", b"\0\x01\x02");
    project.commit("first");
    let changes = project.record_job(|| {
        project.write("a.bin", b"\0\xff\xfe\xfd\xfc");
        project.write("b.bin", b"b\0");
    });
    assert_eq!(changes, ["modified a.bin 3 to 5 bytes", "added b.bin none to 2 bytes"]);
}

#[test]
fn touched_file_is_not_a_change() {
    let project = Project::new(&[("a.txt", TEXT)]);
    let changes = project.record_job(|| {
        project.remove("a.txt");
        project.write("a.txt", TEXT);
    });
    assert!(changes.is_empty());
}

#[test]
fn ignored_file_is_not_a_change() {
    let project = Project::new(&[(".gitignore", "*.log\n/target/\n")]);
    let changes = project.record_job(|| {
        project.write("a.log", "a\n");
        project.write("target/debug/b", "b\n");
    });
    assert!(changes.is_empty());
}

#[test]
fn tracked_file_that_is_ignored_is_a_change() {
    let project = Project::new(&[("a.log", "a\n")]);
    project.write(".gitignore", "*.log\n");
    project.commit("ignore");
    assert_eq!(project.record_job(|| project.write("a.log", "b\n")), ["modified a.log +1 -1"]);
}

#[test]
fn lines_are_summed_over_text_files() {
    let project = Project::new(&[("a.txt", TEXT)]);
    project.record_job(|| {
        project.write("a.txt", "one\n");
        project.write("b.txt", "b\n");
        project.write("c.bin", b"\0");
    });
    assert_eq!(project.record.read().unwrap().as_ref().map(ChangeSet::lines), Some((1, 5)));
}

#[test]
fn patch_applies_to_files_from_before() {
    let project = Project::new(&[("a.txt", TEXT), ("gone.txt", TEXT), ("old.txt", "rename\nme\nplease\n")]);
    project.write("a.bin", b"\0\x01\x02");
    project.commit("binary");
    let job = || {
        project.write("a.txt", TEXT.replace("two", "2"));
        project.remove("gone.txt");
        project.rename("old.txt", "new.txt");
        project.write("a.bin", b"\0\x03");
        project.write("run.sh", "#!/bin/sh");
        project.set_mode("run.sh", 0o755);
    };
    project.record_job(job);
    let after = crate::file_tree::read_worktree(&project.worktree);
    fs::write(project.root.join("patch"), project.record.patch(&[]).unwrap()).unwrap();
    project.git(["stash", "-q", "-u"]);
    project.git(["apply", "../patch"]);
    let applied = crate::file_tree::read_worktree(&project.worktree);
    crate::file_tree::assert_same_tree(&after, &applied, "the patch");
}

#[test]
fn patch_of_directory_has_only_its_files() {
    let project = Project::new(&[("a.txt", "a\n"), ("d/b.txt", "b\n")]);
    project.record_job(|| {
        project.write("a.txt", "a2\n");
        project.write("d/b.txt", "b2\n");
        project.write("d/c.txt", "c\n");
    });
    let patch = project.patch(&["d"]);
    assert!(patch.contains("+b2\n") && patch.contains("+c\n") && !patch.contains("a.txt"), "{patch}");
}

#[test]
fn many_files_with_few_changes_are_recorded() {
    let project = Project::empty();
    for number in 0..10_000 {
        project.write(format!("d{}/f{number}", number % 100), format!("{number}\n"));
    }
    project.commit("many");
    let changes = project.record_job(|| {
        for number in (0..10_000).step_by(200) {
            project.write(format!("d{}/f{number}", number % 100), "changed\n");
        }
    });
    assert_eq!(changes.len(), 50);
    assert_eq!(project.undo().len(), 50);
    assert_eq!(project.git(["status", "--porcelain"]), "");
}
