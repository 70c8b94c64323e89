use std::os::unix::fs::PermissionsExt;

use super::*;

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap() };
        for name in ["ws/.git", "run"] {
            fs::create_dir_all(scene.path(name)).unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
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
        self.path("run/quarantine").join(relative(&self.path(name)))
    }
}

#[test]
fn created_paths_are_moved_with_their_contents_and_listed_again() {
    let scene = Scene::new();
    let quarantine =
        scene.quarantine(&[("ws/.envrc", QuarantineTime::AtEnd), ("ws/.claude", QuarantineTime::AtEnd)]);
    fs::create_dir(scene.path("ws/.claude")).unwrap();
    fs::write(scene.path("ws/.claude/settings.json"), "{}").unwrap();
    let expected = [(scene.path("ws/.claude"), Some(scene.stored("ws/.claude")))];
    assert_eq!(scene.sweep(&quarantine), expected);
    assert!(!scene.path("ws/.claude").exists());
    assert_eq!(fs::read_to_string(scene.stored("ws/.claude/settings.json")).unwrap(), "{}");
    // After a kill in between, the recovery finds the same.
    assert_eq!(scene.sweep(&quarantine), expected);
}

#[test]
fn second_copy_does_not_overwrite_the_first() {
    let scene = Scene::new();
    let quarantine = scene.quarantine(&[("ws/.git/commondir", QuarantineTime::AtOnce)]);
    for text in ["one", "two"] {
        fs::write(scene.path("ws/.git/commondir"), text).unwrap();
        let found =
            scene.with_store("run", |store| quarantine.move_at_once(&HeldRoots::default(), store).len());
        assert_eq!(found, 1);
    }
    assert_eq!(fs::read_to_string(scene.stored("ws/.git/commondir")).unwrap(), "one");
    assert_eq!(fs::read_to_string(scene.stored("ws/.git/commondir.2")).unwrap(), "two");
    assert_eq!(scene.sweep(&quarantine).len(), 2);
}

#[test]
fn link_is_moved_and_its_target_is_not() {
    let scene = Scene::new();
    let quarantine =
        scene.quarantine(&[("ws/.envrc", QuarantineTime::AtEnd), ("ws/sub/x", QuarantineTime::AtEnd)]);
    fs::create_dir(scene.path("other")).unwrap();
    for name in ["other/target", "other/x"] {
        fs::write(scene.path(name), "").unwrap();
    }
    symlink(scene.path("other/target"), scene.path("ws/.envrc")).unwrap();
    // A link in the place of a directory on the way leads nowhere.
    symlink(scene.path("other"), scene.path("ws/sub")).unwrap();
    let swept = scene.sweep(&quarantine);
    assert!(scene.path("other/target").exists() && scene.path("other/x").exists());
    assert_eq!(fs::read_link(scene.stored("ws/.envrc")).unwrap(), scene.path("other/target"));
    assert_eq!(swept[1], (scene.path("ws/sub/x"), None), "what could not be moved is reported");
}

#[test]
fn directory_without_rights_does_not_keep_a_path() {
    let scene = Scene::new();
    let quarantine = scene.quarantine(&[("ws/.claude", QuarantineTime::AtEnd)]);
    fs::create_dir(scene.path("ws/.claude")).unwrap();
    let set =
        |name: &str, mode| fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
    set("ws/.claude", 0o500);
    set("ws", 0o500);
    scene.sweep(&quarantine);
    let mode = fs::metadata(scene.path("ws")).unwrap().permissions().mode();
    set("ws", 0o700);
    assert!(!scene.path("ws/.claude").exists());
    assert_eq!(mode & 0o777, 0o500);
}

/// Runs a test as an ordinary user: nothing is locked to root. Only one thread changes its user.
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
fn locked_workspace_yields_created_paths_and_no_others() {
    as_ordinary_user(|| {
        let scene = Scene::new();
        let missing = ["ws/.envrc", "ws/.claude", "ws/.git/hooks", "ws/.git/config.worktree"];
        let quarantine = scene.quarantine(&missing.map(|name| (name, QuarantineTime::AtOnce)));
        fs::write(scene.path("ws/.envrc"), "").unwrap();
        fs::create_dir(scene.path("ws/.git/hooks")).unwrap();
        let set = |name: &str, mode| {
            fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        set("ws/.git", 0o000);
        set("ws", 0o000);
        let found =
            scene.with_store("run", |store| quarantine.move_at_once(&HeldRoots::default(), store).len());
        let swept = scene.sweep(&quarantine);
        let mode = fs::metadata(scene.path("ws")).unwrap().permissions().mode();
        set("ws", 0o700);
        set("ws/.git", 0o700);
        let moved = ["ws/.envrc", "ws/.git/hooks"].map(|name| (scene.path(name), Some(scene.stored(name))));
        assert_eq!((found, swept), (2, moved.to_vec()));
        assert_eq!(mode & 0o777, 0, "the mode is restored");
    });
}

#[test]
fn unexamined_directory_is_reported_once() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    let quarantine = scene.quarantine(&["ws/.envrc", "ws/.claude"].map(|name| (name, QuarantineTime::AtEnd)));
    let parents = [scene.folder.path(), &scene.path("run")];
    for directory in parents {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // It belongs to root, so an ordinary user cannot unlock it.
    fs::set_permissions(scene.path("ws"), fs::Permissions::from_mode(0o700)).unwrap();
    as_ordinary_user(|| {
        let swept = scene.with_store("run", |store| quarantine.sweep(&HeldRoots::default(), store, |_| ()));
        assert_eq!(swept, [Quarantined { path: scene.path("ws"), moved_to: None, unexamined: true }]);
        assert_eq!(
            scene.with_store("run", |store| quarantine.move_at_once(&HeldRoots::default(), store).len()),
            0
        );
    });
}

#[test]
fn new_repository_stays_unless_it_runs_commands() {
    let scene = Scene::new();
    fs::remove_dir(scene.path("ws/.git")).unwrap();
    let quarantine = scene.quarantine(&[("ws/.git", QuarantineTime::AtEndUnlessInert)]);
    fs::create_dir_all(scene.path("ws/.git/hooks")).unwrap();
    assert_eq!(scene.sweep(&quarantine), []);
    fs::write(scene.path("ws/.git/hooks/pre-commit"), "").unwrap();
    assert_eq!(scene.sweep(&quarantine).len(), 1);
    assert!(!scene.path("ws/.git").exists());
}

/// Where nothing can be renamed into the store, as on another file system.
#[test]
fn copy_to_another_file_system_is_whole_or_stays_renamed() {
    let scene = Scene::new();
    // The shared memory of every Linux machine is a file system of its own.
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return };
    let mut quarantine = Quarantine::default();
    let (small, large) = (shm.path().join(".claude"), shm.path().join(".vscode"));
    quarantine.add(small.clone(), QuarantineTime::AtEnd);
    quarantine.add(large.clone(), QuarantineTime::AtEnd);
    fs::create_dir(&small).unwrap();
    fs::write(small.join("settings.json"), "{}").unwrap();
    symlink("settings.json", small.join("link")).unwrap();
    fs::create_dir(&large).unwrap();
    File::create(large.join("large")).unwrap().set_len(COPY_BYTES + 1).unwrap();
    let swept = scene.sweep(&quarantine);
    let stored = scene.path("run/quarantine").join(relative(&small));
    let renamed = shm.path().join(".vscode.quarantined-r1");
    assert_eq!(swept, [(small.clone(), Some(stored.clone())), (large.clone(), Some(renamed.clone()))]);
    assert_eq!(fs::read_to_string(stored.join("settings.json")).unwrap(), "{}");
    assert_eq!(fs::read_link(stored.join("link")).unwrap(), Path::new("settings.json"));
    assert_eq!(fs::metadata(renamed.join("large")).unwrap().len(), COPY_BYTES + 1);
    let left: Vec<_> = fs::read_dir(shm.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".vscode.quarantined-r1"]);
}

#[test]
fn link_of_another_active_run_in_kept_state_is_moved() {
    let scene = Scene::new();
    let (kept, other) = (scene.path("sessions"), scene.path("other"));
    for directory in [&kept, &other, &scene.path("first")] {
        fs::create_dir(directory).unwrap();
    }
    let mut first = Quarantine::default();
    first.keep_plain(std::slice::from_ref(&kept), &scene.path("first"), &[]).unwrap();
    let link = kept.join("link");
    symlink("/etc", &link).unwrap();
    let second = scene.path("second");
    let link_time = change_time(&fs::symlink_metadata(&link).unwrap());
    // The clock of the file system has ticks.
    loop {
        fs::create_dir(&second).unwrap();
        if change_time(&fs::metadata(&second).unwrap()) > link_time {
            break;
        }
        fs::remove_dir(&second).unwrap();
    }
    let swept = |directory: &Path, others: &[Quarantine]| {
        let mut quarantine = Quarantine::default();
        quarantine.keep_plain(&[directory.to_owned()], &second, others).unwrap();
        scene.sweep(&quarantine).len()
    };
    assert_eq!(swept(&kept, &[]), 0, "it is older than the run");
    assert_eq!(swept(&other, std::slice::from_ref(&first)), 0, "it is not in the directory of the run");
    assert_eq!(swept(&kept, &[first]), 1);
    assert!(fs::symlink_metadata(&link).is_err());
}

#[test]
fn path_found_by_the_sweep_is_recorded_before_it_is_moved() {
    let scene = Scene::new();
    let git = scene.path("ws/.git");
    fs::write(git.join("config"), "[core]\nfsmonitor = x\n").unwrap();
    let repositories = RepositoryWatch::new(vec![scene.path("ws")]);
    let quarantine = Quarantine { repositories, ..Quarantine::default() };
    let mut recorded = None;
    let record = |list: &Quarantine| {
        assert!(git.exists());
        recorded = Some(list.clone());
    };
    let swept = scene.with_store("run", |store| quarantine.sweep(&HeldRoots::default(), store, record));
    assert_eq!(swept.len(), 1);
    // After a kill, the recovery knows only the list.
    assert_eq!(scene.sweep(&recorded.unwrap()), [(git, Some(scene.stored("ws/.git")))]);
}
