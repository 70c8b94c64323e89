//! Applying the changes of a job to the index or as a commit of the user.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use changes::{ChangesError, ConflictReason, Destination, Direction, Restoration, RestoreError, Restored};

use crate::checkout::{Checkout, dirty_project};
use crate::file_tree::{assert_same_tree, read_exact};
use crate::fixture::{Project, git_command};

const COMMIT: Destination<'_> = Destination::Commit { message: "Job 1\n\nSwitchboard-Job: 1\n" };
const TEXT: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";

/// Applies some files of the job, or all.
fn apply(
    checkout: &Checkout,
    destination: Destination<'_>,
    paths: &[&str],
) -> Result<Restored, RestoreError> {
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let target = checkout.user.repository();
    let restoration =
        Restoration { target: Some(&target), destination, ..Restoration::new(Direction::Redo, &paths) };
    checkout.job.record.restore(&restoration)
}

#[track_caller]
fn commit(checkout: &Checkout) -> Option<String> {
    let commit = apply(checkout, COMMIT, &[]).unwrap().commit;
    assert_valid(&checkout.user);
    commit
}

#[track_caller]
fn stage(checkout: &Checkout) {
    assert_eq!(apply(checkout, Destination::Index, &[]).unwrap().commit, None);
    assert_valid(&checkout.user);
}

/// Asserts that the repository is consistent, and that no lock is left.
#[track_caller]
fn assert_valid(user: &Project) {
    user.git(["fsck", "--strict"]);
    assert!(!user.exists(".git/index.lock"));
}

/// Expects a refusal that changes nothing in the worktree and in the repository.
#[track_caller]
fn expect_refusal(checkout: &Checkout, destination: Destination<'_>) -> RestoreError {
    // Objects without a ref may be left, and locks change the times of directories.
    let read = || {
        let mut tree = read_exact(&checkout.user.worktree, |path| path.starts_with(".git/objects"));
        tree.retain(|path, _| !(path.starts_with(".git") && checkout.user.path(path).is_dir()));
        tree
    };
    let before = read();
    let error = apply(checkout, destination, &[]).unwrap_err();
    assert_same_tree(&before, &read(), "a refusal");
    error
}

#[track_caller]
fn expect_conflicts(checkout: &Checkout, destination: Destination<'_>) -> Vec<(PathBuf, ConflictReason)> {
    match expect_refusal(checkout, destination) {
        RestoreError::Conflicts(conflicts) => {
            conflicts.into_iter().map(|conflict| (conflict.path, conflict.reason)).collect()
        }
        error => panic!("{error:?}"),
    }
}

/// Returns `git status` without rewriting the index.
fn status(user: &Project) -> String {
    user.git(["--no-optional-locks", "status", "--porcelain"])
}

/// A job that changes files in every way.
fn checkout_with_all_kinds() -> Checkout {
    let project = Project::new(&[
        ("a.txt", "a\n"),
        ("deleted.txt", "d\n"),
        ("old.txt", TEXT),
        ("run.sh", "#!/bin/sh\n"),
        ("becomes-link", "l\n"),
        ("dir/x", "x\n"),
        ("same.txt", "s\n"),
    ]);
    let checkout = Checkout::new(project);
    let job = &checkout.job;
    checkout.record_job(|| {
        job.write("a.txt", "job\n");
        job.remove("deleted.txt");
        job.rename("old.txt", "new/name.txt");
        job.set_mode("run.sh", 0o755);
        job.remove("becomes-link");
        job.link("../outside", "becomes-link");
        job.remove("dir/x");
        fs::remove_dir(job.path("dir")).unwrap();
        job.write("dir", "a file\n");
        job.write(OsStr::from_bytes(b"a\nb:\xff*"), "odd\n");
        job.write("[x]", "odd\n");
    });
    checkout
}

/// The paths that such a job changes.
const ALL_KINDS: &str = "M\ta.txt\nA\t[x]\nT\tbecomes-link\nD\tdeleted.txt\nA\tdir\nD\tdir/x\nR100\told.txt\tnew/name.txt\nM\trun.sh";

#[track_caller]
fn assert_all_kinds(diff: &str) {
    let mut lines: Vec<&str> = diff.lines().filter(|line| !line.contains("\\377")).collect();
    let mut expected: Vec<&str> = ALL_KINDS.lines().collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
    assert!(diff.contains(r#"A	"a\nb:\377*""#), "{diff}");
}

#[test]
fn every_kind_of_change_is_committed() {
    let checkout = checkout_with_all_kinds();
    let id = commit(&checkout).unwrap();
    let user = &checkout.user;
    assert_eq!((user.head(), status(user)), (id, String::new()));
    assert_eq!(user.git(["diff-files", "--name-only"]), "", "the times of the files");
    assert_all_kinds(&user.git(["diff", "-M", "--name-status", "HEAD~1", "HEAD"]));
    let mode = user.git(["ls-tree", "HEAD", "run.sh", "becomes-link"]);
    assert!(mode.contains("100755") && mode.contains("120000"), "{mode}");
}

#[test]
fn every_kind_of_change_is_staged() {
    let checkout = checkout_with_all_kinds();
    let head = checkout.user.head();
    stage(&checkout);
    assert_eq!(checkout.user.head(), head);
    assert_eq!(checkout.user.git(["diff", "--name-only"]), "");
    assert_all_kinds(&checkout.user.git(["diff", "--cached", "-M", "--name-status"]));
}

#[test]
fn commit_has_the_identity_message_and_reflog() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git(["config", "user.name", "Ben"]);
    project.git(["config", "user.email", "ben@example.org"]);
    project.git(["config", "commit.gpgSign", "true"]);
    project.git(["config", "gpg.program", "/nonexistent/gpg"]);
    let head = project.head();
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let id = commit(&checkout).unwrap();
    let log = |format: &str| checkout.user.git(["log", "-1", &format!("--format={format}")]);
    assert_eq!(log("%an <%ae> %cn %P"), format!("Ben <ben@example.org> Ben {head}"));
    assert_eq!(log("%B"), "Job 1\n\nSwitchboard-Job: 1");
    for name in ["HEAD", "main"] {
        let reflog = checkout.user.git(["reflog", "-1", "--format=%H %gn %gs", name]);
        assert_eq!(reflog, format!("{id} Ben commit: Job 1"));
    }
}

#[test]
fn other_changes_of_the_user_stay_staged_or_unstaged() {
    let project = dirty_project();
    project.write("new.txt", "staged\n");
    project.git(["add", "new.txt"]);
    let before = status(&project);
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("by-job.txt", "j\n"));
    commit(&checkout).unwrap();
    assert_eq!(status(&checkout.user), before);
    assert_eq!(checkout.user.git(["diff", "--name-status", "HEAD~1", "HEAD"]), "A\tby-job.txt");
}

#[test]
fn only_selected_files_are_committed() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    checkout.record_job(|| {
        checkout.job.write("a.txt", "job\n");
        checkout.job.write("b.txt", "job\n");
    });
    assert!(apply(&checkout, COMMIT, &["a.txt"]).unwrap().commit.is_some());
    assert_eq!(checkout.user.git(["diff", "--name-only", "HEAD~1", "HEAD"]), "a.txt");
    assert_eq!((status(&checkout.user).as_str(), &*checkout.user.read("b.txt")), ("", "b\n"));
}

#[test]
fn commit_of_applied_changes_is_refused() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    apply(&checkout, Destination::Worktree, &[]).unwrap();
    let refused = [(PathBuf::from("a.txt"), ConflictReason::Uncommitted)];
    assert_eq!(expect_conflicts(&checkout, COMMIT), refused);
    checkout.user.commit("by the user");
    assert_eq!(commit(&checkout), None);
}

#[test]
fn commit_with_edits_of_the_user_is_refused() {
    let lines = |first: &str, last: &str| format!("{first}\n1\n2\n3\n4\n5\n{last}\n");
    let names = ["clean.txt", "early.txt", "staged.txt", "unstaged.txt"];
    let project = Project::new(&names.map(|name| (name, "")));
    for name in names {
        project.write(name, lines("a", "z"));
    }
    project.commit("second");
    // Before the call, and in a file that the job modifies, too.
    project.write("early.txt", lines("user", "z"));
    project.write("untracked.txt", "u\n");
    let checkout = Checkout::new(project);
    checkout.record_job(|| {
        for name in names {
            checkout.job.write(name, lines("job", "z"));
        }
        checkout.job.write("untracked.txt", "job\n");
    });
    checkout.user.write("staged.txt", lines("a", "user"));
    checkout.user.git(["add", "staged.txt"]);
    checkout.user.write("unstaged.txt", lines("a", "user"));
    let refused = |names: &[&str], reason: &ConflictReason| -> Vec<(PathBuf, ConflictReason)> {
        names.iter().map(|name| (name.into(), reason.clone())).collect()
    };
    let names = ["early.txt", "staged.txt", "unstaged.txt", "untracked.txt"];
    assert_eq!(expect_conflicts(&checkout, COMMIT), refused(&names, &ConflictReason::Uncommitted));
    let names = ["early.txt", "unstaged.txt", "untracked.txt"];
    let found = expect_conflicts(&checkout, Destination::Index);
    assert_eq!(found, refused(&names, &ConflictReason::Unstaged));
}

#[test]
fn staged_edit_is_merged_in_the_index() {
    let checkout = Checkout::new(Project::new(&[("a.txt", TEXT)]));
    checkout.record_job(|| checkout.job.write("a.txt", TEXT.replace("1\n", "job\n")));
    checkout.user.write("a.txt", TEXT.replace("9\n", "user\n"));
    checkout.user.git(["add", "a.txt"]);
    stage(&checkout);
    let merged = TEXT.replace("1\n", "job\n").replace("9\n", "user\n");
    assert_eq!(checkout.user.git(["show", ":a.txt"]), merged.trim());
    assert_eq!(checkout.user.read("a.txt"), merged);
}

#[test]
fn edit_reverted_in_the_worktree_only_is_refused() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    checkout.user.write("a.txt", "staged\n");
    checkout.user.git(["add", "a.txt"]);
    checkout.user.write("a.txt", "a\n");
    for destination in [COMMIT, Destination::Index] {
        assert_eq!(expect_conflicts(&checkout, destination).len(), 1);
    }
}

#[test]
fn conflict_is_never_staged_with_markers() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    checkout.user.write("a.txt", "user\n");
    checkout.user.commit("by the user");
    let target = checkout.user.repository();
    let restoration = Restoration {
        target: Some(&target),
        markers: true,
        destination: Destination::Index,
        ..Restoration::new(Direction::Redo, &[])
    };
    let refused = checkout.job.record.restore(&restoration);
    assert!(matches!(refused, Err(RestoreError::Conflicts(_))), "{refused:?}");
    assert_eq!(status(&checkout.user), "");
}

#[test]
fn commit_follows_later_commits_of_the_user() {
    let checkout = Checkout::new(Project::new(&[("a.txt", TEXT), ("b.txt", "b\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", TEXT.replace("1\n", "job\n")));
    checkout.user.write("a.txt", TEXT.replace("9\n", "user\n"));
    checkout.user.commit("by the user");
    commit(&checkout).unwrap();
    assert_eq!(checkout.user.git(["log", "--format=%s"]), "Job 1\nby the user\nfirst");
    assert_eq!(checkout.user.read("a.txt"), TEXT.replace("1\n", "job\n").replace("9\n", "user\n"));
    assert_eq!(status(&checkout.user), "");
}

#[test]
fn first_commit_of_a_repository_is_created() {
    let project = Project::empty();
    project.write("user.txt", "u\n");
    project.write("staged.txt", "s\n");
    project.git(["add", "staged.txt"]);
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "a\n"));
    commit(&checkout).unwrap();
    assert_eq!(checkout.user.git(["log", "--format=%s", "--name-only"]), "Job 1\n\na.txt");
    assert_eq!(status(&checkout.user), "A  staged.txt\n?? user.txt");
    assert_eq!(checkout.user.git(["reflog", "--format=%gs"]), "commit (initial): Job 1");
}

#[test]
fn repository_without_an_index_gets_one() {
    let checkout = Checkout::new(Project::empty());
    checkout.record_job(|| checkout.job.write("a.txt", "a\n"));
    assert!(!checkout.user.exists(".git/index"));
    stage(&checkout);
    assert_eq!(status(&checkout.user), "A  a.txt");
}

#[test]
fn detached_head_moves_without_its_branch() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git(["checkout", "-q", "--detach"]);
    let head = project.head();
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let id = commit(&checkout).unwrap();
    assert_eq!((checkout.user.head(), checkout.user.git(["rev-parse", "main"])), (id, head));
}

#[test]
fn linked_worktree_gets_the_commit() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let linked = project.root.join("linked");
    project.git(["worktree".as_ref(), "add".as_ref(), "-q".as_ref(), linked.as_os_str()]);
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let target = changes::GitRepository::find(&linked).unwrap().unwrap();
    let restoration =
        Restoration { target: Some(&target), destination: COMMIT, ..Restoration::new(Direction::Redo, &[]) };
    let id = checkout.job.record.restore(&restoration).unwrap().commit.unwrap();
    assert_eq!(checkout.user.git(["rev-parse", "linked"]), id);
    assert_ne!(checkout.user.head(), id);
    assert_eq!(crate::fixture::git_in(&linked, ["status", "--porcelain"]), "");
    assert_valid(&checkout.user);
}

#[test]
fn unusual_repositories_are_committed() {
    for config in [
        &["index.version", "4"][..],
        &["core.splitIndex", "true"],
        &["feature.manyFiles", "true"],
        &["core.autocrlf", "true"],
        &["core.fileMode", "false"],
        &["core.checkStat", "minimal"],
    ] {
        let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
        project.git([&["config"], config].concat());
        project.git(["rm", "-q", "--cached", "a.txt"]);
        project.git(["add", "a.txt"]);
        let checkout = Checkout::new(project);
        checkout.record_job(|| {
            checkout.job.write("a.txt", "job\r\n");
            checkout.job.write("c.txt", "new\r\n");
        });
        commit(&checkout).unwrap();
        assert_eq!(status(&checkout.user), "", "{config:?}");
        let stored = checkout.user.git(["cat-file", "-p", "HEAD:c.txt"]);
        assert_eq!(stored, "new", "{config:?}");
    }
}

#[test]
fn sha256_and_reftable_repositories_are_committed() {
    for option in ["--object-format=sha256", "--ref-format=reftable"] {
        let project = Project::without_repository();
        let init = git_command(&project.worktree).args(["init", "-q", option]).output().unwrap();
        if !init.status.success() {
            // Before git 2.45.
            continue;
        }
        project.write("a.txt", "a\n");
        project.commit("first");
        let checkout = Checkout::new(project);
        checkout.record_job(|| {
            checkout.job.remove("a.txt");
            checkout.job.write("b.txt", "b\n");
        });
        let id = commit(&checkout).unwrap();
        assert_eq!((checkout.user.head(), status(&checkout.user)), (id, String::new()), "{option}");
    }
}

#[test]
fn crlf_files_are_committed_normalized() {
    let project = Project::new(&[(".gitattributes", "*.txt text eol=crlf\n"), ("a.txt", "1\r\n2\r\n")]);
    let checkout = Checkout::new(project);
    checkout.record_job(|| {
        checkout.job.write("a.txt", "1\r\njob\r\n");
        checkout.job.write("b.txt", "new\r\n");
    });
    commit(&checkout).unwrap();
    assert_eq!(checkout.user.read("b.txt"), "new\r\n");
    let stored = checkout.user.git(["ls-files", "--eol", "a.txt", "b.txt"]);
    assert_eq!(stored.matches("i/lf    w/crlf").count(), 2, "{stored}");
    assert_eq!(status(&checkout.user), "");
}

#[test]
fn file_that_needs_a_filter_is_refused() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| {
        // The attributes of the job count, too.
        checkout.job.write(".gitattributes", "*.bin filter=lfs\n");
        checkout.job.write("a.bin", "large\n");
    });
    let refused = [(PathBuf::from("a.bin"), ConflictReason::NeedsFilter)];
    assert_eq!(expect_conflicts(&checkout, COMMIT), refused);
    assert_eq!(expect_conflicts(&checkout, Destination::Index), refused);
}

#[test]
fn file_that_git_does_not_compare_is_refused() {
    for flag in ["--assume-unchanged", "--skip-worktree"] {
        let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
        checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
        checkout.user.git(["update-index", flag, "a.txt"]);
        let refused = [(PathBuf::from("a.txt"), ConflictReason::NotCompared)];
        assert_eq!(expect_conflicts(&checkout, COMMIT), refused);
    }
}

#[test]
fn sparse_index_stays_sparse_after_a_commit() {
    let project = Project::new(&[("in/a.txt", "a\n"), ("out/b.txt", "b\n")]);
    project.git(["sparse-checkout", "set", "--sparse-index", "in"]);
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("in/a.txt", "b\n"));
    commit(&checkout).unwrap();
    assert_eq!(status(&checkout.user), "");
    assert!(checkout.user.git(["ls-files", "--sparse"]).contains("out/"));
    assert_eq!(checkout.user.git(["show", "HEAD:out/b.txt"]), "b");
}

#[test]
fn staged_file_in_place_of_a_directory_is_no_victim() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("d/e.txt", "e\n"));
    checkout.user.write("d", "staged\n");
    checkout.user.git(["add", "d"]);
    checkout.user.remove("d");
    let reason = ConflictReason::InTheIndex { path: "d".into() };
    assert_eq!(expect_conflicts(&checkout, Destination::Index), [("d/e.txt".into(), reason.clone())]);
    assert_eq!(expect_conflicts(&checkout, COMMIT), [("d/e.txt".into(), reason)]);
}

#[test]
fn staged_deletion_of_a_directory_is_not_committed() {
    let project = Project::new(&[("a.txt", "a\n"), ("d/e.txt", "e\n")]);
    project.git(["rm", "-q", "-r", "d"]);
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("d", "d\n"));
    let reason = ConflictReason::InTheIndex { path: "d/e.txt".into() };
    assert_eq!(expect_conflicts(&checkout, COMMIT), [("d".into(), reason)]);
    stage(&checkout);
}

#[test]
fn commit_during_an_operation_is_refused() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    project.git(["checkout", "-q", "-b", "topic"]);
    project.write("b.txt", "topic\n");
    project.commit("topic");
    project.git(["checkout", "-q", "main"]);
    project.write("b.txt", "main\n");
    project.commit("main");
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    for args in [["merge", "topic"], ["cherry-pick", "topic"], ["rebase", "topic"]] {
        let output = git_command(&checkout.user.worktree).args(args).output().unwrap();
        assert!(!output.status.success());
        let error = expect_refusal(&checkout, COMMIT);
        let message = error.to_string();
        assert!(message.starts_with(&format!("a {} is in progress", args[0])), "{message}");
        assert!(error.hint().unwrap().contains("finish or abort"));
        checkout.user.git([args[0], "--abort"]);
    }
    commit(&checkout).unwrap();
}

#[test]
fn unmerged_file_is_refused() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git(["checkout", "-q", "-b", "topic"]);
    project.write("a.txt", "topic\n");
    project.commit("topic");
    project.git(["checkout", "-q", "main"]);
    project.write("a.txt", "main\n");
    project.commit("main");
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    let merge = git_command(&checkout.user.worktree).args(["merge", "topic"]).output().unwrap();
    assert!(!merge.status.success());
    checkout.user.write("a.txt", "main\n");
    let refused = [(PathBuf::from("a.txt"), ConflictReason::Unstaged)];
    assert_eq!(expect_conflicts(&checkout, Destination::Index), refused);
}

#[test]
fn locked_index_is_refused_with_the_remedy() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let lock = checkout.user.path(".git/index.lock");
    fs::write(&lock, "").unwrap();
    for destination in [COMMIT, Destination::Index] {
        let error = expect_refusal(&checkout, destination);
        let is_locked =
            matches!(&error, RestoreError::Changes(ChangesError::IndexLocked { path }) if *path == lock);
        assert!(is_locked, "{error:?}");
        assert!(error.hint().unwrap().contains("index.lock"));
    }
    assert!(lock.exists());
    fs::remove_file(lock).unwrap();
    commit(&checkout).unwrap();
}

#[test]
fn locked_branch_is_refused_before_files_are_written() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    checkout.user.write(".git/refs/heads/main.lock", "");
    let error = expect_refusal(&checkout, COMMIT);
    assert!(error.to_string().contains("main.lock"), "{error}");
}

#[test]
fn dry_run_of_a_commit_reports_its_refusal() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let target = checkout.user.repository();
    let dry_run = Restoration {
        target: Some(&target),
        destination: COMMIT,
        dry_run: true,
        ..Restoration::new(Direction::Redo, &[])
    };
    let read = || read_exact(&checkout.user.worktree, |_| false);
    let before = read();
    assert_eq!(checkout.job.record.restore(&dry_run).unwrap().commit, None);
    assert_same_tree(&before, &read(), "a dry run");
    checkout.user.write("a.txt", "b\n");
    assert!(matches!(checkout.job.record.restore(&dry_run), Err(RestoreError::Conflicts(_))));
}

#[test]
fn undo_after_a_commit_restores_only_the_files() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let id = commit(&checkout).unwrap();
    let target = checkout.user.repository();
    let undo = Restoration { target: Some(&target), ..Restoration::new(Direction::Undo, &[]) };
    checkout.job.record.restore(&undo).unwrap();
    assert_eq!((checkout.user.head(), checkout.user.read("a.txt")), (id, "a\n".to_owned()));
    assert_eq!(status(&checkout.user), "M a.txt");
}

#[test]
fn edit_within_the_same_tick_is_not_hidden() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n"), ("user.txt", "1\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    for content in ["2\n", "3\n"] {
        checkout.user.write("user.txt", content);
        checkout.user.git(["add", "user.txt"]);
    }
    checkout.user.write("user.txt", "4\n");
    stage(&checkout);
    checkout.user.write("a.txt", "c\n");
    assert_eq!(status(&checkout.user), "MM a.txt\nMM user.txt");
}

#[test]
fn hooks_and_commands_do_not_run_for_a_commit() {
    let project = Project::new(&[(".gitattributes", "*.md diff=evil merge=evil\n"), ("a.md", "a\n")]);
    let script = "#!/bin/sh\ntouch \"$GIT_DIR/ran\" .git/ran\n";
    fs::write(project.root.join("program"), script).unwrap();
    let program = project.root.join("program");
    let hooks = project.path(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in [
        "pre-commit",
        "prepare-commit-msg",
        "commit-msg",
        "post-commit",
        "post-index-change",
        "reference-transaction",
    ] {
        fs::copy(&program, hooks.join(hook)).unwrap();
        project.set_mode(&format!(".git/hooks/{hook}"), 0o755);
    }
    fs::set_permissions(&program, fs::metadata(hooks.join("pre-commit")).unwrap().permissions()).unwrap();
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.md", "b\n"));
    for key in ["core.fsmonitor", "gpg.program", "core.editor", "diff.evil.textconv", "merge.evil.driver"] {
        checkout.user.git([Path::new("config"), key.as_ref(), &program]);
    }
    checkout.user.git(["config", "commit.gpgSign", "true"]);
    apply(&checkout, COMMIT, &[]).unwrap().commit.unwrap();
    assert!(!checkout.user.exists(".git/ran"));
}
