//! Races in private checkouts, while the daemon and supervisors are killed at many points.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use model::RunStatus;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{all_pids, command_line, eventually};

use crate::harness::{TestHost, stderr, stdout};
use crate::shop::{Shop, prompt};

/// The number of rounds, unless a campaign sets it.
const ROUNDS: u64 = 4;
/// The span of a race in which a kill may come.
const SPAN_MS: u64 = 900;

#[test]
fn races_survive_kills_of_daemons_and_supervisors() {
    let rounds = std::env::var("RACE_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(ROUNDS);
    for round in 0..rounds {
        kill_race(round, rounds);
    }
}

fn kill_race(round: u64, rounds: u64) {
    let shop = Shop::new();
    let before = tracked_state(&shop);
    let script = "write a.txt first\nonly one write one.txt n\nonly two delay 200ms\nonly two write src/two.txt n\n\
                  only three delay 400ms\nonly three write three.txt n\nonly judge choose one.txt\nanswer done";
    let with = "rehearsal:one,rehearsal:two,rehearsal:three";
    let submitted = shop.succeed(&[
        "race",
        &prompt(script),
        "--with",
        with,
        "--judge",
        "rehearsal:judge",
        "--background",
    ]);
    let group = submitted.trim();
    // Another moment in every round, and the second kill soon after the first.
    sleep(Duration::from_millis(SPAN_MS * round / rounds));
    if round % 2 == 1 {
        kill_supervisors(&shop);
    }
    shop.harness.running_daemon().unwrap().kill();
    let _ = shop.run(&["jobs"]);
    sleep(Duration::from_millis(round * 37 % 400));
    shop.harness.running_daemon().unwrap().kill();

    shop.run(&["wait", group]);
    let report = report(&shop, group);
    assert_eq!(report["has_ended"], true, "round {round}: {report}");
    assert_eq!(tracked_state(&shop), before, "round {round}: the worktree of the user has changed");
    let contenders = report["contenders"].as_array().unwrap();
    assert_eq!(contenders.len(), 3, "round {round}: {report}");
    for contender in contenders {
        assert_changes_are_kept(&shop, round, contender);
    }
    close(&shop, contenders);
    assert_nothing_is_left(&shop, round);
}

fn report(shop: &Shop, group: &str) -> Value {
    let output = shop.run(&["status", group, "--json"]);
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Returns the parts of the user's worktree and repository that a race must not change.
fn tracked_state(shop: &Shop) -> (String, String, String, BTreeMap<PathBuf, Vec<u8>>) {
    let mut files = BTreeMap::new();
    for path in ["a.txt", "src/b.txt", "untracked.txt", ".git/index", ".git/config", ".git/HEAD"] {
        files.insert(path.into(), fs::read(shop.root.join(path)).unwrap());
    }
    (shop.status(), shop.git(&["worktree", "list"]), shop.git(&["stash", "list"]), files)
}

/// Kills all supervisors of runs that have not ended.
fn kill_supervisors(shop: &Shop) {
    let jobs =
        fs::read_dir(shop.harness.state().join("jobs")).into_iter().flatten().map(|job| job.unwrap().path());
    let runs = jobs.flat_map(|job| fs::read_dir(job.join("runs")).into_iter().flatten());
    for run in runs.map(|run| run.unwrap().path()) {
        let status = fs::read(run.join("status.json")).ok();
        let status = status.and_then(|status| serde_json::from_slice::<RunStatus>(&status).ok());
        let pid = status.map_or(0, |status| status.supervisor.pid);
        // Only a process of this test: its command line names the directory of the run.
        if pid != 0 && command_line(pid).contains(shop.harness.state().to_str().unwrap()) {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
    }
}

/// Checks that the branch and the record of a contender contain the files of its checkout.
fn assert_changes_are_kept(shop: &Shop, round: u64, contender: &Value) {
    let job = contender["job_id"].as_str().unwrap();
    if contender["status"] != "completed" {
        // A supervisor that is killed too often ends its job; that is reported.
        assert_eq!(contender["error"]["kind"], "supervisor_lost", "round {round}: {contender}");
        return;
    }
    let changes = &contender["changes"];
    let checkout = &changes["checkout"];
    assert_eq!(
        (&checkout["state"], &checkout["not_published"]),
        (&"open".into(), &Value::Null),
        "{contender}"
    );
    let branch = checkout["branch"].as_str().unwrap();
    let work = Path::new(checkout["directory"].as_str().unwrap());
    let files = changes["files"].as_array().unwrap();
    assert!(!files.is_empty(), "round {round}: {contender}");
    for file in files {
        let path = file["path"].as_str().unwrap();
        let in_checkout = fs::read_to_string(work.join(path)).unwrap();
        assert_eq!(shop.git(&["show", &format!("{branch}:{path}")]), in_checkout, "round {round}: {path}");
    }
    assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "first", "round {round}: {job}");
}

/// Keeps one contender and discards the others.
fn close(shop: &Shop, contenders: &[Value]) {
    let open = contenders.iter().find(|contender| contender["changes"]["checkout"]["state"] == "open");
    if let Some(contender) = open {
        let kept = shop.run(&["keep", "--yes", contender["job_id"].as_str().unwrap()]);
        assert!(kept.status.success(), "{}", stderr(&kept));
        assert_eq!(shop.read("a.txt"), "first");
    }
}

fn assert_nothing_is_left(shop: &Shop, round: u64) {
    assert_eq!(shop.succeed(&["jobs", "--open-changes"]), "no open changes\n", "round {round}");
    assert_eq!(shop.checkouts(), 0, "round {round}");
    assert_eq!(shop.git(&["branch", "--list", "switchboard/*"]), "", "round {round}");
    shop.git(&["fsck", "--strict", "--no-dangling"]);
    assert!(shop.run(&["stop"]).status.success());
    let home = shop.harness.home.to_str().unwrap();
    eventually("no process of the race is left", || !all_pids().any(|pid| command_line(pid).contains(home)));
}

#[test]
fn killed_daemon_does_not_repeat_a_group() {
    let shop = Shop::new();
    shop.harness.configure("rehearsal = true\n");
    let mut host = TestHost::start({
        let mut command = shop.harness.command(&["mcp"]);
        command.current_dir(&shop.root).env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command
    });
    host.initialize();
    for (id, delay) in (2..).zip([0, 50, 300, 900]) {
        let script =
            prompt("delay 1s\nonly one write a.txt one\nonly two write a.txt two\nonly judge choose +one");
        let arguments = json!({
            "prompt": script,
            "agents": ["rehearsal:one", "rehearsal:two"],
            "judge": "rehearsal:judge",
            "cwd": shop.root,
        });
        host.request(id, "tools/call", &json!({ "name": "call_many", "arguments": arguments }));
        sleep(Duration::from_millis(delay));
        if let Some(daemon) = shop.harness.running_daemon() {
            daemon.kill();
        }
        let reply = loop {
            let message = host.receive();
            if message["id"] == id {
                break message;
            }
        };
        let report = &reply["result"]["structuredContent"];
        assert_eq!(report["has_ended"], true, "{delay} ms: {reply}");
        for contender in report["contenders"].as_array().unwrap() {
            assert_eq!(contender["status"], "completed", "{delay} ms: {reply}");
        }
        assert_eq!(report["verdict"]["state"], "decided", "{delay} ms: {reply}");
    }
    let jobs: Value = serde_json::from_str(&shop.succeed(&["jobs", "--json"])).unwrap();
    assert_eq!(jobs["total"], 16, "four groups of two contenders and two runs of the judge");
}
