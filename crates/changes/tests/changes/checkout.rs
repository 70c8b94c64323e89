//! Private checkouts: their content, the independence of the user's repository, the branch, and applying the changes.

use std::fs;
use std::path::{Path, PathBuf};

use changes::{
    BranchRequest, ChangeRecord, ChangesError, ConflictReason, Direction, GitProgram, GitRepository,
    Restoration, RestoreAction, RestoreError, create_checkout, remove_checkout,
};

use crate::file_tree::{assert_same_tree, read_exact, read_worktree};
use crate::fixture::{LIMIT, Project, describe, git_command, git_in};

/// A project with a private checkout, in which a job works.
pub struct Checkout {
    /// The project of the user.
    pub user: Project,
    /// The private checkout, with the record of the job.
    pub job: Project,
    without_content: Vec<PathBuf>,
}

/// Returns the git in `PATH`.
pub fn program() -> GitProgram {
    GitProgram { program: "git".into(), path: std::env::var_os("PATH").unwrap() }
}

impl Checkout {
    /// Creates the checkout, which must not change anything in the project.
    pub fn new(user: Project) -> Self {
        // The checkout of the fixture, `root/work`, and the record are outside of the user's worktree.
        let root = user.root.join("job");
        fs::create_dir(&root).unwrap();
        let before = read_exact(&user.worktree, |_| false);
        let created = create_checkout(&user.repository(), &root.join("work"), program(), LIMIT).unwrap();
        assert_same_tree(&before, &read_exact(&user.worktree, |_| false), "the checkout");
        let job = Project::open(root);
        Self { user, job, without_content: created.without_content }
    }

    /// Records a job in the checkout.
    pub fn record_job(&self, job: impl FnOnce()) -> Vec<String> {
        // Without a sandbox, git sets the times of borrowed objects.
        let read = || read_exact(&self.user.worktree, |path| path.starts_with(".git/objects"));
        let before = read();
        self.job.begin();
        self.job.record.keep_objects(&self.user.repository()).unwrap();
        job();
        let described = describe(&self.job.finish());
        assert_same_tree(&before, &read(), "a job in a checkout");
        described
    }

    /// Publishes the branch `switchboard/1`.
    pub fn publish(&self) -> Result<Option<String>, ChangesError> {
        self.publish_as(false)
    }

    fn publish_as(&self, is_new: bool) -> Result<Option<String>, ChangesError> {
        let repository = self.user.repository();
        let name = "switchboard/1";
        let request = BranchRequest { repository: &repository, name, message: "Job 1\n", job: "1", is_new };
        self.job.record.publish(request, LIMIT)
    }

    /// Applies all files.
    pub fn apply(&self, markers: bool) -> Result<Vec<(String, RestoreAction)>, RestoreError> {
        let target = self.user.repository();
        let restoration =
            Restoration { target: Some(&target), markers, ..Restoration::new(Direction::Redo, &[]) };
        let files = self.job.record.restore(&restoration)?.files;
        Ok(files.into_iter().map(|file| (file.path.to_string_lossy().into_owned(), file.what)).collect())
    }
}

/// A project with staged, unstaged, deleted, untracked and ignored files.
pub fn dirty_project() -> Project {
    let project =
        Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n"), ("gone.txt", "g\n"), ("d/c.txt", "c\n")]);
    project.write(".gitignore", "*.log\n.env\n");
    project.commit("second");
    project.write("a.txt", "staged\n");
    project.git(["add", "a.txt"]);
    project.write("b.txt", "unstaged\n");
    project.remove("gone.txt");
    project.write("new/file.txt", "untracked\n");
    project.write("x.log", "ignored\n");
    project.write(".env", "KEY=1\n");
    project.link("a.txt", "link");
    project.set_mode("d/c.txt", 0o755);
    project
}

#[test]
fn checkout_has_the_status_and_log_of_the_user() {
    let checkout = Checkout::new(dirty_project());
    for args in [
        &["status", "--porcelain=v2", "--branch"][..],
        &["log", "--oneline", "--all"],
        &["diff"],
        &["diff", "--cached"],
        &["branch", "-a"],
    ] {
        assert_eq!(checkout.job.git(args), checkout.user.git(args), "{args:?}");
    }
    checkout.job.git(["fsck", "--strict"]);
}

#[test]
fn checkout_has_the_files_of_the_user_but_no_ignored_ones() {
    let checkout = Checkout::new(dirty_project());
    let mut expected = read_worktree(&checkout.user.worktree);
    expected.retain(|path, _| path != Path::new("x.log") && path != Path::new(".env"));
    assert_same_tree(&expected, &read_worktree(&checkout.job.worktree), "the checkout");
}

#[test]
fn worktreeinclude_adds_ignored_files() {
    let project = dirty_project();
    project.write(".worktreeinclude", "# keys\n.env\n");
    let checkout = Checkout::new(project);
    assert!(checkout.job.exists(".env"));
    assert!(!checkout.job.exists("x.log"));
}

#[test]
fn unmodified_files_are_clean_without_their_content() {
    let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
    // Older than the index, so that git trusts the times.
    for name in ["a.txt", "b.txt"] {
        let time = std::time::SystemTime::now() - std::time::Duration::from_mins(1);
        fs::File::open(project.path(name)).unwrap().set_modified(time).unwrap();
    }
    project.git(["update-index", "--refresh"]);
    project.write("b.txt", "c\n");
    let checkout = Checkout::new(project);
    let listed = checkout.job.git(["diff-files", "--name-only"]);
    assert_eq!(listed, "b.txt");
}

#[test]
fn agent_can_commit_and_branch_in_a_checkout() {
    let checkout = Checkout::new(dirty_project());
    let before = checkout.user.git(["for-each-ref"]);
    let described = checkout.record_job(|| {
        checkout.job.git(["checkout", "-q", "-b", "topic"]);
        checkout.job.write("a.txt", "job\n");
        checkout.job.commit("by the agent");
    });
    assert_eq!(described.len(), 1, "{described:?}");
    assert_eq!(checkout.user.git(["for-each-ref"]), before);
}

#[test]
fn git_of_the_user_does_not_notice_a_checkout() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    assert_eq!(checkout.user.git(["worktree", "list"]).lines().count(), 1);
    checkout.user.git(["gc", "-q", "--prune=now"]);
    checkout.job.git(["fsck", "--strict"]);
    checkout.job.write("a.txt", "b\n");
    checkout.job.commit("after gc");
}

#[test]
fn branch_has_the_state_after_the_job() {
    let checkout = Checkout::new(dirty_project());
    checkout.record_job(|| {
        checkout.job.write("a.txt", "job\n");
        checkout.job.remove("d/c.txt");
        checkout.job.write("by-job.txt", "new\n");
    });
    let before = read_exact(&checkout.user.worktree, |path| path.starts_with(".git"));
    let commit = checkout.publish().unwrap().unwrap();
    assert_same_tree(
        &before,
        &read_exact(&checkout.user.worktree, |path| path.starts_with(".git")),
        "the branch",
    );
    let user = &checkout.user;
    assert_eq!(user.git(["rev-parse", "switchboard/1"]), commit);
    let log = user.git(["log", "--format=%s", "switchboard/1"]);
    assert_eq!(log, "Job 1\nUncommitted changes of the user before the job\nsecond\nfirst");
    let changed = user.git(["diff", "--name-status", "switchboard/1~1", "switchboard/1"]);
    assert_eq!(changed, "M\ta.txt\nA\tby-job.txt\nD\td/c.txt");
    assert_eq!(user.git(["show", "switchboard/1:new/file.txt"]), "untracked");
    user.git(["fsck", "--strict", "--connectivity-only"]);
}

#[test]
fn branch_has_the_commits_of_the_agent() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| {
        checkout.job.write("a.txt", "one\n");
        checkout.job.commit("one");
        checkout.job.write("a.txt", "two\n");
        checkout.job.commit("two");
    });
    checkout.publish().unwrap().unwrap();
    let log = checkout.user.git(["log", "--format=%s", "switchboard/1"]);
    assert_eq!(log, "two\none\nfirst");
    remove_checkout(&checkout.job.worktree).unwrap();
    checkout.user.git(["fsck", "--strict"]);
}

#[test]
fn edits_of_the_user_are_a_commit_after_those_of_the_agent() {
    let project = Project::new(&[("a.txt", "a\n"), ("mine.txt", "mine\n")]);
    project.write("mine.txt", "edited\n");
    project.write("untracked.txt", "untracked\n");
    let checkout = Checkout::new(project);
    checkout.record_job(|| {
        checkout.job.write("a.txt", "one\n");
        checkout.job.git(["commit", "-qm", "one", "--", "a.txt"]);
        checkout.job.write("b.txt", "b\n");
    });
    checkout.publish().unwrap().unwrap();
    let log = checkout.user.git(["log", "--format=%s", "switchboard/1"]);
    assert_eq!(log, "Job 1\nUncommitted changes of the user before the job\none\nfirst");
    let files = |commit: &str| checkout.user.git(["show", "--format=", "--name-only", commit]);
    assert_eq!(files("switchboard/1"), "b.txt");
    assert_eq!(files("switchboard/1~"), "mine.txt\nuntracked.txt");
}

#[test]
fn job_without_changes_has_no_branch() {
    let checkout = Checkout::new(dirty_project());
    checkout.record_job(|| {});
    assert_eq!(checkout.publish().unwrap(), None);
    assert_eq!(checkout.user.git(["branch", "--list", "switchboard/*"]), "");
}

#[test]
fn branch_in_a_repository_without_commits_is_its_first_commit() {
    let project = Project::empty();
    project.write("a.txt", "a\n");
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("b.txt", "b\n"));
    checkout.publish().unwrap().unwrap();
    let log = checkout.user.git(["log", "--format=%s", "switchboard/1"]);
    assert_eq!(log, "Job 1\nUncommitted changes of the user before the job");
}

#[test]
fn branch_is_not_moved_through_a_link() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    checkout.user.link(&checkout.user.root, ".git/refs/heads/switchboard");
    assert!(matches!(checkout.publish(), Err(ChangesError::BrokenRepository { .. })));
    assert!(!checkout.user.root.join("1").exists());
}

#[test]
fn hooks_of_the_user_do_not_run_for_the_branch() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let hook = project.path(".git/hooks/reference-transaction");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\ntouch \"$GIT_DIR/ran\"\n").unwrap();
    project.set_mode(".git/hooks/reference-transaction", 0o755);
    let checkout = Checkout::new(project);
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    checkout.publish().unwrap().unwrap();
    assert!(!checkout.user.exists(".git/ran"));
}

#[test]
fn apply_merges_with_edits_of_the_user() {
    let lines = |first: &str, last: &str| format!("{first}\n1\n2\n3\n4\n5\n{last}\n");
    let checkout = Checkout::new(Project::new(&[("a.txt", &lines("a", "z")), ("b.txt", "b\n")]));
    checkout.record_job(|| {
        checkout.job.write("a.txt", lines("job", "z"));
        checkout.job.write("new.txt", "new\n");
        checkout.job.remove("b.txt");
    });
    checkout.user.write("a.txt", lines("a", "user"));
    let applied = checkout.apply(false).unwrap();
    let expected = [
        ("a.txt", RestoreAction::Merged),
        ("b.txt", RestoreAction::Deleted),
        ("new.txt", RestoreAction::Written),
    ];
    assert_eq!(applied, expected.map(|(path, what)| (path.to_owned(), what)));
    assert_eq!(checkout.user.read("a.txt"), lines("job", "user"));
    assert!(!checkout.user.exists("b.txt"));
    assert_eq!(checkout.user.git(["diff", "--cached", "--name-only"]), "", "the index of the user");
}

#[test]
fn apply_with_a_conflict_writes_nothing() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]));
    checkout.record_job(|| {
        checkout.job.write("a.txt", "job\n");
        checkout.job.write("b.txt", "job\n");
    });
    checkout.user.write("a.txt", "user\n");
    let Err(RestoreError::Conflicts(conflicts)) = checkout.apply(false) else { panic!("no conflict") };
    assert_eq!(conflicts.len(), 1);
    assert_eq!((&*conflicts[0].path, &conflicts[0].reason), (Path::new("a.txt"), &ConflictReason::SameLines));
    assert_eq!(checkout.user.read("b.txt"), "b\n");
}

#[test]
fn apply_with_markers_writes_the_conflict() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    checkout.user.write("a.txt", "user\n");
    assert_eq!(checkout.apply(true).unwrap(), [("a.txt".to_owned(), RestoreAction::Conflicted)]);
    assert_eq!(checkout.user.read("a.txt"), "<<<<<<< current\nuser\n=======\njob\n>>>>>>> job\n");
}

#[test]
fn applied_changes_can_be_undone_without_the_checkout() {
    let checkout = Checkout::new(dirty_project());
    let before = read_worktree(&checkout.user.worktree);
    checkout.record_job(|| {
        checkout.job.write("a.txt", "job\n");
        checkout.job.rename("b.txt", "e/f/b.txt");
    });
    checkout.job.record.seal().unwrap();
    remove_checkout(&checkout.job.worktree).unwrap();
    checkout.apply(false).unwrap();
    let target = checkout.user.repository();
    let undo = Restoration { target: Some(&target), ..Restoration::new(Direction::Undo, &[]) };
    checkout.job.record.restore(&undo).unwrap();
    assert_same_tree(&before, &read_worktree(&checkout.user.worktree), "apply and undo");
}

#[test]
fn dry_run_of_apply_writes_nothing() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "job\n"));
    let target = checkout.user.repository();
    let dry_run =
        Restoration { target: Some(&target), dry_run: true, ..Restoration::new(Direction::Redo, &[]) };
    let before = read_exact(&checkout.user.worktree, |_| false);
    assert_eq!(checkout.job.record.restore(&dry_run).unwrap().files.len(), 1);
    assert_same_tree(&before, &read_exact(&checkout.user.worktree, |_| false), "dry run");
}

#[test]
fn content_of_a_filter_is_that_of_the_user() {
    let project = Project::new(&[(".gitattributes", "*.bin filter=lfs\n"), ("a.bin", "pointer\n")]);
    project.write("a.bin", "content of the filter\n");
    let checkout = Checkout::new(project);
    assert_eq!(checkout.job.read("a.bin"), "content of the filter\n");
}

#[test]
fn submodule_is_an_empty_directory_and_reported() {
    let library = Project::new(&[("lib.txt", "l\n")]);
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git([
        "-c".as_ref(),
        "protocol.file.allow=always".as_ref(),
        "submodule".as_ref(),
        "add".as_ref(),
        "-q".as_ref(),
        library.worktree.as_os_str(),
        "lib".as_ref(),
    ]);
    project.commit("with a submodule");
    let checkout = Checkout::new(project);
    assert_eq!(checkout.without_content, [PathBuf::from("lib")]);
    assert!(fs::read_dir(checkout.job.path("lib")).unwrap().next().is_none());
    assert_eq!(checkout.record_job(|| {}), Vec::<String>::new());
}

#[test]
fn sparse_checkout_stays_sparse() {
    let project = Project::new(&[("in/a.txt", "a\n"), ("out/b.txt", "b\n")]);
    project.git(["sparse-checkout", "set", "--sparse-index", "in"]);
    let checkout = Checkout::new(project);
    assert!(!checkout.job.exists("out"));
    assert_eq!(checkout.job.git(["status", "--porcelain"]), "");
    let described = checkout.record_job(|| checkout.job.write("in/a.txt", "b\n"));
    assert_eq!(described.len(), 1);
    checkout.publish().unwrap().unwrap();
    assert_eq!(checkout.user.git(["show", "switchboard/1:out/b.txt"]), "b");
}

#[test]
fn unusual_indexes_are_copied() {
    for config in [&["index.version", "4"][..], &["core.splitIndex", "true"], &["feature.manyFiles", "true"]]
    {
        let project = Project::new(&[("a.txt", "a\n"), ("b.txt", "b\n")]);
        project.git([&["config"], config].concat());
        project.write("c.txt", "c\n");
        project.git(["add", "c.txt"]);
        let checkout = Checkout::new(project);
        let status = checkout.user.git(["status", "--porcelain"]);
        assert_eq!(checkout.job.git(["status", "--porcelain"]), status, "{config:?}");
        checkout.record_job(|| checkout.job.write("b.txt", "job\n"));
        checkout.publish().unwrap().unwrap();
        assert_eq!(checkout.user.git(["show", "switchboard/1:c.txt"]), "c", "{config:?}");
    }
}

#[test]
fn sha256_repository_is_checked_out() {
    let project = Project::without_repository();
    project.git(["init", "-q", "--object-format=sha256"]);
    project.write("a.txt", "a\n");
    project.commit("first");
    let checkout = Checkout::new(project);
    assert_eq!(checkout.job.git(["status", "--porcelain"]), "");
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    assert_eq!(checkout.publish().unwrap().unwrap().len(), 64);
}

#[test]
fn reftable_repository_is_checked_out() {
    let project = Project::without_repository();
    let mut init = git_command(&project.worktree);
    if !init.args(["init", "-q", "--ref-format=reftable"]).output().unwrap().status.success() {
        // Before git 2.45.
        return;
    }
    project.write("a.txt", "a\n");
    project.commit("first");
    project.git(["branch", "other"]);
    let checkout = Checkout::new(project);
    for args in [&["status", "--porcelain=v2", "--branch"][..], &["for-each-ref"], &["log", "--all"]] {
        assert_eq!(checkout.job.git(args), checkout.user.git(args), "{args:?}");
    }
    checkout.user.git(["checkout", "-q", "--detach"]);
    let directory = checkout.user.root.join("detached");
    create_checkout(&checkout.user.repository(), &directory, program(), LIMIT).unwrap();
    assert_eq!(git_in(&directory, ["rev-parse", "HEAD"]), checkout.user.head());
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    checkout.publish().unwrap().unwrap();
    assert_eq!(checkout.user.git(["log", "--format=%s", "switchboard/1"]), "Job 1\nfirst");
}

#[test]
fn linked_worktree_of_the_user_is_checked_out() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let linked = project.root.join("linked");
    project.git(["worktree".as_ref(), "add".as_ref(), "-q".as_ref(), linked.as_os_str()]);
    fs::write(linked.join("a.txt"), "linked\n").unwrap();
    let source = GitRepository::find(&linked).unwrap().unwrap();
    let directory = project.root.join("checkout");
    create_checkout(&source, &directory, program(), LIMIT).unwrap();
    assert_eq!(git_in(&directory, ["status", "--porcelain", "--branch"]), "## linked\n M a.txt");
    assert_eq!(project.git(["worktree", "list"]).lines().count(), 2);
}

#[test]
fn link_out_of_the_worktree_stays_a_link() {
    let project = Project::new(&[("a.txt", "a\n"), ("d/f.txt", "f\n")]);
    fs::write(project.root.join("key"), "secret").unwrap();
    fs::create_dir(project.root.join("outside")).unwrap();
    fs::write(project.root.join("outside/f.txt"), "secret").unwrap();
    project.link("../key", "key");
    project.remove("d/f.txt");
    fs::remove_dir(project.path("d")).unwrap();
    project.link("../outside", "d");
    let checkout = Checkout::new(project);
    assert_eq!(fs::read_link(checkout.job.path("key")).unwrap(), Path::new("../key"));
    assert_eq!(fs::read_link(checkout.job.path("d")).unwrap(), Path::new("../outside"));
}

#[test]
fn names_with_special_bytes_are_checked_out() {
    let project = Project::new(&[("a\nb", "1\n"), (" c ", "2\n"), ("\"q\"", "3\n"), ("ä/ö", "4\n")]);
    let checkout = Checkout::new(project);
    assert_eq!(checkout.job.git(["status", "--porcelain"]), "");
    let described = checkout.record_job(|| checkout.job.write("a\nb", "job\n"));
    assert_eq!(described.len(), 1);
    checkout.apply(false).unwrap();
    assert_eq!(checkout.user.read("a\nb"), "job\n");
}

#[test]
fn incomplete_checkout_is_replaced() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let directory = project.root.join("checkout");
    fs::create_dir_all(directory.join(".git")).unwrap();
    fs::write(directory.join("leftover"), "").unwrap();
    create_checkout(&project.repository(), &directory, program(), LIMIT).unwrap();
    assert!(!directory.join("leftover").exists() && directory.join("a.txt").exists());
}

#[test]
fn checkout_with_locked_directories_is_removed() {
    let checkout = Checkout::new(Project::new(&[("d/a.txt", "a\n")]));
    checkout.job.set_mode("d", 0o000);
    remove_checkout(&checkout.job.worktree).unwrap();
    assert!(!checkout.job.worktree.exists());
}

#[test]
fn new_branch_replaces_no_other() {
    let checkout = Checkout::new(dirty_project());
    checkout.record_job(|| checkout.job.write("new.txt", "new\n"));
    checkout.user.git(["branch", "switchboard/1"]);
    let before = checkout.user.git(["rev-parse", "switchboard/1"]);
    let refused = checkout.publish_as(true);
    assert!(matches!(refused, Err(ChangesError::BranchExists { .. })), "{refused:?}");
    assert_eq!(checkout.user.git(["rev-parse", "switchboard/1"]), before);
    checkout.user.git(["branch", "-D", "switchboard/1"]);
    assert!(checkout.publish_as(true).unwrap().is_some());
}

#[test]
fn branch_of_a_killed_publication_is_replaced() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    // Its caller was killed before it could store the name.
    assert!(checkout.publish_as(true).unwrap().is_some());
    let commit = checkout.publish_as(true).unwrap().unwrap();
    assert_eq!(checkout.user.git(["rev-parse", "switchboard/1"]).trim(), commit);
    assert_eq!(checkout.user.git(["branch", "--list", "switchboard/*"]).lines().count(), 1);
    // The user has moved it since.
    checkout.user.git(["branch", "-f", "switchboard/1", "HEAD"]);
    assert!(matches!(checkout.publish_as(true), Err(ChangesError::BranchExists { .. })));
}

#[test]
fn branch_that_is_checked_out_is_not_deleted() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let commit = checkout.publish().unwrap().unwrap();
    let (user, linked) = (&checkout.user, checkout.user.root.join("linked"));
    let delete = || checkout.job.record.delete_branch(&user.repository(), "switchboard/1", &commit, LIMIT);
    user.git(["checkout", "-q", "switchboard/1"]);
    assert!(matches!(delete(), Err(ChangesError::BranchInUse { .. })));
    user.git(["checkout", "-q", "-"]);
    user.git(["worktree", "add", "-q", linked.to_str().unwrap(), "switchboard/1"]);
    assert!(matches!(delete(), Err(ChangesError::BranchInUse { .. })));
    user.git(["worktree", "remove", linked.to_str().unwrap()]);
    delete().unwrap();
}

#[test]
fn moved_branch_is_not_deleted() {
    let checkout = Checkout::new(Project::new(&[("a.txt", "a\n")]));
    checkout.record_job(|| checkout.job.write("a.txt", "b\n"));
    let commit = checkout.publish().unwrap().unwrap();
    let delete =
        || checkout.job.record.delete_branch(&checkout.user.repository(), "switchboard/1", &commit, LIMIT);
    checkout.user.git(["branch", "-f", "switchboard/1", "HEAD"]);
    assert!(delete().is_err());
    checkout.user.git(["branch", "-f", "switchboard/1", &commit]);
    delete().unwrap();
    assert_eq!(checkout.user.git(["branch", "--list", "switchboard/*"]), "");
    assert_eq!(describe(&checkout.job.record.read().unwrap().unwrap()).len(), 1);
}

#[test]
fn continued_record_has_the_changes_of_both_jobs() {
    let checkout = Checkout::new(dirty_project());
    checkout.record_job(|| checkout.job.write("a.txt", "first job\n"));
    let next = ChangeRecord::new(checkout.job.root.join("next")).with_git(program());
    next.continue_from(&checkout.job.record).unwrap();
    checkout.job.write("by-second.txt", "second job\n");
    let changes = next.finish(LIMIT, &[]).unwrap();
    assert_eq!(describe(&changes).len(), 2, "{changes:?}");
    // Another daemon may repeat the step.
    next.continue_from(&checkout.job.record).unwrap();
    assert_eq!(next.read().unwrap().unwrap(), changes);
    assert_eq!(describe(&checkout.job.record.read().unwrap().unwrap()).len(), 1);
    let target = checkout.user.repository();
    let apply = Restoration { target: Some(&target), ..Restoration::new(Direction::Redo, &[]) };
    next.restore(&apply).unwrap();
    assert_eq!(checkout.user.read("a.txt"), "first job\n");
    assert_eq!(checkout.user.read("by-second.txt"), "second job\n");
}
