//! The spool: what stands in it when, and what happens when it fails.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use model::{End, Exit, RunPlan, RunState, TreeEnd};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use supervisor::{AttachError, RecoverError, SpoolError, StartError, Supervisor, WaitError, attach, recover};

use crate::scene::{Scene, eventually, is_running, read_along};

crate::tests![
    full_disk_ends_run_with_reason,
    deleted_spool_ends_run,
    moved_spool_receives_final_status,
    recreated_spool_is_not_touched,
    file_size_limit_of_caller_is_reported,
    failed_start_leaves_no_secret,
    dropped_prepared_run_leaves_nothing,
    supervisor_creates_files_missing_from_older_starter,
    spool_with_run_is_rejected,
    fifo_in_place_of_spool_file_does_not_block,
    empty_directory_is_no_run,
    status_of_other_format_is_rejected,
    damaged_status_is_rejected,
    spool_files_are_private,
    secrets_are_removed_with_run,
    events_match_files,
    events_resume_at_offsets,
];

fn fifo_in_place_of_spool_file_does_not_block() {
    Scene::play(async |scene: &Scene| {
        let supervisor = Supervisor::this_program().unwrap();
        for name in ["stdin", "output", "error", "plan.json"] {
            let spool = scene.folder().join(name);
            let plan = scene.agent("answer done");
            let laid = supervisor.prepare(&spool, &plan).unwrap();
            fs::remove_file(spool.join(name)).unwrap();
            mknodat(CWD, spool.join(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
            let end = match laid.start().await {
                Ok(run) => Some(run.wait().await.unwrap().end),
                Err(StartError::GaveUp { .. }) => None,
                Err(error) => panic!("{name}: {error:?}"),
            };
            assert!(matches!(end, None | Some(End::NotStarted(_))), "{name}: {end:?}");
        }
    });
}

fn full_disk_ends_run_with_reason() {
    Scene::play(async |scene: &Scene| {
        let Some(_disk) = SmallDisk::mount(&scene.spool()) else {
            return in_a_mount_namespace("full_disk_ends_run_with_reason");
        };
        let run = scene.start(&scene.agent("spawn setsid ignore-term\nflood stdout 10MB\nhang")).await;
        let report = run.wait().await.unwrap();
        assert!(
            matches!(&report.end, End::SpoolFailed { message } if message.contains("No space")),
            "{report:?}"
        );
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
        assert!(report.output_bytes > 0);
        // It is on the full disk itself, for any later reader.
        assert_eq!(run.spool().status().unwrap().unwrap().state, RunState::Ended(report));
    });
}

/// A file system of a megabyte, for as long as the value lives.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mounted = rustix::process::geteuid().is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=1m,mode=0777", "tmpfs"])
                .arg(at)
                .status()
                .unwrap()
                .success();
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The supervisor has said its last word, and may still be on its way out.
        let give_up_at = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let unmount = || Command::new("umount").arg(&self.0).status().unwrap().success();
        let mut unmounted = unmount();
        while !unmounted && std::time::Instant::now() < give_up_at {
            std::thread::sleep(std::time::Duration::from_millis(5));
            unmounted = unmount();
        }
        assert!(unmounted || std::thread::panicking(), "the small disk is still in use");
    }
}

/// An ordinary user may mount a disk in namespaces of its own, where it is root.
fn in_a_mount_namespace(test: &str) {
    let namespaces = ["--user", "--map-root-user", "--mount", "--"];
    if !Command::new("unshare").args(namespaces).arg("true").status().unwrap().success() {
        eprintln!("SKIPPED {test}: this user may make no namespace, so there is no small disk");
        return;
    }
    let output = Command::new("unshare")
        .args(namespaces)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn deleted_spool_ends_run() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.agent("spawn daemon ignore-term\nsay hello\nhang")).await;
        eventually("the agent is up", || !scene.descendants().is_empty()).await;
        fs::remove_dir_all(scene.spool()).unwrap();
        let error = run.wait().await.unwrap_err();
        assert!(matches!(error, WaitError::Recover(RecoverError::Open { .. })), "{error:?}");
        assert!(!scene.descendants().into_iter().any(is_running));
    });
}

fn moved_spool_receives_final_status() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.agent("say hello\nhang")).await;
        let elsewhere = scene.folder().join("elsewhere");
        fs::rename(scene.spool(), &elsewhere).unwrap();
        run.stop().unwrap();
        let report = attach(&elsewhere).await.unwrap().wait().await.unwrap();
        assert_eq!(report.end, End::Stopped);
    });
}

fn recreated_spool_is_not_touched() {
    Scene::play(async |scene: &Scene| {
        let old = scene.start(&scene.agent("hang")).await;
        fs::remove_dir_all(scene.spool()).unwrap();
        let mut plan = scene.agent("hang");
        plan.private_files.insert("mcp.json".into(), b"{}".to_vec());
        let new = scene.start(&plan).await;
        old.stop().unwrap();
        let supervisors_end = old.wait().await;
        assert!(new.spool().private().join("mcp.json").exists());
        assert!(matches!(new.spool().status().unwrap().unwrap().state, RunState::Running { .. }));
        // What stands in the folder is about the other run; only the refusal to recover it is told.
        assert!(
            matches!(supervisors_end, Err(WaitError::Recover(RecoverError::StillRunning { .. }))),
            "{supervisors_end:?}"
        );
        new.stop().unwrap();
        assert_eq!(new.wait().await.unwrap().end, End::Stopped);
    });
}

fn file_size_limit_of_caller_is_reported() {
    Scene::play(async |scene: &Scene| {
        let plan = scene.agent("flood stdout 2MB\nhang");
        let me = std::env::current_exe().unwrap();
        let script = format!("ulimit -f 1000; exec {} \"$@\"", me.display());
        let status = Command::new("bash")
            .args(["-c", &script, "bash"])
            .args(crate::lost::parent(scene, &plan))
            .status();
        assert!(status.unwrap().success());
        let report = attach(&scene.spool()).await.unwrap().wait().await.unwrap();
        assert!(
            matches!(&report.end, End::SpoolFailed { message } if message.contains("too large")),
            "{report:?}"
        );
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn failed_start_leaves_no_secret() {
    Scene::play(async |scene: &Scene| {
        let mut plan = scene.agent("hang");
        plan.env.insert("API_KEY".into(), "canary-4711".into());
        plan.private_files.insert("mcp.json".into(), b"canary-4711".to_vec());
        // So that it stays, to be looked into.
        fs::create_dir(scene.spool()).unwrap();
        let error = Supervisor::at("/nowhere").start(&scene.spool(), &plan).await.unwrap_err();
        assert!(matches!(error, StartError::Spawn { .. }), "{error:?}");
        assert!(!holds(&scene.spool(), b"canary-4711"));
        // A program that is no supervisor says nothing.
        let error = Supervisor::at("/bin/true").start(&scene.spool(), &plan).await.unwrap_err();
        assert!(matches!(error, StartError::GaveUp { .. }), "{error:?}");
        assert!(!holds(&scene.spool(), b"canary-4711"));
    });
}

fn dropped_prepared_run_leaves_nothing() {
    Scene::play(async |scene: &Scene| {
        let supervisor = Supervisor::this_program().unwrap();
        let mut plan = scene.agent("answer hello");
        plan.private_files.insert("secret".into(), b"token".to_vec());
        let laid = supervisor.prepare(&scene.spool(), &plan).unwrap();
        assert!(scene.spool().join("private/secret").exists());
        let again = supervisor.prepare(&scene.spool(), &plan);
        assert!(matches!(again, Err(StartError::Spool(SpoolError::Taken { .. }))), "{again:?}");
        drop(laid);
        assert!(!scene.spool().exists());
        assert!(matches!(attach(&scene.spool()).await, Err(AttachError::NoRun { .. })));
        // A folder that was there before stays.
        fs::create_dir(scene.spool()).unwrap();
        drop(supervisor.prepare(&scene.spool(), &plan).unwrap());
        assert_eq!(fs::read_dir(scene.spool()).unwrap().count(), 0);
        assert!(matches!(attach(&scene.spool()).await, Err(AttachError::NoRun { .. })));
        let run = supervisor.prepare(&scene.spool(), &plan).unwrap().start().await.unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(scene.text(), "hello\n");
    });
}

fn supervisor_creates_files_missing_from_older_starter() {
    Scene::play(async |scene: &Scene| {
        let supervisor = Supervisor::this_program().unwrap();
        let laid = supervisor.prepare(&scene.spool(), &scene.agent("answer hello")).unwrap();
        for name in ["output", "error", "status.next"] {
            fs::remove_file(scene.spool().join(name)).unwrap();
        }
        let report = laid.start().await.unwrap().wait().await.unwrap();
        assert_eq!((report.end, scene.text().as_str()), (End::Exited, "hello\n"));
    });
}

fn spool_with_run_is_rejected() {
    Scene::play(async |scene: &Scene| {
        let first = scene.start(&scene.agent("answer one")).await;
        let again =
            Supervisor::this_program().unwrap().start(&scene.spool(), &scene.agent("answer two")).await;
        assert!(matches!(again, Err(StartError::Spool(SpoolError::Taken { .. }))), "{again:?}");
        assert_eq!(first.wait().await.unwrap().exit, Some(Exit::Code(0)));
        assert_eq!(scene.text(), "one\n");
    });
}

fn empty_directory_is_no_run() {
    Scene::play(async |scene: &Scene| {
        assert!(matches!(attach(scene.folder()).await, Err(AttachError::NoRun { .. })));
        assert!(matches!(recover(scene.folder()), Err(RecoverError::NoRun { .. })));
        assert!(matches!(recover(&scene.folder().join("nowhere")), Err(RecoverError::Open { .. })));
    });
}

fn status_of_other_format_is_rejected() {
    Scene::play(async |scene: &Scene| {
        scene.run(&scene.agent("answer done")).await;
        let file = scene.spool().join("status.json");
        let newer = fs::read_to_string(&file).unwrap().replace(r#""version":1"#, r#""version":2"#);
        fs::write(&file, newer).unwrap();
        let error = attach(&scene.spool()).await.unwrap_err();
        assert!(error.to_string().contains("has format 2"), "{error}");
    });
}

fn damaged_status_is_rejected() {
    Scene::play(async |scene: &Scene| {
        scene.run(&scene.agent("answer done")).await;
        fs::write(scene.spool().join("status.json"), "{\"version\":").unwrap();
        let error = attach(&scene.spool()).await.unwrap_err();
        assert!(matches!(error, AttachError::Spool(SpoolError::Damaged { .. })), "{error:?}");
    });
}

fn spool_files_are_private() {
    Scene::play(async |scene: &Scene| {
        let mut plan = scene.agent("hang");
        plan.private_files.insert("mcp.json".into(), b"{}".to_vec());
        let run = scene.start(&plan).await;
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&scene.spool()), 0o700);
        assert_eq!(mode(&scene.spool().join("private")), 0o700);
        for file in ["output", "error", "stdin", "status.json", "private/mcp.json"] {
            assert_eq!(mode(&scene.spool().join(file)), 0o600, "{file}");
        }
        run.stop().unwrap();
        run.wait().await.unwrap();
    });
}

fn secrets_are_removed_with_run() {
    Scene::play(async |scene: &Scene| {
        let mut plan = scene.agent("hang");
        plan.env.insert("API_KEY".into(), "canary-4711".into());
        plan.private_files.insert("mcp.json".into(), b"canary-4712".to_vec());
        let run = scene.start(&plan).await;
        assert!(
            !holds(&scene.spool(), b"canary-4711"),
            "the environment stays on the disk while the agent runs"
        );
        assert!(holds(&scene.spool(), b"canary-4712"));
        run.stop().unwrap();
        run.wait().await.unwrap();
        assert!(!holds(&scene.spool(), b"canary-4712"));
        let left = fs::read_dir(scene.spool())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<String> = left.collect();
        left.sort();
        assert_eq!(left, ["error", "output", "status.json", "stdin"]);
    });
}

fn holds(folder: &Path, needle: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return holds(&path, needle);
        }
        fs::read(path).unwrap().windows(needle.len()).any(|window| window == needle)
    })
}

fn events_match_files() {
    Scene::play(async |scene: &Scene| {
        let run = scene
            .start(&scene.agent("stream 200 100 1ms\nflood stderr 3MB\nflood stdout 3MB\nanswer done"))
            .await;
        let (output, error, report) = read_along(&run).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(output == scene.output());
        assert!(error == fs::read(scene.spool().join("error")).unwrap());
    });
}

fn events_resume_at_offsets() {
    Scene::play(async |scene: &Scene| {
        let plan = RunPlan { stdin: b"0123456789".to_vec(), ..RunPlan::new("/bin/cat", "/") };
        scene.run(&plan).await;
        let run = attach(&scene.spool()).await.unwrap();
        let mut events = run.events(supervisor::Offsets { output: 4, error: 0 }).unwrap();
        assert_eq!(events.next().await.unwrap(), Some(supervisor::RunEvent::Output(b"456789".to_vec())));
        assert_eq!(events.offsets(), supervisor::Offsets { output: 10, error: 0 });
    });
}
