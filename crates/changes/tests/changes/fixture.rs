//! A git repository with a record of changes, both in a temporary directory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use changes::{
    ChangeRecord, Conflict, ConflictReason, Direction, GitProgram, GitRepository, Restoration, RestoreError,
    Restored, RestoredFile,
};
use model::{ChangeExtent, ChangeKind, ChangeSet, FileChange};
use tempfile::TempDir;

use crate::file_tree::{FileTree, assert_same_tree, read_exact, read_worktree};

/// Long enough for a slow machine.
pub const LIMIT: Duration = Duration::from_mins(2);

/// Opens a record with the git in `PATH`.
pub fn open_record(directory: PathBuf) -> ChangeRecord {
    let path = std::env::var_os("PATH").unwrap();
    ChangeRecord::new(directory).with_git(GitProgram { program: "git".into(), path })
}

/// A repository in `work` and a record in `record`, below one temporary directory.
pub struct Project {
    /// Removes the directory at the end of the test.
    _directory: Option<TempDir>,
    /// The directory of the repository, the record and other files of the test.
    pub root: PathBuf,
    /// The worktree.
    pub worktree: PathBuf,
    /// The record.
    pub record: ChangeRecord,
}

impl Project {
    /// Creates an empty directory without a repository.
    pub fn without_repository() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir(root.join("work")).unwrap();
        Self { _directory: Some(directory), ..Self::open(root) }
    }

    /// Opens the directory of another fixture, which removes it.
    pub fn open(root: PathBuf) -> Self {
        let record = open_record(root.join("record"));
        Self { _directory: None, worktree: root.join("work"), record, root }
    }

    /// Creates a repository without commits.
    pub fn empty() -> Self {
        let project = Self::without_repository();
        project.git(["init", "-q"]);
        project
    }

    /// Creates a repository with one commit.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let project = Self::empty();
        for (path, content) in files {
            project.write(path, content);
        }
        project.commit("first");
        project
    }

    /// Returns the absolute path of a file.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.worktree.join(path)
    }

    /// Writes a file and creates its directories.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Reads a file as text.
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Removes a file.
    pub fn remove(&self, path: impl AsRef<Path>) {
        fs::remove_file(self.path(path)).unwrap();
    }

    /// Renames a file or directory.
    pub fn rename(&self, from: &str, to: &str) {
        fs::create_dir_all(self.path(to).parent().unwrap()).unwrap();
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Creates a symbolic link.
    pub fn link(&self, target: impl AsRef<Path>, path: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    /// Sets the permissions of a file.
    pub fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Sets the modification times of files to the same time long ago.
    pub fn age(&self, paths: &[&str]) {
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
        for path in paths {
            fs::File::open(self.path(path)).unwrap().set_modified(long_ago).unwrap();
        }
    }

    /// Returns the permissions of a file.
    pub fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.path(path)).unwrap().permissions().mode() & 0o7777
    }

    /// Returns whether anything is at a path.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// Runs git in the worktree and returns its trimmed output.
    #[track_caller]
    pub fn git<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> String {
        git_in(&self.worktree, args)
    }

    /// Commits all files.
    pub fn commit(&self, message: &str) {
        self.git(["add", "-A"]);
        self.git(["commit", "-q", "--allow-empty", "-m", message]);
    }

    /// Returns the commit of HEAD.
    pub fn head(&self) -> String {
        self.git(["rev-parse", "HEAD"])
    }

    /// Finds the repository.
    pub fn repository(&self) -> GitRepository {
        GitRepository::find(&self.worktree).unwrap().unwrap()
    }

    /// Takes the snapshot before the job.
    #[track_caller]
    pub fn begin(&self) {
        self.guard_all("begin", || self.record.begin(&self.repository(), LIMIT)).unwrap();
    }

    /// Takes the snapshot after the job, and checks the stored result.
    #[track_caller]
    pub fn finish(&self) -> ChangeSet {
        let change_set = self.guard_all("finish", || self.record.finish(LIMIT, &[])).unwrap();
        assert_eq!(self.record.read().unwrap().as_ref(), Some(&change_set));
        change_set
    }

    /// Records a job and describes the changed files.
    #[track_caller]
    pub fn record_job(&self, job: impl FnOnce()) -> Vec<String> {
        self.begin();
        job();
        describe(&self.finish())
    }

    /// Returns the patch of some files, or of all.
    #[track_caller]
    pub fn patch(&self, paths: &[&str]) -> String {
        let patch = self.guard_all("patch", || self.record.patch(&to_paths(paths))).unwrap();
        String::from_utf8_lossy(&patch).into_owned()
    }

    /// Restores some files, or all.
    #[track_caller]
    pub fn try_restore(&self, direction: Direction, paths: &[&str]) -> Result<Restored, RestoreError> {
        let before = self.read_protected();
        let restored = self.record.restore(&Restoration::new(direction, &to_paths(paths)));
        assert_same_tree(&before, &self.read_protected(), "restore");
        restored
    }

    /// Undoes the job.
    #[track_caller]
    pub fn undo(&self) -> Vec<RestoredFile> {
        self.try_restore(Direction::Undo, &[]).unwrap().files
    }

    /// Repeats the job after an undo.
    #[track_caller]
    pub fn redo(&self) -> Vec<RestoredFile> {
        self.try_restore(Direction::Redo, &[]).unwrap().files
    }

    /// Expects conflicts, and that no file changed.
    #[track_caller]
    pub fn expect_conflicts(&self, direction: Direction) -> Vec<(PathBuf, ConflictReason)> {
        let before = read_exact(&self.root, |path| path.starts_with("record"));
        let conflicts = match self.record.restore(&Restoration::new(direction, &[])) {
            Err(RestoreError::Conflicts(conflicts)) => conflicts,
            other => panic!("{other:?}"),
        };
        let after = read_exact(&self.root, |path| path.starts_with("record"));
        assert_same_tree(&before, &after, "a restoration with conflicts");
        conflicts.into_iter().map(|Conflict { path, reason }| (path, reason)).collect()
    }

    /// Records a job, and asserts that undo and redo give the same files and directories as before and after it.
    #[track_caller]
    pub fn assert_round_trip(&self, job: impl FnOnce()) {
        let before = read_worktree(&self.worktree);
        self.record_job(job);
        self.assert_restorable(&before);
    }

    /// Asserts that undo gives some earlier files, and redo the present ones.
    #[track_caller]
    pub fn assert_restorable(&self, before: &FileTree) {
        let after = read_worktree(&self.worktree);
        self.undo();
        assert_same_tree(before, &read_worktree(&self.worktree), "job and undo");
        self.redo();
        assert_same_tree(&after, &read_worktree(&self.worktree), "undo and redo");
    }

    /// Runs a step that must not change any file outside of the record.
    #[track_caller]
    pub fn guard_all<T>(&self, step: &str, run: impl FnOnce() -> T) -> T {
        let is_record = |path: &Path| path.starts_with("record") || path.starts_with("work/.record");
        let before = read_exact(&self.root, is_record);
        let result = run();
        assert_same_tree(&before, &read_exact(&self.root, is_record), step);
        result
    }

    /// Reads everything but the files of the worktree.
    fn read_protected(&self) -> FileTree {
        let is_record = |path: &Path| path.starts_with("record") || path.starts_with("work/.record");
        let mut tree = read_exact(&self.root, is_record);
        tree.retain(|path, _| {
            !path.starts_with("work") || path.components().any(|part| part.as_os_str() == ".git")
        });
        tree
    }
}

/// Runs git in a directory, without the configuration of the user.
#[track_caller]
pub fn git_in<A: AsRef<OsStr>>(directory: &Path, args: impl IntoIterator<Item = A>) -> String {
    let output = git_command(directory).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Returns a git command without the configuration of the user.
pub fn git_command(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "Ana").env(format!("GIT_{role}_EMAIL"), "ana@example.org");
    }
    command.args(["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]);
    command.args(["-c", "advice.detachedHead=false", "-c", "gc.auto=0"]);
    command
}

/// Runs a test of this binary again in a process of its own, with other variables of the environment.
#[track_caller]
pub fn run_test_in_process(name: &str, variables: &[(&str, &OsStr)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

/// Describes the changed files, one per line.
pub fn describe(change_set: &ChangeSet) -> Vec<String> {
    change_set.files.iter().map(describe_file).collect()
}

fn describe_file(file: &FileChange) -> String {
    let path = file.path.display();
    let kind = match &file.kind {
        ChangeKind::Added => format!("added {path}"),
        ChangeKind::Modified => format!("modified {path}"),
        ChangeKind::Deleted => format!("deleted {path}"),
        ChangeKind::Renamed { from } => format!("renamed {} to {path}", from.display()),
        ChangeKind::ModeChanged => format!("mode changed {path}"),
        ChangeKind::TypeChanged => format!("type changed {path}"),
    };
    let size = |size: &Option<u64>| size.map_or("none".to_owned(), |size| size.to_string());
    let commit = |commit: &Option<String>| commit.clone().unwrap_or_else(|| "none".into());
    let extent = match &file.extent {
        ChangeExtent::Text { added, removed } => format!("+{added} -{removed}"),
        ChangeExtent::Binary { before, after } => format!("{} to {} bytes", size(before), size(after)),
        ChangeExtent::Submodule { before, after } => format!("{} to {}", commit(before), commit(after)),
        ChangeExtent::NotRecorded { reason } => format!("{reason:?}"),
    };
    format!("{kind} {extent}")
}

fn to_paths(paths: &[&str]) -> Vec<PathBuf> {
    paths.iter().map(PathBuf::from).collect()
}
