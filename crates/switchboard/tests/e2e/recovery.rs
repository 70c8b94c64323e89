//! `switchboard recover` and the losses that it repairs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use testkit::eventually;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use crate::harness::{Harness, stderr, stdout};

/// Damages the first file; the second is a database without jobs.
type Damage = fn(&Path, &Path);

/// Returns a FIFO, and a script that prints `up` and exits when the FIFO is read.
fn gated(harness: &Harness) -> (PathBuf, String) {
    let gate = harness.scratch().join("gate");
    mknodat(CWD, &gate, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let script = format!("@rehearse say up\n@rehearse write {} x\n@rehearse answer done", gate.display());
    (gate, script)
}

/// Returns the output of all commands about the jobs, without growing durations.
fn printed(harness: &Harness) -> Vec<String> {
    let jobs = stdout(&harness.run(&["jobs", "--json", "--limit", "1000"]));
    let ids = ids(&jobs);
    let each = ids.iter().flat_map(|id| {
        [&["status", id, "--json"][..], &["logs", id], &["logs", id, "--json"], &["logs", id, "--error"]]
            .map(|args| stdout(&harness.run(args)))
    });
    [jobs, stdout(&harness.run(&["stats", "--json"]))].into_iter().chain(each).collect()
}

fn ids(jobs: &str) -> Vec<String> {
    let jobs: Value = serde_json::from_str(jobs).unwrap();
    let id = |job: &Value| job["job_id"].as_str().unwrap().to_owned();
    jobs["jobs"].as_array().unwrap().iter().map(id).collect()
}

fn call(harness: &Harness, args: &[&str], prompt: &str) -> Output {
    let work = harness.work();
    harness.run(
        &[&["call", "rehearsal", "--policy", "off", "--cwd", work.to_str().unwrap()][..], args, &[prompt]]
            .concat(),
    )
}

fn background(harness: &Harness, prompt: &str) -> String {
    stdout(&call(harness, &["--background"], prompt)).trim().to_owned()
}

/// Submits calls with different outcomes.
fn make_history(harness: &Harness) {
    assert!(call(harness, &[], "Hello").status.success());
    assert!(
        call(harness, &["--continue"], "@rehearse tool Bash ls => a b\n@rehearse answer Hello again")
            .status
            .success()
    );
    call(harness, &["--task", "broken"], "@rehearse say half\n@rehearse fail auth logged out");
    call(harness, &["--timeout", "200ms"], "@rehearse say slow\n@rehearse hang");
    let cancelled = background(harness, "@rehearse hang");
    assert!(harness.run(&["cancel", &cancelled]).status.success());
    harness.run(&["wait", &cancelled]);
    call(harness, &["--direct"], "without a job");
}

fn database(harness: &Harness) -> PathBuf {
    harness.state().join("switchboard.db")
}

fn remove_database(harness: &Harness) {
    for ending in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(harness.state().join(format!("switchboard.db{ending}")));
    }
}

fn recover(harness: &Harness) -> Value {
    let output = harness.run(&["recover", "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Checks that no daemon starts, and that every command that needs one reports the reason.
fn assert_refused(harness: &Harness, why: &str) {
    let jobs = harness.run(&["jobs"]);
    assert!(!jobs.status.success(), "{jobs:?}");
    assert!(harness.running_daemon().is_none());
    for said in [stderr(&jobs), stderr(&harness.run(&["serve"])), stderr(&harness.run(&["doctor"]))] {
        assert!(said.contains(why), "{why}: {said}");
        assert!(said.contains("`switchboard recover`"), "{said}");
    }
}

#[test]
fn lost_database_is_rebuilt_from_job_directories() {
    let harness = Harness::new();
    harness.configure("[limits]\nattempts = 1\n");
    make_history(&harness);
    let before = printed(&harness);
    assert_eq!(ids(&before[0]).len(), 5);
    let empty = Harness::new();
    empty.daemon();
    empty.run(&["stop"]);
    let damages: [(Damage, &str, bool); 4] = [
        (|path, _| fs::remove_file(path).unwrap(), "its file was removed", false),
        (|path, _| fs::write(path, "").unwrap(), "its file was truncated", true),
        (|path, empty| assert!(fs::copy(empty, path).unwrap() > 0), "it was emptied", false),
        (|path, _| fs::write(path, "x".repeat(9_000)).unwrap(), "is damaged", true),
    ];
    for (damage, why, is_set_aside) in damages {
        assert!(harness.run(&["stop"]).status.success());
        damage(&database(&harness), &database(&empty));
        assert_refused(&harness, why);
        let would = stdout(&harness.run(&["recover", "--dry-run"]));
        assert!(would.starts_with("would recover 5 jobs: 5 finished, 0 running, 0 waiting\n"), "{would}");
        let report = recover(&harness);
        assert_eq!((&report["restored"], &report["direct_runs"]), (&5.into(), &1.into()), "{report}");
        assert_eq!(report["set_aside"].is_string(), is_set_aside, "{report}");
        assert_eq!(recover(&harness)["restored"], 0, "repeated");
        assert_eq!(printed(&harness), before, "{why}");
    }
    let again = call(&harness, &["--continue"], "Hello");
    assert!(again.status.success(), "{again:?}");
    let jobs: Value = serde_json::from_str(&stdout(&harness.run(&["jobs", "--json"]))).unwrap();
    let jobs = jobs["jobs"].as_array().unwrap();
    let last = jobs.iter().find(|job| job["status"] == "timeout").unwrap();
    assert_eq!(jobs[0]["session_id"], last["session_id"], "the last session that has an answer");
}

#[test]
fn old_database_is_moved_aside_and_never_overwritten() {
    let harness = Harness::new();
    call(&harness, &[], "Hello");
    for (number, content) in [(1, "first"), (2, "second")] {
        harness.run(&["stop"]);
        fs::write(database(&harness), content).unwrap();
        let aside = harness.state().join(format!("switchboard.db.lost-{number}"));
        assert_eq!(recover(&harness)["set_aside"], aside.to_str().unwrap());
        assert_eq!(fs::read_to_string(aside).unwrap(), content);
    }
    assert_eq!(fs::read_to_string(harness.state().join("switchboard.db.lost-1")).unwrap(), "first");
    remove_database(&harness);
    fs::create_dir(database(&harness)).unwrap();
    assert_eq!(recover(&harness)["restored"], 1);
    assert!(harness.state().join("switchboard.db.lost-3").is_dir());
}

#[test]
fn running_and_queued_jobs_survive_recovery() {
    let harness = Harness::new();
    harness.configure("[limits]\nat_once = 1\n");
    let (gate, script) = gated(&harness);
    let running = background(&harness, &script);
    let directory = harness.state().join("jobs").join(&running);
    eventually("the agent runs", || {
        fs::read_to_string(directory.join("output")).is_ok_and(|said| said.contains("up"))
    });
    let queued = background(&harness, "next");
    harness.running_daemon().unwrap().kill();
    remove_database(&harness);
    assert_refused(&harness, "hold 2 jobs that it lacks");
    assert!(harness.log().contains("hold 2 jobs that it lacks"), "{}", harness.log());
    assert_eq!(harness.run(&["serve"]).status.code(), Some(10));
    let report = recover(&harness);
    assert_eq!((&report["running"], &report["waiting"]), (&1.into(), &1.into()), "{report}");
    let jobs = stdout(&harness.run(&["jobs", "--json"]));
    let jobs: Value = serde_json::from_str(&jobs).unwrap();
    assert_eq!(
        (&jobs["jobs"][1]["status"], &jobs["jobs"][0]["status"]),
        (&"running".into(), &"queued".into())
    );
    fs::read(&gate).unwrap();
    let waited = harness.run(&["wait", &running, &queued, "--json"]);
    let answers: Value = serde_json::from_str(&stdout(&waited)).unwrap();
    for (answer, output) in answers.as_array().unwrap().iter().zip(["done", "You said: next"]) {
        assert_eq!((&answer["status"], &answer["output"]), (&"completed".into(), &output.into()), "{answer}");
    }
    assert!(!directory.join("runs/2").exists(), "the run was adopted, not repeated");
}

#[test]
fn job_ended_without_database_is_recovered() {
    let harness = Harness::new();
    let (gate, script) = gated(&harness);
    let job = background(&harness, &script);
    let output = harness.state().join("jobs").join(&job).join("output");
    eventually("the agent runs", || fs::read_to_string(&output).is_ok_and(|said| said.contains("up")));
    fs::remove_file(database(&harness)).unwrap();
    fs::read(&gate).unwrap();
    assert!(harness.run(&["stop"]).status.success());
    let report = recover(&harness);
    assert_eq!((&report["ended"], &report["running"]), (&1.into(), &0.into()), "{report}");
    let answer: Value = serde_json::from_str(&stdout(&harness.run(&["status", &job, "--json"]))).unwrap();
    assert_eq!((&answer["status"], &answer["output"]), (&"completed".into(), &"done".into()), "{answer}");
}

#[test]
fn damaged_job_directories_are_skipped() {
    let harness = Harness::new();
    for _ in 0..6 {
        call(&harness, &[], "Hello");
    }
    let ids = ids(&stdout(&harness.run(&["jobs", "--json"])));
    harness.run(&["stop"]);
    remove_database(&harness);
    let directory = |id: &str| harness.state().join("jobs").join(id);
    let record = |id: &str| directory(id).join("record.json");
    fs::copy(record(&ids[1]), record(&ids[0])).unwrap();
    fs::remove_file(record(&ids[1])).unwrap();
    fs::write(record(&ids[2]), "{\"id\": \u{1b}").unwrap();
    fs::remove_file(record(&ids[3])).unwrap();
    mknodat(CWD, record(&ids[3]), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::remove_dir_all(directory(&ids[4])).unwrap();
    symlink(directory(&ids[5]), directory(&ids[4])).unwrap();
    fs::write(harness.state().join("jobs/stray"), "").unwrap();
    let recovered = harness.run(&["recover"]);
    assert!(recovered.status.success());
    let said = stdout(&recovered);
    assert!(said.starts_with("recovered 1 job: 1 finished, 0 running, 0 waiting\n"), "{said}");
    let reasons = [
        format!("record.json is that of job {}", ids[1]),
        "it has no record.json".to_owned(),
        "record.json is damaged".to_owned(),
        "cannot read record.json: ".to_owned(),
        "it is not a directory".to_owned(),
    ];
    for (id, reason) in ids.iter().zip(reasons) {
        assert!(said.contains(&format!("skipped: {id}: {reason}")), "{reason}: {said}");
    }
    assert_eq!(self::ids(&stdout(&harness.run(&["jobs", "--json"]))), ids[5..], "the daemon starts");
}

#[test]
fn copied_and_oversized_records_are_skipped() {
    let harness = Harness::new();
    for _ in 0..2 {
        call(&harness, &[], "Hello");
    }
    let ids = ids(&stdout(&harness.run(&["jobs", "--json"])));
    harness.run(&["stop"]);
    remove_database(&harness);
    let record = |id: &str| harness.state().join("jobs").join(id).join("record.json");
    let copy = "f0000000-0000-7000-8000-000000000000";
    fs::create_dir(record(copy).parent().unwrap()).unwrap();
    fs::write(record(copy), fs::read_to_string(record(&ids[0])).unwrap().replace(&ids[0], copy)).unwrap();
    fs::File::options().write(true).open(record(&ids[1])).unwrap().set_len(1 << 40).unwrap();
    let recovered = harness.run(&["recover"]);
    let said = stdout(&recovered);
    assert!(said.starts_with("recovered 1 job: 1 finished, 0 running, 0 waiting\n"), "{recovered:?}");
    assert!(said.contains(&format!("skipped: {copy}: it contradicts another job")), "{said}");
    assert!(
        said.contains(&format!("skipped: {}: cannot read record.json: it is too long", ids[1])),
        "{said}"
    );
}

#[test]
fn fifo_in_state_directory_does_not_block() {
    let harness = Harness::new();
    call(&harness, &[], "Hello");
    harness.run(&["stop"]);
    for name in ["identity.json", "daemon.lock"] {
        let path = harness.state().join(name);
        let text = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let refused = harness.run(&["recover"]);
        assert!(!refused.status.success(), "{name}: {refused:?}");
        assert!(!harness.run(&["status"]).status.success(), "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, text).unwrap();
    }
    assert!(harness.run(&["recover"]).status.success());
}

#[test]
fn recover_fails_while_daemon_runs() {
    let harness = Harness::new();
    call(&harness, &[], "Hello");
    let refused = harness.run(&["recover"]);
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    assert!(stderr(&refused).contains("hint: stop it with `switchboard stop`"), "{refused:?}");
    assert!(harness.running_daemon().is_some());
}

#[test]
fn recover_of_server_store_is_rejected() {
    let harness = Harness::new();
    harness.configure("store = \"ws://127.0.0.1:1/a/b\"\n");
    let refused = harness.run(&["recover"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(stderr(&refused).contains("only the embedded store"), "{refused:?}");
}

#[test]
fn lost_wal_is_reported_and_repaired() {
    let harness = Harness::new();
    make_history(&harness);
    let before = printed(&harness);
    harness.running_daemon().unwrap().kill();
    for ending in ["-wal", "-shm"] {
        fs::remove_file(harness.state().join(format!("switchboard.db{ending}"))).unwrap();
    }
    // All of it was in the log: the file itself has never heard of the last daemon.
    assert_refused(&harness, "or its write-ahead log (-wal) was removed");
    assert_eq!(recover(&harness)["restored"], 5);
    assert_eq!(printed(&harness), before);
}

#[test]
fn wal_lost_after_checkpoint_is_reported() {
    let harness = Harness::new();
    call(&harness, &[], "Hello");
    let daemon = harness.running_daemon().unwrap();
    let checkpoint = rusqlite::Connection::open(database(&harness)).unwrap();
    checkpoint.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    drop(checkpoint);
    call(&harness, &[], "Hello");
    daemon.kill();
    fs::remove_file(harness.state().join("switchboard.db-wal")).unwrap();
    assert_refused(&harness, "its write-ahead log (-wal) was removed");
    let report = recover(&harness);
    assert_eq!((&report["restored"], &report["unchanged"]), (&1.into(), &1.into()), "{report}");
    assert!(report["set_aside"].is_null(), "{report}");
}

#[test]
fn intact_database_raises_no_alarm() {
    let harness = Harness::new();
    let daemon_starts = |harness: &Harness| {
        assert!(stdout(&call(harness, &[], "Hello")).contains("Hello"), "{}", harness.log());
        assert!(!harness.log().contains("no job is missing in the store"), "{}", harness.log());
        assert!(!harness.log().contains("ERROR"), "{}", harness.log());
    };
    daemon_starts(&harness);
    for stop in [&["stop"][..], &["stop", "--now"]] {
        assert!(harness.run(stop).status.success());
        daemon_starts(&harness);
    }
    for _ in 0..3 {
        harness.running_daemon().unwrap().kill();
        daemon_starts(&harness);
    }
    harness.running_daemon().unwrap().kill();
    let copy = Harness::new();
    let copied = Command::new("cp").arg("-a").args([&harness.home, &copy.home]).status().unwrap();
    assert!(copied.success());
    daemon_starts(&copy);
    // Another program that closes the database brings the log into it.
    rusqlite::Connection::open(database(&harness))
        .unwrap()
        .query_row("SELECT count(*) FROM agent_jobs", [], |_| Ok(()))
        .unwrap();
    assert!(!harness.state().join("switchboard.db-wal").exists());
    assert!(call(&harness, &[], "Hello").status.success(), "no job is missing");
    harness.run(&["stop"]);
    remove_database(&harness);
    fs::rename(harness.state().join("jobs"), harness.scratch().join("old-jobs")).unwrap();
    assert!(call(&harness, &[], "Hello").status.success(), "the hint for a fresh start works");
}
