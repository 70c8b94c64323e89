//! The files of a spool, and failures to write them.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use model::{End, Exit, InputMode, RunPlan, RunState, TreeEnd};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use supervisor::{
    AttachError, RunRecoveryError, SpoolError, StartError, Supervisor, WaitError, attach, recover,
};
use testkit::{eventually_async, is_running};

use crate::harness::{Harness, read_to_end};

testkit::tests![
    full_disk_ends_run_with_reason,
    append_continues_after_full_disk,
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
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let supervisor = Supervisor::this_program().unwrap();
        let control = (harness.mode() == InputMode::Open).then_some("control");
        for name in ["input", "output", "error", "plan.json"].into_iter().chain(control) {
            let spool = harness.directory().join(name);
            let plan = harness.agent("answer done");
            let prepared = supervisor.prepare(&spool, &plan).unwrap();
            fs::remove_file(spool.join(name)).unwrap();
            mknodat(CWD, spool.join(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
            let end = match prepared.start().await {
                Ok(run) => Some(run.wait().await.unwrap().end),
                Err(StartError::GaveUp { .. }) => None,
                Err(error) => panic!("{name}: {error:?}"),
            };
            assert!(matches!(end, None | Some(End::NotStarted(_))), "{name}: {end:?}");
        }
    });
}

fn full_disk_ends_run_with_reason() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let Some(_disk) = SmallDisk::mount(&harness.spool()) else {
            return run_in_namespaces("full_disk_ends_run_with_reason", "exec \"$0\" \"$@\"");
        };
        let run = harness.start(&harness.agent("spawn setsid ignore-term\nflood stdout 10MB\nhang")).await;
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

fn append_continues_after_full_disk() {
    Harness::run_test(async |harness: &Harness| {
        let Some(_disk) = SmallDisk::mount(&harness.spool()) else {
            return run_in_namespaces("append_continues_after_full_disk", "exec \"$0\" \"$@\"");
        };
        let copy = harness.directory().join("copy");
        let args = vec!["-c".into(), format!("exec cat > {}", copy.display())];
        let plan = RunPlan { args, input_mode: InputMode::Open, ..RunPlan::new("/bin/sh", "/") };
        let ballast = harness.spool().join("ballast");
        fs::write(&ballast, vec![0; 400_000]).unwrap();
        let run = harness.start(&plan).await;
        let mut input = run.input().unwrap().unwrap();
        let bytes: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut appended = 0;
        let error = loop {
            match input.write(&bytes[appended..]) {
                Ok(count) => appended += count,
                Err(error) => break error,
            }
        };
        assert!(error.kind() == ErrorKind::StorageFull && appended > 0, "{error:?} after {appended} bytes");
        assert_eq!(input.len().unwrap(), appended as u64);
        fs::remove_file(ballast).unwrap();
        input.write_all(&bytes[appended..]).unwrap();
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert!(fs::read(copy).unwrap() == bytes);
    });
}

/// A file system of one megabyte, mounted for the lifetime of the value.
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
        // The supervisor has sent its final status, and may still be exiting.
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

/// Runs a test in new namespaces, in which an ordinary user is root and may mount a disk or lower a limit. The shell script
/// prepares them and then executes its arguments.
pub fn run_in_namespaces(test: &str, script: &str) {
    let namespaces = ["--user", "--map-root-user", "--mount", "--"];
    if !Command::new("unshare").args(namespaces).arg("true").status().unwrap().success() {
        eprintln!("SKIPPED {test}: this user may make no namespace");
        return;
    }
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .output()
        .unwrap();
    let stdout =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
}

fn deleted_spool_ends_run() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("spawn daemon ignore-term\nsay hello\nhang")).await;
        eventually_async("the agent is up", async || !harness.descendants().is_empty()).await;
        fs::remove_dir_all(harness.spool()).unwrap();
        let error = run.wait().await.unwrap_err();
        assert!(matches!(error, WaitError::Recover(RunRecoveryError::Open { .. })), "{error:?}");
        assert!(!harness.descendants().into_iter().any(is_running));
    });
}

fn moved_spool_receives_final_status() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("say hello\nhang")).await;
        let elsewhere = harness.directory().join("elsewhere");
        fs::rename(harness.spool(), &elsewhere).unwrap();
        run.stop().unwrap();
        let report = attach(&elsewhere).await.unwrap().wait().await.unwrap();
        assert_eq!(report.end, End::Stopped);
    });
}

fn recreated_spool_is_not_touched() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let old = harness.start(&harness.agent("hang")).await;
        fs::remove_dir_all(harness.spool()).unwrap();
        let mut plan = harness.agent("hang");
        plan.private_files.insert("mcp.json".into(), b"{}".to_vec());
        let new = harness.start(&plan).await;
        old.stop().unwrap();
        let supervisors_end = old.wait().await;
        assert!(new.spool().private().join("mcp.json").exists());
        assert!(matches!(new.spool().status().unwrap().unwrap().state, RunState::Running { .. }));
        // The files in the directory belong to the other run; only the failed recovery is reported.
        assert!(
            matches!(supervisors_end, Err(WaitError::Recover(RunRecoveryError::StillRunning { .. }))),
            "{supervisors_end:?}"
        );
        new.stop().unwrap();
        assert_eq!(new.wait().await.unwrap().end, End::Stopped);
    });
}

fn file_size_limit_of_caller_is_reported() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let plan = harness.agent("flood stdout 2MB\nhang");
        let me = std::env::current_exe().unwrap();
        let script = format!("ulimit -f 1000; exec {} \"$@\"", me.display());
        let status = Command::new("bash")
            .args(["-c", &script, "bash"])
            .args(crate::lost::parent(harness, &plan))
            .status();
        assert!(status.unwrap().success());
        let report = attach(&harness.spool()).await.unwrap().wait().await.unwrap();
        assert!(
            matches!(&report.end, End::SpoolFailed { message } if message.contains("too large")),
            "{report:?}"
        );
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn failed_start_leaves_no_secret() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let mut plan = harness.agent("hang");
        plan.env.insert("API_KEY".into(), "canary-4711".into());
        plan.private_files.insert("mcp.json".into(), b"canary-4711".to_vec());
        // So that the directory stays and can be inspected.
        fs::create_dir(harness.spool()).unwrap();
        let error = Supervisor::at("/nowhere").start(&harness.spool(), &plan).await.unwrap_err();
        assert!(matches!(error, StartError::Spawn { .. }), "{error:?}");
        assert!(!contains(&harness.spool(), b"canary-4711"));
        // A program that is no supervisor prints nothing.
        let error = Supervisor::at("/bin/true").start(&harness.spool(), &plan).await.unwrap_err();
        assert!(matches!(error, StartError::GaveUp { .. }), "{error:?}");
        assert!(!contains(&harness.spool(), b"canary-4711"));
    });
}

fn dropped_prepared_run_leaves_nothing() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let supervisor = Supervisor::this_program().unwrap();
        let mut plan = harness.agent("answer hello");
        plan.private_files.insert("secret".into(), b"token".to_vec());
        let prepared = supervisor.prepare(&harness.spool(), &plan).unwrap();
        assert!(harness.spool().join("private/secret").exists());
        let again = supervisor.prepare(&harness.spool(), &plan);
        assert!(matches!(again, Err(StartError::Spool(SpoolError::Taken { .. }))), "{again:?}");
        drop(prepared);
        assert!(!harness.spool().exists());
        assert!(matches!(attach(&harness.spool()).await, Err(AttachError::NoRun { .. })));
        // A directory that existed before stays.
        fs::create_dir(harness.spool()).unwrap();
        drop(supervisor.prepare(&harness.spool(), &plan).unwrap());
        assert_eq!(fs::read_dir(harness.spool()).unwrap().count(), 0);
        assert!(matches!(attach(&harness.spool()).await, Err(AttachError::NoRun { .. })));
        let run = supervisor.prepare(&harness.spool(), &plan).unwrap().start().await.unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "hello\n");
    });
}

fn supervisor_creates_files_missing_from_older_starter() {
    Harness::run_test(async |harness: &Harness| {
        let supervisor = Supervisor::this_program().unwrap();
        let prepared = supervisor.prepare(&harness.spool(), &harness.agent("answer hello")).unwrap();
        for name in ["output", "error", "status.next"] {
            fs::remove_file(harness.spool().join(name)).unwrap();
        }
        let report = prepared.start().await.unwrap().wait().await.unwrap();
        assert_eq!((report.end, harness.text().as_str()), (End::Exited, "hello\n"));
    });
}

fn spool_with_run_is_rejected() {
    Harness::run_test(async |harness: &Harness| {
        let first = harness.start(&harness.agent("answer one")).await;
        let again =
            Supervisor::this_program().unwrap().start(&harness.spool(), &harness.agent("answer two")).await;
        assert!(matches!(again, Err(StartError::Spool(SpoolError::Taken { .. }))), "{again:?}");
        assert_eq!(first.wait().await.unwrap().exit, Some(Exit::Code(0)));
        assert_eq!(harness.text(), "one\n");
    });
}

fn empty_directory_is_no_run() {
    Harness::run_test(async |harness: &Harness| {
        assert!(matches!(attach(harness.directory()).await, Err(AttachError::NoRun { .. })));
        assert!(matches!(recover(harness.directory()), Err(RunRecoveryError::NoRun { .. })));
        assert!(matches!(recover(&harness.directory().join("nowhere")), Err(RunRecoveryError::Open { .. })));
    });
}

fn status_of_other_format_is_rejected() {
    Harness::run_test(async |harness: &Harness| {
        harness.run(&harness.agent("answer done")).await;
        let file = harness.spool().join("status.json");
        let newer = fs::read_to_string(&file).unwrap().replace(r#""version":1"#, r#""version":2"#);
        fs::write(&file, newer).unwrap();
        let error = attach(&harness.spool()).await.unwrap_err();
        assert!(error.to_string().contains("has format 2"), "{error}");
    });
}

fn damaged_status_is_rejected() {
    Harness::run_test(async |harness: &Harness| {
        harness.run(&harness.agent("answer done")).await;
        fs::write(harness.spool().join("status.json"), "{\"version\":").unwrap();
        let error = attach(&harness.spool()).await.unwrap_err();
        assert!(matches!(error, AttachError::Spool(SpoolError::Damaged { .. })), "{error:?}");
    });
}

fn spool_files_are_private() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let mut plan = harness.agent("hang");
        plan.private_files.insert("mcp.json".into(), b"{}".to_vec());
        let run = harness.start(&plan).await;
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&harness.spool()), 0o700);
        assert_eq!(mode(&harness.spool().join("private")), 0o700);
        let control = (harness.mode() == InputMode::Open).then_some("control");
        let files = ["output", "error", "input", "status.json", "private/mcp.json"];
        for file in files.into_iter().chain(control) {
            assert_eq!(mode(&harness.spool().join(file)), 0o600, "{file}");
        }
        run.stop().unwrap();
        run.wait().await.unwrap();
    });
}

fn secrets_are_removed_with_run() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let mut plan = harness.agent("hang");
        plan.env.insert("API_KEY".into(), "canary-4711".into());
        plan.private_files.insert("mcp.json".into(), b"canary-4712".to_vec());
        let run = harness.start(&plan).await;
        assert!(
            !contains(&harness.spool(), b"canary-4711"),
            "the environment stays on the disk while the agent runs"
        );
        assert!(contains(&harness.spool(), b"canary-4712"));
        run.stop().unwrap();
        run.wait().await.unwrap();
        assert!(!contains(&harness.spool(), b"canary-4712"));
        let left = fs::read_dir(harness.spool())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<String> = left.collect();
        left.sort();
        let mut expected = vec!["error", "input", "output", "status.json"];
        if harness.mode() == InputMode::Open {
            expected.insert(0, "control");
        }
        assert_eq!(left, expected);
    });
}

fn contains(directory: &Path, needle: &[u8]) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return contains(&path, needle);
        }
        fs::read(path).unwrap().windows(needle.len()).any(|window| window == needle)
    })
}

fn events_match_files() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness
            .start(&harness.agent("stream 200 100 1ms\nflood stderr 3MB\nflood stdout 3MB\nanswer done"))
            .await;
        let (output, error, report) = read_to_end(&run).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(output == harness.output());
        assert!(error == fs::read(harness.spool().join("error")).unwrap());
    });
}

fn events_resume_at_offsets() {
    Harness::run_test(async |harness: &Harness| {
        let plan = RunPlan { input: b"0123456789".to_vec(), ..RunPlan::new("/bin/cat", "/") };
        harness.run(&plan).await;
        let run = attach(&harness.spool()).await.unwrap();
        let mut events = run.events(supervisor::Offsets { output: 4, error: 0 }).unwrap();
        assert_eq!(events.next().await.unwrap(), Some(supervisor::RunEvent::Output(b"456789".to_vec())));
        assert_eq!(events.offsets(), supervisor::Offsets { output: 10, error: 0 });
    });
}
