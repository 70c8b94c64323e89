//! `switchboard recover`, and the losses that it is for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use crate::bed::{Bed, eventually, stderr, stdout};

/// Damages the first file; the second is a database without jobs.
type Damage = fn(&Path, &Path);

/// Returns a FIFO, and a script that says `up` and ends when the FIFO is read.
fn gated(bed: &Bed) -> (PathBuf, String) {
    let gate = bed.scratch().join("gate");
    mknodat(CWD, &gate, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let script = format!("@rehearse say up\n@rehearse write {} x\n@rehearse answer done", gate.display());
    (gate, script)
}

/// Everything that front-ends print about the jobs, without the times that go on.
fn printed(bed: &Bed) -> Vec<String> {
    let jobs = stdout(&bed.run(&["jobs", "--json", "--limit", "1000"]));
    let ids = ids(&jobs);
    let each = ids.iter().flat_map(|id| {
        [&["status", id, "--json"][..], &["logs", id], &["logs", id, "--json"], &["logs", id, "--error"]]
            .map(|args| stdout(&bed.run(args)))
    });
    [jobs, stdout(&bed.run(&["stats", "--json"]))].into_iter().chain(each).collect()
}

fn ids(jobs: &str) -> Vec<String> {
    let jobs: Value = serde_json::from_str(jobs).unwrap();
    let id = |job: &Value| job["job_id"].as_str().unwrap().to_owned();
    jobs["jobs"].as_array().unwrap().iter().map(id).collect()
}

fn call(bed: &Bed, args: &[&str], prompt: &str) -> Output {
    let work = bed.work();
    bed.run(
        &[&["call", "rehearsal", "--policy", "off", "--cwd", work.to_str().unwrap()][..], args, &[prompt]]
            .concat(),
    )
}

fn background(bed: &Bed, prompt: &str) -> String {
    stdout(&call(bed, &["--background"], prompt)).trim().to_owned()
}

/// Places calls that end in different ways.
fn make_history(bed: &Bed) {
    assert!(call(bed, &[], "Hello").status.success());
    assert!(
        call(bed, &["--continue"], "@rehearse tool Bash ls => a b\n@rehearse answer Hello again")
            .status
            .success()
    );
    call(bed, &["--task", "broken"], "@rehearse say half\n@rehearse fail auth logged out");
    call(bed, &["--timeout", "200ms"], "@rehearse say slow\n@rehearse hang");
    let cancelled = background(bed, "@rehearse hang");
    assert!(bed.run(&["cancel", &cancelled]).status.success());
    bed.run(&["wait", &cancelled]);
    call(bed, &["--direct"], "without a job");
}

fn database(bed: &Bed) -> PathBuf {
    bed.state().join("switchboard.db")
}

fn remove_database(bed: &Bed) {
    for ending in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(bed.state().join(format!("switchboard.db{ending}")));
    }
}

fn recover(bed: &Bed) -> Value {
    let output = bed.run(&["recover", "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Checks that no daemon starts, and that every command that needs one says why.
fn assert_refused(bed: &Bed, why: &str) {
    let jobs = bed.run(&["jobs"]);
    assert!(!jobs.status.success(), "{jobs:?}");
    assert!(bed.running().is_none());
    for said in [stderr(&jobs), stderr(&bed.run(&["serve"])), stderr(&bed.run(&["doctor"]))] {
        assert!(said.contains(why), "{why}: {said}");
        assert!(said.contains("`switchboard recover`"), "{said}");
    }
}

#[test]
fn lost_database_is_rebuilt_from_job_directories() {
    let bed = Bed::new();
    bed.configure("[limits]\nattempts = 1\n");
    make_history(&bed);
    let before = printed(&bed);
    assert_eq!(ids(&before[0]).len(), 5);
    let empty = Bed::new();
    empty.daemon();
    empty.run(&["stop"]);
    let damages: [(Damage, &str, bool); 4] = [
        (|path, _| fs::remove_file(path).unwrap(), "its file was removed", false),
        (|path, _| fs::write(path, "").unwrap(), "its file was truncated", true),
        (|path, empty| assert!(fs::copy(empty, path).unwrap() > 0), "it was emptied", false),
        (|path, _| fs::write(path, "x".repeat(9_000)).unwrap(), "is damaged", true),
    ];
    for (damage, why, is_set_aside) in damages {
        assert!(bed.run(&["stop"]).status.success());
        damage(&database(&bed), &database(&empty));
        assert_refused(&bed, why);
        let would = stdout(&bed.run(&["recover", "--dry-run"]));
        assert!(would.starts_with("would recover 5 jobs: 5 finished, 0 running, 0 waiting\n"), "{would}");
        let report = recover(&bed);
        assert_eq!((&report["restored"], &report["direct_runs"]), (&5.into(), &1.into()), "{report}");
        assert_eq!(report["set_aside"].is_string(), is_set_aside, "{report}");
        assert_eq!(recover(&bed)["restored"], 0, "repeated");
        assert_eq!(printed(&bed), before, "{why}");
    }
    let again = call(&bed, &["--continue"], "Hello");
    assert!(again.status.success(), "{again:?}");
    let jobs: Value = serde_json::from_str(&stdout(&bed.run(&["jobs", "--json"]))).unwrap();
    let jobs = jobs["jobs"].as_array().unwrap();
    let last = jobs.iter().find(|job| job["status"] == "timeout").unwrap();
    assert_eq!(jobs[0]["session_id"], last["session_id"], "the last session that has an answer");
}

#[test]
fn old_database_is_moved_aside_and_never_overwritten() {
    let bed = Bed::new();
    call(&bed, &[], "Hello");
    for (number, content) in [(1, "first"), (2, "second")] {
        bed.run(&["stop"]);
        fs::write(database(&bed), content).unwrap();
        let aside = bed.state().join(format!("switchboard.db.lost-{number}"));
        assert_eq!(recover(&bed)["set_aside"], aside.to_str().unwrap());
        assert_eq!(fs::read_to_string(aside).unwrap(), content);
    }
    assert_eq!(fs::read_to_string(bed.state().join("switchboard.db.lost-1")).unwrap(), "first");
    remove_database(&bed);
    fs::create_dir(database(&bed)).unwrap();
    assert_eq!(recover(&bed)["restored"], 1);
    assert!(bed.state().join("switchboard.db.lost-3").is_dir());
}

#[test]
fn running_and_queued_jobs_survive_recovery() {
    let bed = Bed::new();
    bed.configure("[limits]\nat_once = 1\n");
    let (gate, script) = gated(&bed);
    let running = background(&bed, &script);
    let directory = bed.state().join("jobs").join(&running);
    eventually("the agent runs", || {
        fs::read_to_string(directory.join("output")).is_ok_and(|said| said.contains("up"))
    });
    let queued = background(&bed, "next");
    bed.running().unwrap().kill();
    remove_database(&bed);
    assert_refused(&bed, "hold 2 jobs that it lacks");
    assert!(bed.log().contains("hold 2 jobs that it lacks"), "{}", bed.log());
    assert_eq!(bed.run(&["serve"]).status.code(), Some(10));
    let report = recover(&bed);
    assert_eq!((&report["running"], &report["waiting"]), (&1.into(), &1.into()), "{report}");
    let jobs = stdout(&bed.run(&["jobs", "--json"]));
    let jobs: Value = serde_json::from_str(&jobs).unwrap();
    assert_eq!(
        (&jobs["jobs"][1]["status"], &jobs["jobs"][0]["status"]),
        (&"running".into(), &"queued".into())
    );
    fs::read(&gate).unwrap();
    let waited = bed.run(&["wait", &running, &queued, "--json"]);
    let answers: Value = serde_json::from_str(&stdout(&waited)).unwrap();
    for (answer, output) in answers.as_array().unwrap().iter().zip(["done", "You said: next"]) {
        assert_eq!((&answer["status"], &answer["output"]), (&"completed".into(), &output.into()), "{answer}");
    }
    assert!(!directory.join("runs/2").exists(), "the run was adopted, not repeated");
}

#[test]
fn job_ended_without_database_is_recovered() {
    let bed = Bed::new();
    let (gate, script) = gated(&bed);
    let job = background(&bed, &script);
    let output = bed.state().join("jobs").join(&job).join("output");
    eventually("the agent runs", || fs::read_to_string(&output).is_ok_and(|said| said.contains("up")));
    fs::remove_file(database(&bed)).unwrap();
    fs::read(&gate).unwrap();
    assert!(bed.run(&["stop"]).status.success());
    let report = recover(&bed);
    assert_eq!((&report["ended"], &report["running"]), (&1.into(), &0.into()), "{report}");
    let answer: Value = serde_json::from_str(&stdout(&bed.run(&["status", &job, "--json"]))).unwrap();
    assert_eq!((&answer["status"], &answer["output"]), (&"completed".into(), &"done".into()), "{answer}");
}

#[test]
fn damaged_job_directories_are_skipped() {
    let bed = Bed::new();
    for _ in 0..6 {
        call(&bed, &[], "Hello");
    }
    let ids = ids(&stdout(&bed.run(&["jobs", "--json"])));
    bed.run(&["stop"]);
    remove_database(&bed);
    let directory = |id: &str| bed.state().join("jobs").join(id);
    let record = |id: &str| directory(id).join("record.json");
    fs::copy(record(&ids[1]), record(&ids[0])).unwrap();
    fs::remove_file(record(&ids[1])).unwrap();
    fs::write(record(&ids[2]), "{\"id\": \u{1b}").unwrap();
    fs::remove_file(record(&ids[3])).unwrap();
    mknodat(CWD, record(&ids[3]), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::remove_dir_all(directory(&ids[4])).unwrap();
    symlink(directory(&ids[5]), directory(&ids[4])).unwrap();
    fs::write(bed.state().join("jobs/stray"), "").unwrap();
    let recovered = bed.run(&["recover"]);
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
    assert_eq!(self::ids(&stdout(&bed.run(&["jobs", "--json"]))), ids[5..], "the daemon starts");
}

#[test]
fn copied_and_oversized_records_are_skipped() {
    let bed = Bed::new();
    for _ in 0..2 {
        call(&bed, &[], "Hello");
    }
    let ids = ids(&stdout(&bed.run(&["jobs", "--json"])));
    bed.run(&["stop"]);
    remove_database(&bed);
    let record = |id: &str| bed.state().join("jobs").join(id).join("record.json");
    let copy = "f0000000-0000-7000-8000-000000000000";
    fs::create_dir(record(copy).parent().unwrap()).unwrap();
    fs::write(record(copy), fs::read_to_string(record(&ids[0])).unwrap().replace(&ids[0], copy)).unwrap();
    fs::File::options().write(true).open(record(&ids[1])).unwrap().set_len(1 << 40).unwrap();
    let recovered = bed.run(&["recover"]);
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
    let bed = Bed::new();
    call(&bed, &[], "Hello");
    bed.run(&["stop"]);
    for name in ["identity.json", "daemon.lock"] {
        let path = bed.state().join(name);
        let text = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let refused = bed.run(&["recover"]);
        assert!(!refused.status.success(), "{name}: {refused:?}");
        assert!(!bed.run(&["status"]).status.success(), "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, text).unwrap();
    }
    assert!(bed.run(&["recover"]).status.success());
}

#[test]
fn recover_fails_while_daemon_runs() {
    let bed = Bed::new();
    call(&bed, &[], "Hello");
    let refused = bed.run(&["recover"]);
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    assert!(stderr(&refused).contains("hint: stop it with `switchboard stop`"), "{refused:?}");
    assert!(bed.running().is_some());
}

#[test]
fn recover_of_server_store_is_rejected() {
    let bed = Bed::new();
    bed.configure("store = \"ws://127.0.0.1:1/a/b\"\n");
    let refused = bed.run(&["recover"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(stderr(&refused).contains("only the embedded store"), "{refused:?}");
}

#[test]
fn lost_wal_is_reported_and_repaired() {
    let bed = Bed::new();
    make_history(&bed);
    let before = printed(&bed);
    bed.running().unwrap().kill();
    for ending in ["-wal", "-shm"] {
        fs::remove_file(bed.state().join(format!("switchboard.db{ending}"))).unwrap();
    }
    // All of it was in the log: the file itself has never heard of the last daemon.
    assert_refused(&bed, "or its write-ahead log (-wal) was removed");
    assert_eq!(recover(&bed)["restored"], 5);
    assert_eq!(printed(&bed), before);
}

#[test]
fn wal_lost_after_checkpoint_is_reported() {
    let bed = Bed::new();
    call(&bed, &[], "Hello");
    let daemon = bed.running().unwrap();
    let checkpoint = rusqlite::Connection::open(database(&bed)).unwrap();
    checkpoint.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    drop(checkpoint);
    call(&bed, &[], "Hello");
    daemon.kill();
    fs::remove_file(bed.state().join("switchboard.db-wal")).unwrap();
    assert_refused(&bed, "its write-ahead log (-wal) was removed");
    let report = recover(&bed);
    assert_eq!((&report["restored"], &report["unchanged"]), (&1.into(), &1.into()), "{report}");
    assert!(report["set_aside"].is_null(), "{report}");
}

#[test]
fn intact_database_raises_no_alarm() {
    let bed = Bed::new();
    let daemon_starts = |bed: &Bed| {
        assert!(stdout(&call(bed, &[], "Hello")).contains("Hello"), "{}", bed.log());
        assert!(!bed.log().contains("no job is missing in the store"), "{}", bed.log());
        assert!(!bed.log().contains("ERROR"), "{}", bed.log());
    };
    daemon_starts(&bed);
    for stop in [&["stop"][..], &["stop", "--now"]] {
        assert!(bed.run(stop).status.success());
        daemon_starts(&bed);
    }
    for _ in 0..3 {
        bed.running().unwrap().kill();
        daemon_starts(&bed);
    }
    bed.running().unwrap().kill();
    let copy = Bed::new();
    let copied = Command::new("cp").arg("-a").args([&bed.home, &copy.home]).status().unwrap();
    assert!(copied.success());
    daemon_starts(&copy);
    // Another program that closes the database brings the log into it.
    rusqlite::Connection::open(database(&bed))
        .unwrap()
        .query_row("SELECT count(*) FROM agent_jobs", [], |_| Ok(()))
        .unwrap();
    assert!(!bed.state().join("switchboard.db-wal").exists());
    assert!(call(&bed, &[], "Hello").status.success(), "no job is missing");
    bed.run(&["stop"]);
    remove_database(&bed);
    fs::rename(bed.state().join("jobs"), bed.scratch().join("old-jobs")).unwrap();
    assert!(call(&bed, &[], "Hello").status.success(), "the hint for a fresh start works");
}
