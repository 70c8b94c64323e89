use std::os::unix::fs::PermissionsExt;

use std::fs::File;
use std::os::unix::fs::symlink;

use super::store::MAX_COPY_BYTES;
use super::*;
use crate::unlock::relative_path;

struct Harness {
    directory: tempfile::TempDir,
}

impl Harness {
    fn new() -> Self {
        let harness = Self { directory: tempfile::tempdir().unwrap() };
        for name in ["ws/.git", "run"] {
            fs::create_dir_all(harness.path(name)).unwrap();
        }
        harness
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }

    fn quarantine(&self, missing: &[(&str, QuarantineTime)]) -> Quarantine {
        let mut quarantine = Quarantine::default();
        for (name, time) in missing {
            quarantine.add(self.path(name), *time);
        }
        quarantine
    }

    fn with_store<T>(&self, run: &str, act: impl FnOnce(QuarantineStore<'_>) -> T) -> T {
        let path = self.path(run);
        let directory = File::open(&path).unwrap();
        act(QuarantineStore { directory: directory.as_fd(), path: &path, mark: "r1" })
    }

    fn sweep(&self, quarantine: &Quarantine) -> Vec<(PathBuf, Option<PathBuf>)> {
        let swept = self.with_store("run", |store| quarantine.sweep(&HeldRoots::default(), store, |_| ()));
        swept.into_iter().map(|entry| (entry.path, entry.moved_to)).collect()
    }

    fn stored(&self, name: &str) -> PathBuf {
        self.path("run/quarantine").join(relative_path(&self.path(name)))
    }
}

#[test]
fn created_directory_is_moved_with_its_contents() {
    let harness = Harness::new();
    let quarantine =
        harness.quarantine(&[("ws/.envrc", QuarantineTime::AtEnd), ("ws/.claude", QuarantineTime::AtEnd)]);
    fs::create_dir(harness.path("ws/.claude")).unwrap();
    fs::write(harness.path("ws/.claude/settings.json"), "{}").unwrap();
    let expected = [(harness.path("ws/.claude"), Some(harness.stored("ws/.claude")))];
    assert_eq!(harness.sweep(&quarantine), expected);
    assert!(!harness.path("ws/.claude").exists());
    assert_eq!(fs::read_to_string(harness.stored("ws/.claude/settings.json")).unwrap(), "{}");
    // After a kill, the recovery returns the same.
    assert_eq!(harness.sweep(&quarantine), expected);
}

#[test]
fn second_copy_does_not_overwrite_the_first() {
    let harness = Harness::new();
    let quarantine = harness.quarantine(&[("ws/.git/commondir", QuarantineTime::AtOnce)]);
    for text in ["one", "two"] {
        fs::write(harness.path("ws/.git/commondir"), text).unwrap();
        let found =
            harness.with_store("run", |store| quarantine.move_at_once(&HeldRoots::default(), store).len());
        assert_eq!(found, 1);
    }
    assert_eq!(fs::read_to_string(harness.stored("ws/.git/commondir")).unwrap(), "one");
    assert_eq!(fs::read_to_string(harness.stored("ws/.git/commondir.2")).unwrap(), "two");
    assert_eq!(harness.sweep(&quarantine).len(), 2);
}

#[test]
fn link_is_moved_and_its_target_is_not() {
    let harness = Harness::new();
    let quarantine =
        harness.quarantine(&[("ws/.envrc", QuarantineTime::AtEnd), ("ws/sub/x", QuarantineTime::AtEnd)]);
    fs::create_dir(harness.path("other")).unwrap();
    for name in ["other/target", "other/x"] {
        fs::write(harness.path(name), "").unwrap();
    }
    symlink(harness.path("other/target"), harness.path("ws/.envrc")).unwrap();
    // A link instead of a parent directory is not followed.
    symlink(harness.path("other"), harness.path("ws/sub")).unwrap();
    let swept = harness.sweep(&quarantine);
    assert!(harness.path("other/target").exists() && harness.path("other/x").exists());
    assert_eq!(fs::read_link(harness.stored("ws/.envrc")).unwrap(), harness.path("other/target"));
    assert_eq!(swept[1], (harness.path("ws/sub/x"), None), "a path that cannot be moved is reported");
}

#[test]
fn read_only_directory_does_not_prevent_a_move() {
    let harness = Harness::new();
    let quarantine = harness.quarantine(&[("ws/.claude", QuarantineTime::AtEnd)]);
    fs::create_dir(harness.path("ws/.claude")).unwrap();
    let set =
        |name: &str, mode| fs::set_permissions(harness.path(name), fs::Permissions::from_mode(mode)).unwrap();
    set("ws/.claude", 0o500);
    set("ws", 0o500);
    harness.sweep(&quarantine);
    let mode = fs::metadata(harness.path("ws")).unwrap().permissions().mode();
    set("ws", 0o700);
    assert!(!harness.path("ws/.claude").exists());
    assert_eq!(mode & 0o777, 0o500);
}

/// Runs a test as an ordinary user, since nothing is locked for root. Only one thread changes its user.
fn as_ordinary_user(test: impl FnOnce() + Send) {
    let ordinary = || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        test();
    };
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(ordinary).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn created_paths_in_locked_workspace_are_moved() {
    as_ordinary_user(|| {
        let harness = Harness::new();
        let missing = ["ws/.envrc", "ws/.claude", "ws/.git/hooks", "ws/.git/config.worktree"];
        let quarantine = harness.quarantine(&missing.map(|name| (name, QuarantineTime::AtOnce)));
        fs::write(harness.path("ws/.envrc"), "").unwrap();
        fs::create_dir(harness.path("ws/.git/hooks")).unwrap();
        let set = |name: &str, mode| {
            fs::set_permissions(harness.path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        set("ws/.git", 0o000);
        set("ws", 0o000);
        let found =
            harness.with_store("run", |store| quarantine.move_at_once(&HeldRoots::default(), store).len());
        let swept = harness.sweep(&quarantine);
        let mode = fs::metadata(harness.path("ws")).unwrap().permissions().mode();
        set("ws", 0o700);
        set("ws/.git", 0o700);
        let moved =
            ["ws/.envrc", "ws/.git/hooks"].map(|name| (harness.path(name), Some(harness.stored(name))));
        assert_eq!((found, swept), (2, moved.to_vec()));
        assert_eq!(mode & 0o777, 0, "the mode is restored");
    });
}

#[test]
fn unexamined_directory_is_reported_once() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let harness = Harness::new();
    let quarantine =
        harness.quarantine(&["ws/.envrc", "ws/.claude"].map(|name| (name, QuarantineTime::AtEnd)));
    let parents = [harness.directory.path(), &harness.path("run")];
    for directory in parents {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // It belongs to root, so an ordinary user cannot unlock it.
    fs::set_permissions(harness.path("ws"), fs::Permissions::from_mode(0o700)).unwrap();
    as_ordinary_user(|| {
        let swept = harness.with_store("run", |store| quarantine.sweep(&HeldRoots::default(), store, |_| ()));
        assert_eq!(swept, [Quarantined { path: harness.path("ws"), moved_to: None, unexamined: true }]);
        assert_eq!(
            harness.with_store("run", |store| quarantine.move_at_once(&HeldRoots::default(), store).len()),
            0
        );
    });
}

#[test]
fn new_repository_stays_unless_it_runs_commands() {
    let harness = Harness::new();
    fs::remove_dir(harness.path("ws/.git")).unwrap();
    let quarantine = harness.quarantine(&[("ws/.git", QuarantineTime::AtEndUnlessInert)]);
    fs::create_dir_all(harness.path("ws/.git/hooks")).unwrap();
    assert_eq!(harness.sweep(&quarantine), []);
    fs::write(harness.path("ws/.git/hooks/pre-commit"), "").unwrap();
    assert_eq!(harness.sweep(&quarantine).len(), 1);
    assert!(!harness.path("ws/.git").exists());
}

#[test]
fn copy_to_another_file_system_is_whole_or_stays_renamed() {
    let harness = Harness::new();
    // `/dev/shm` is a separate file system on every Linux machine.
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return };
    let mut quarantine = Quarantine::default();
    let (small, large) = (shm.path().join(".claude"), shm.path().join(".vscode"));
    quarantine.add(small.clone(), QuarantineTime::AtEnd);
    quarantine.add(large.clone(), QuarantineTime::AtEnd);
    fs::create_dir(&small).unwrap();
    fs::write(small.join("settings.json"), "{}").unwrap();
    symlink("settings.json", small.join("link")).unwrap();
    fs::create_dir(&large).unwrap();
    File::create(large.join("large")).unwrap().set_len(MAX_COPY_BYTES + 1).unwrap();
    let swept = harness.sweep(&quarantine);
    let stored = harness.path("run/quarantine").join(relative_path(&small));
    let renamed = shm.path().join(".vscode.quarantined-r1");
    assert_eq!(swept, [(small.clone(), Some(stored.clone())), (large.clone(), Some(renamed.clone()))]);
    assert_eq!(fs::read_to_string(stored.join("settings.json")).unwrap(), "{}");
    assert_eq!(fs::read_link(stored.join("link")).unwrap(), Path::new("settings.json"));
    assert_eq!(fs::metadata(renamed.join("large")).unwrap().len(), MAX_COPY_BYTES + 1);
    let left: Vec<_> = fs::read_dir(shm.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".vscode.quarantined-r1"]);
}

#[test]
fn link_of_another_run_in_kept_state_is_moved() {
    let harness = Harness::new();
    let (kept, other) = (harness.path("sessions"), harness.path("other"));
    for directory in [&kept, &other, &harness.path("first")] {
        fs::create_dir(directory).unwrap();
    }
    let mut first = Quarantine::default();
    first.watch_kept_state(std::slice::from_ref(&kept), &harness.path("first"), &[]).unwrap();
    let link = kept.join("link");
    symlink("/etc", &link).unwrap();
    let second = harness.path("second");
    let link_time = change_time(&fs::symlink_metadata(&link).unwrap());
    // The clock of the file system has a coarse resolution.
    loop {
        fs::create_dir(&second).unwrap();
        if change_time(&fs::metadata(&second).unwrap()) > link_time {
            break;
        }
        fs::remove_dir(&second).unwrap();
    }
    let swept = |directory: &Path, others: &[Quarantine]| {
        let mut quarantine = Quarantine::default();
        quarantine.watch_kept_state(&[directory.to_owned()], &second, others).unwrap();
        harness.sweep(&quarantine).len()
    };
    assert_eq!(swept(&kept, &[]), 0, "it is older than the run");
    assert_eq!(swept(&other, std::slice::from_ref(&first)), 0, "it is not in the directory of the run");
    assert_eq!(swept(&kept, &[first]), 1);
    assert!(fs::symlink_metadata(&link).is_err());
}

#[test]
fn planted_path_is_recorded_before_it_is_moved() {
    let harness = Harness::new();
    let git = harness.path("ws/.git");
    fs::write(git.join("config"), "[core]\nfsmonitor = x\n").unwrap();
    let repositories = RepositoryWatch::new(vec![harness.path("ws")]);
    let quarantine = Quarantine { repositories, ..Quarantine::default() };
    let mut recorded = None;
    let record = |list: &Quarantine| {
        assert!(git.exists());
        recorded = Some(list.clone());
    };
    let swept = harness.with_store("run", |store| quarantine.sweep(&HeldRoots::default(), store, record));
    assert_eq!(swept.len(), 1);
    // After a kill, the recovery has only the list.
    assert_eq!(harness.sweep(&recorded.unwrap()), [(git, Some(harness.stored("ws/.git")))]);
}
