//! Large, unreadable and filtered files, links, FIFOs and sockets.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use changes::{ConflictReason, Direction, RestoreAction, RestoreError, RestoredFile};
use model::NotRecorded;

use crate::fixture::Project;

const LARGE: usize = 10 * 1024 * 1024 + 1;

fn create_fifo(project: &Project, path: &str) {
    assert!(Command::new("mkfifo").arg(project.path(path)).status().unwrap().success());
}

#[test]
fn large_file_is_not_recorded() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let changes = project.record_job(|| project.write("large", vec![b'x'; LARGE]));
    assert_eq!(changes, ["added large TooLarge"]);
}

#[test]
fn large_file_of_user_is_not_a_change() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("large", vec![b'x'; LARGE]);
    assert!(project.record_job(|| {}).is_empty());
}

#[test]
fn edit_of_large_untracked_file_is_listed() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("large", vec![b'x'; LARGE]);
    let changes = project.record_job(|| project.write("large", vec![b'y'; LARGE]));
    assert_eq!(changes, ["modified large TooLarge"]);
}

#[test]
fn large_tracked_file_is_not_recorded() {
    let project = Project::empty();
    project.write("large", vec![b'x'; LARGE]);
    project.commit("large");
    let changes = project.record_job(|| project.write("large", "small\n"));
    assert_eq!(changes, ["modified large TooLarge"]);
}

#[test]
fn large_originals_do_not_affect_others() {
    let project = Project::empty();
    let names = ["a.txt", "large1", "large2", "z.txt"];
    for name in names {
        let size = if name.starts_with("large") { LARGE } else { 10 };
        project.write(name, vec![name.as_bytes()[0]; size]);
    }
    project.commit("large");
    let changes = project.record_job(|| names.into_iter().for_each(|name| project.write(name, name)));
    let expected = ["modified a.txt +1 -1", "modified large1 TooLarge", "modified large2 TooLarge"];
    assert_eq!(changes[..3], expected);
    assert_eq!(changes[3..], ["modified z.txt +1 -1"]);
}

#[test]
fn undo_of_large_file_is_a_conflict() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| project.write("large", vec![b'x'; LARGE]));
    let reason = ConflictReason::NotRecorded(NotRecorded::TooLarge);
    assert_eq!(project.expect_conflicts(Direction::Undo), [(PathBuf::from("large"), reason)]);
}

#[test]
fn undo_leaves_large_file_beside_others() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.record_job(|| {
        project.write("a.txt", "b\n");
        project.write("large", vec![b'x'; LARGE]);
    });
    let reason = ConflictReason::NotRecorded(NotRecorded::TooLarge);
    let file = |path: &str, what, reason| RestoredFile { path: path.into(), what, reason };
    let files = [
        file("a.txt", RestoreAction::Written, None),
        file("large", RestoreAction::NotRestored, Some(reason.clone())),
    ];
    assert_eq!(project.undo(), files);
    assert_eq!((project.read("a.txt"), project.path("large").exists()), ("a\n".to_owned(), true));
    let named = project.try_restore(Direction::Redo, &["a.txt", "large"]);
    assert!(matches!(named, Err(RestoreError::Conflicts(conflicts)) if conflicts[0].reason == reason));
}

#[test]
fn file_at_the_size_limit_is_undone() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.write("full", vec![b'x'; LARGE - 1]);
    project.assert_round_trip(|| project.write("full", "small\n"));
}

#[test]
fn unreadable_file_is_not_recorded() {
    without_read_override(|| {
        let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
        let changes = project.record_job(|| {
            project.write("a.txt", "changed\n");
            project.set_mode("a.txt", 0);
            project.write("c.txt", "c\n");
        });
        assert_eq!(changes, ["modified a.txt Unreadable", "added c.txt +1 -0"]);
    });
}

#[test]
fn unreadable_file_of_user_is_not_a_change() {
    without_read_override(|| {
        let project = Project::new(&[("a.txt", "a\n")]);
        project.write("b.txt", "b\n");
        project.set_mode("b.txt", 0);
        assert!(project.record_job(|| {}).is_empty());
    });
}

#[test]
fn unreadable_directory_of_user_is_skipped() {
    without_read_override(|| {
        let project = Project::new(&[("a.txt", "a\n")]);
        project.write("d/b.txt", "b\n");
        project.set_mode("d", 0);
        let changes = project.record_job(|| project.write("a.txt", "b\n"));
        project.set_mode("d", 0o755);
        assert_eq!(changes, ["modified a.txt +1 -1"]);
    });
}

#[test]
fn undo_of_unreadable_file_is_a_conflict() {
    without_read_override(|| {
        let project = Project::new(&[("a.txt", "a\n")]);
        project.record_job(|| project.write("a.txt", "b\n"));
        project.set_mode("a.txt", 0);
        let conflicts = project.expect_conflicts(Direction::Undo);
        assert_eq!(conflicts, [(PathBuf::from("a.txt"), ConflictReason::Unreadable)]);
    });
}

/// Runs a test without the privilege to read every file. Root gives it up in the thread of the test; where that is not
/// possible, the test is skipped.
fn without_read_override(test: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return test();
    }
    std::thread::scope(|scope| {
        let test = scope.spawn(|| {
            if drop_read_override() {
                test();
            }
        });
        test.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[cfg(target_os = "linux")]
fn drop_read_override() -> bool {
    use rustix::thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, set_capabilities, set_capabilities_secure_bits,
    };
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    // Without the bit, a child of root would have all capabilities again.
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_ROOT).is_ok()
        && set_capabilities(None, sets).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn drop_read_override() -> bool {
    false
}

#[test]
fn fifo_and_socket_are_not_changes() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let changes = project.record_job(|| {
        create_fifo(&project, "fifo");
        drop(UnixListener::bind(project.path("socket")).unwrap());
        project.write("b.txt", "b\n");
    });
    assert_eq!(changes, ["added b.txt +1 -0"]);
}

#[test]
fn file_replaced_by_fifo_is_deleted() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let changes = project.record_job(|| {
        project.remove("a.txt");
        create_fifo(&project, "a.txt");
    });
    assert_eq!(changes, ["deleted a.txt +0 -1"]);
    let conflicts = project.expect_conflicts(Direction::Undo);
    assert!(matches!(&conflicts[..], [(_, ConflictReason::InTheWay { .. })]), "{conflicts:?}");
}

#[test]
fn fifo_in_git_directory_does_not_block() {
    let project = Project::new(&[("a.txt", "a\n")]);
    fs::remove_dir_all(project.path(".git/info")).unwrap();
    fs::create_dir(project.path(".git/info")).unwrap();
    create_fifo(&project, ".git/info/exclude");
    create_fifo(&project, ".git/info/attributes");
    let changes = project.record_job(|| project.write("a.txt", "b\n"));
    assert_eq!(changes, ["modified a.txt +1 -1"]);
}

#[test]
fn link_out_of_worktree_is_undone_as_link() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let outside = project.root.join("outside");
    fs::write(&outside, "outside\n").unwrap();
    project.link(&outside, "link");
    project.link("../nowhere", "dangling");
    project.commit("links");
    project.assert_round_trip(|| {
        project.remove("link");
        project.link("/nonexistent", "link");
        project.link(&outside, "new");
    });
    assert_eq!(fs::read_to_string(outside).unwrap(), "outside\n");
}

#[test]
fn file_behind_link_to_directory_is_not_listed() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let outside = project.root.join("outside");
    fs::create_dir(&outside).unwrap();
    let changes = project.record_job(|| {
        project.link(&outside, "link");
        fs::write(outside.join("b.txt"), "b\n").unwrap();
    });
    assert_eq!(changes, ["added link +1 -0"]);
}

#[test]
fn filtered_file_is_not_recorded() {
    let project = Project::new(&[(".gitattributes", "*.bin filter=lfs -text\n")]);
    project.git(["config", "filter.lfs.clean", "sed s/real/pointer/"]);
    project.git(["config", "filter.lfs.smudge", "sed s/pointer/real/"]);
    project.write("a.bin", "real 1\n");
    project.write("b.bin", "real 2\n");
    // Git reads a file again that is as young as the index, and then the content before the job is known.
    project.age(&["a.bin", "b.bin"]);
    project.commit("filtered");
    assert_eq!(project.git(["show", "HEAD:a.bin"]), "pointer 1");
    let changes = project.record_job(|| project.write("a.bin", "real 3\n"));
    assert_eq!(changes, ["modified a.bin Filtered"]);
    let reason = ConflictReason::NotRecorded(NotRecorded::Filtered);
    assert_eq!(project.expect_conflicts(Direction::Undo), [(PathBuf::from("a.bin"), reason)]);
}

#[test]
fn filter_of_removed_attributes_is_considered() {
    let project = Project::new(&[(".gitattributes", "*.bin filter=lfs -text\n")]);
    project.write("a.bin", "pointer 1\n");
    project.commit("filtered");
    let changes = project.record_job(|| {
        project.remove(".gitattributes");
        project.write("a.bin", "real 2\n");
    });
    assert_eq!(changes, ["deleted .gitattributes +0 -1", "modified a.bin Filtered"]);
}

#[test]
fn filter_of_sparse_attributes_is_considered() {
    let project = Project::new(&[("d/.gitattributes", "*.bin filter=lfs -text\n")]);
    project.write("d/a.bin", "pointer 1\n");
    project.commit("filtered");
    project.git(["update-index", "--skip-worktree", "d/.gitattributes"]);
    project.remove("d/.gitattributes");
    let changes = project.record_job(|| project.write("d/a.bin", "real 2\n"));
    assert_eq!(changes, ["modified d/a.bin Filtered"]);
}

#[test]
fn new_file_with_filter_is_undone() {
    let project = Project::new(&[(".gitattributes", "*.bin filter=lfs -text\n")]);
    project.git(["config", "filter.lfs.clean", "sed s/real/pointer/"]);
    project.assert_round_trip(|| project.write("a.bin", "real 1\n"));
}

#[test]
fn hard_linked_files_are_undone() {
    let project = Project::new(&[("a.txt", "1\n")]);
    fs::hard_link(project.path("a.txt"), project.path("b.txt")).unwrap();
    project.commit("links");
    project.assert_round_trip(|| project.write("a.txt", "2\n"));
    assert_eq!(crate::fixture::describe(&project.finish()).len(), 2);
}
