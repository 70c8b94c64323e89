//! Durability order: nothing starts or is reported before its fsync.
//!
//! The daemon runs with an interposed `fdatasync` that blocks the syncs of the store's WAL until the test releases them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Harness, TestHost, stderr};

/// Bounds every wait. Longer than any step takes on a busy machine.
const EXIT_TIMEOUT: Duration = Duration::from_mins(1);
/// A premature reply would arrive within this time. A busy machine can only hide one.
const A_WHILE: Duration = Duration::from_millis(300);

/// A disk whose syncs the test controls.
struct Gate(PathBuf);

impl Gate {
    /// Starts a daemon whose syncs pass.
    fn before(harness: &Harness) -> Self {
        let (gate, library) = (harness.scratch().join("gate"), harness.scratch().join("gate.so"));
        fs::create_dir(&gate).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/gate.c");
        let made =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output().unwrap();
        assert!(made.status.success(), "{}", stderr(&made));
        harness.configure("rehearsal = true\n\n[sandbox]\npolicy = \"off\"\n");
        let mut daemon = harness.command(&["serve", "--background"]);
        let started =
            daemon.env("LD_PRELOAD", &library).env("SWITCHBOARD_TEST_GATE", &gate).output().unwrap();
        assert!(started.status.success(), "{}", stderr(&started));
        Self(gate)
    }

    fn shut(&self) {
        File::create(self.0.join("shut")).unwrap();
    }

    fn open(&self) {
        fs::remove_file(self.0.join("shut")).unwrap();
    }

    fn let_one_pass(&self) {
        File::create(self.0.join("pass")).unwrap();
    }

    /// Waits until a number of syncs are blocked.
    fn has_held(&self, count: u64) {
        let give_up_at = Instant::now() + EXIT_TIMEOUT;
        while fs::metadata(self.0.join("held")).map_or(0, |held| held.len()) < count {
            assert!(Instant::now() < give_up_at, "no sync {count} within {EXIT_TIMEOUT:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn greeted(harness: &Harness) -> TestHost {
    let mut host = harness.bridge();
    host.initialize();
    host
}

fn ask(host: &mut TestHost, id: u64, tool: &str, arguments: &Value) {
    host.request(id, "tools/call", &json!({ "name": tool, "arguments": arguments }));
}

fn answer(host: &mut TestHost, id: u64) -> Value {
    let message = host.receive();
    assert_eq!(message["id"], id, "{message}");
    message["result"]["structuredContent"].clone()
}

#[test]
fn nothing_starts_or_replies_before_fsync() {
    let harness = Harness::new();
    let gate = Gate::before(&harness);
    let (mut caller, mut other) = (greeted(&harness), greeted(&harness));
    let begun = harness.scratch().join("begun");
    let prompt =
        format!("@rehearse pidfile {}\n@rehearse spawn same-group\n@rehearse answer done\n", begun.display());

    gate.shut();
    ask(&mut caller, 1, "call_rehearsal", &json!({ "prompt": prompt, "cwd": harness.scratch() }));
    gate.has_held(1);
    assert!(caller.receives_nothing_for(A_WHILE));
    assert!(!begun.exists(), "its agent runs before the disk has the call");

    gate.let_one_pass();
    gate.has_held(2);
    assert!(begun.exists(), "the disk has the call, and its end is on its way there");
    let job = fs::read_dir(harness.state().join("jobs")).unwrap().next().unwrap().unwrap().file_name();
    let job = job.to_str().unwrap();
    // Whoever asks in whatever way: nobody hears of an end that a power cut could still take.
    ask(&mut other, 2, "call_status", &json!({ "job_id": job }));
    let mut waiting = greeted(&harness);
    ask(&mut waiting, 3, "call_wait", &json!({ "job_ids": [job] }));
    assert!(caller.receives_nothing_for(A_WHILE) && waiting.receives_nothing_for(A_WHILE));
    assert!(other.receives_nothing_for(A_WHILE) || answer(&mut other, 2)["status"] == "running");

    gate.open();
    let told = answer(&mut caller, 1);
    assert_eq!((&told["status"], &told["output"]), (&json!("completed"), &json!("done")), "{told}");
    assert_eq!(answer(&mut waiting, 3)["jobs"][0]["status"], "completed");
}
