//! Hosts with running calls, while the daemon, the bridge or the host is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use testkit::{eventually, is_running};

use model::{RunState, RunStatus};
use serde_json::{Value, json};

use crate::harness::{Harness, TestHost};

/// The number of calls during the kills, and the number of hosts.
const CALLS: u64 = 20;
const HOSTS: u64 = 4;

fn harness() -> Harness {
    let harness = Harness::new();
    // Without namespaces of their own, so that the numbers which the agent's descendants write down are this machine's.
    harness.configure("rehearsal = true\n\n[limits]\nat_once = 32\n\n[sandbox]\npolicy = \"off\"\n");
    harness
}

/// A call of the scripted agent with several steps. Its descendants record their pids.
fn call(host: &mut TestHost, harness: &Harness, id: u64, steps: &str) {
    let pids = format!("@rehearse pidfile {}\n", pid_file(harness).display());
    let prompt: String = steps.split("; ").fold(pids, |prompt, step| format!("{prompt}@rehearse {step}\n"));
    let params = json!({
        "name": "call_rehearsal",
        "arguments": { "prompt": prompt, "cwd": harness.scratch() },
        "_meta": { "progressToken": id },
    });
    host.request(id, "tools/call", &params);
}

/// Calls a tool and returns its structured content.
fn tool(host: &mut TestHost, id: u64, name: &str, arguments: &Value) -> Value {
    host.request(id, "tools/call", &json!({ "name": name, "arguments": arguments }));
    answers(host, [id].into()).remove(&id).unwrap()
}

/// Receives messages until each of these requests has a reply. An unexpected reply fails.
fn answers(host: &mut TestHost, mut open: BTreeSet<u64>) -> BTreeMap<u64, Value> {
    let mut heard = BTreeMap::new();
    while !open.is_empty() {
        let message = host.receive();
        if message.get("method").is_some() {
            continue;
        }
        let id = message["id"].as_u64().unwrap_or_else(|| panic!("{message}"));
        assert!(open.remove(&id), "not asked, or answered twice: {message}");
        heard.insert(id, message["result"]["structuredContent"].clone());
    }
    heard
}

fn pid_file(harness: &Harness) -> PathBuf {
    harness.scratch().join("pids")
}

/// Returns the directories of all jobs.
fn jobs(harness: &Harness) -> Vec<PathBuf> {
    let entries = fs::read_dir(harness.state().join("jobs")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Returns the only run of a job. A directory that the daemon had just created when it was killed has no supervisor, so nothing ran in
/// it: it has no status, or one of the recovery without a process.
fn only_run(job: &Path) -> RunStatus {
    let entries = fs::read_dir(job.join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let statuses = entries.filter_map(|run| fs::read(run.join("status.json")).ok());
    let mut runs: Vec<RunStatus> = statuses.map(|status| serde_json::from_slice(&status).unwrap()).collect();
    runs.retain(|run| run.supervisor.pid != 0);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

/// Checks that the supervisors, all descendants of the agents and the daemon's own children are gone.
fn nothing_is_left(harness: &Harness, children: &[i32]) {
    assert!(harness.run(&["stop"]).status.success());
    let supervisors = jobs(harness).iter().map(|job| only_run(job).supervisor.pid).collect::<Vec<_>>();
    let descendants = fs::read_to_string(pid_file(harness)).unwrap_or_default();
    let descendants = descendants.lines().map(|line| line.trim().parse().unwrap());
    for pid in descendants.chain(supervisors).chain(children.iter().copied()) {
        eventually(&format!("process {pid} has ended"), || !is_running(pid));
    }
}

fn children(daemon: i32) -> Vec<i32> {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<i32>().ok())
    };
    all.filter(|pid| parent(pid) == Some(daemon)).collect()
}

#[test]
fn host_gets_replies_despite_daemon_kills() {
    // A campaign kills it 100 times.
    let rounds = std::env::var("CALLS_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(3);
    for round in 0..rounds {
        kill_in_the_midst(round);
    }
}

fn kill_in_the_midst(round: u64) {
    let harness = harness();
    let mut hosts: Vec<TestHost> = (0..HOSTS).map(|_| harness.bridge()).collect();
    hosts.iter_mut().for_each(TestHost::initialize);
    // Runs of different lengths, so that the kill finds each at another point.
    for number in 1..=CALLS {
        let host = &mut hosts[usize::try_from(number % HOSTS).unwrap()];
        let pieces = 10 + number * 4;
        call(
            host,
            &harness,
            number,
            &format!("say begun; stream {pieces} 200B 5ms; spawn setsid; answer call {number}"),
        );
    }
    // Somewhere within the time that all of it takes, another moment in every round.
    let moments = [0, 3, 20, 60, 110, 170, 240, 330, 450, 600];
    thread::sleep(Duration::from_millis(
        moments[usize::try_from(round).unwrap() % moments.len()] + round * 7 % 50,
    ));
    let daemon = harness.running_daemon().unwrap();
    let children = children(daemon.pid.as_raw_nonzero().get());
    daemon.kill();

    let mut answered = BTreeMap::new();
    for (index, host) in hosts.iter_mut().enumerate() {
        let own = (1..=CALLS).filter(|number| number % HOSTS == index as u64).collect();
        answered.extend(answers(host, own));
    }
    for (number, answer) in &answered {
        assert_eq!(answer["status"], "completed", "round {round}: {answer}");
        assert_eq!(answer["output"], format!("call {number}"));
    }
    let placed: BTreeSet<&str> = answered.values().map(|answer| answer["job_id"].as_str().unwrap()).collect();
    assert_eq!(placed.len() as u64, CALLS, "two requests were given the same job");
    assert_eq!(jobs(&harness).len() as u64, CALLS, "a request was placed twice");
    for job in jobs(&harness) {
        is_whole(&job, &answered);
    }
    drop(hosts);
    nothing_is_left(&harness, &children);
}

/// Returns the complete output of the agent.
fn is_whole(job: &Path, answered: &BTreeMap<u64, Value>) {
    let name = job.file_name().unwrap().to_str().unwrap();
    let (number, _) = answered.iter().find(|(_, answer)| answer["job_id"] == name).unwrap();
    let RunState::Ended(report) = only_run(job).state else { panic!("{name} has not ended") };
    let output = fs::read_to_string(job.join("output")).unwrap();
    assert_eq!(output.len() as u64, report.output_bytes);
    assert!(output.lines().count() as u64 > 10 + number * 4, "lines are missing in {output}");
    let last = output.lines().last().unwrap();
    assert!(last.contains(&format!("call {number}")) && output.ends_with("}\n"), "{output}");
}

/// Waits for the first output of the only job's agent and returns the job.
fn begun(harness: &Harness) -> String {
    let said = |job: &Path| fs::read_to_string(job.join("output")).is_ok_and(|said| said.contains("begun"));
    eventually("the agent has begun", || jobs(harness).iter().any(|job| said(job)));
    jobs(harness)[0].file_name().unwrap().to_str().unwrap().to_owned()
}

/// Returns the outcome of a job whose host or bridge is gone, through another host.
fn comes_to(harness: &Harness, job: &str) {
    let mut other = harness.bridge();
    other.initialize();
    let waited = tool(&mut other, 1, "call_wait", &json!({ "job_ids": [job] }));
    let answer = &waited["jobs"][0];
    assert_eq!(
        (&answer["status"], &answer["output"]),
        (&json!("completed"), &json!("all of it")),
        "{waited}"
    );
    drop(other);
    nothing_is_left(harness, &[]);
}

#[test]
fn progress_increases_across_daemon_kill() {
    let harness = harness();
    let mut host = harness.bridge();
    host.initialize();
    call(&mut host, &harness, 1, "say begun; stream 60 20B 50ms; answer all of it");
    begun(&harness);
    let mut numbers = Vec::new();
    let mut next = |host: &mut TestHost| {
        let message = host.receive();
        numbers.extend(message["params"]["progress"].as_f64());
        message
    };
    for _ in 0..3 {
        next(&mut host);
    }
    harness.running_daemon().unwrap().kill();
    let answer = loop {
        let message = next(&mut host);
        if message["id"] == 1 {
            break message["result"]["structuredContent"].clone();
        }
    };
    assert_eq!(answer["output"], "all of it", "{answer}");
    assert!(answer.get("note").is_none(), "{answer}");
    assert!(numbers.len() > 3 && numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
    drop(host);
    nothing_is_left(&harness, &[]);
}

#[test]
fn job_survives_killed_bridge() {
    let harness = harness();
    let mut host = harness.bridge();
    host.initialize();
    call(&mut host, &harness, 1, "say begun; delay 2s; answer all of it");
    let job = begun(&harness);
    host.child.kill().unwrap();
    host.child.wait().unwrap();
    comes_to(&harness, &job);
}

#[test]
fn job_survives_killed_host() {
    let harness = harness();
    let mut host = harness.bridge();
    host.initialize();
    call(&mut host, &harness, 1, "say begun; delay 2s; answer all of it");
    let job = begun(&harness);
    // What a kill of the host means for its bridge: both of its ends are closed. It ends by itself.
    host.disconnect();
    comes_to(&harness, &job);
}

#[test]
fn one_host_runs_32_calls_concurrently() {
    let harness = harness();
    let mut host = harness.bridge();
    host.initialize();
    let all: BTreeSet<u64> = (1..=32).collect();
    for &id in &all {
        call(&mut host, &harness, id, &format!("say begun {id}; hang"));
    }
    // None ends by itself, so all have begun only when all run at once.
    let mut silent = all.clone();
    while !silent.is_empty() {
        let message = host.receive();
        let token = message["params"]["progressToken"].as_u64().unwrap_or_else(|| panic!("{message}"));
        if message["params"]["message"] == format!("begun {token}") {
            silent.remove(&token);
        }
    }
    let cancel = |id: &u64| {
        json!({"jsonrpc": "2.0", "id": 100 + id, "method": "tools/call", "params":
        {"name": "call_cancel", "arguments": {"job_id": job_of(&harness, *id)}}})
    };
    for id in &all {
        host.send(&cancel(id));
    }
    let heard = answers(&mut host, all.iter().copied().chain(all.iter().map(|id| 100 + id)).collect());
    for id in &all {
        assert_eq!(heard[id]["status"], "cancelled", "{}", heard[id]);
    }
    drop(host);
    nothing_is_left(&harness, &[]);
}

/// Returns the job whose agent printed the name of a call.
fn job_of(harness: &Harness, id: u64) -> String {
    let said = format!("\"begun {id}\"");
    // In the spool of its run: the directory shows a run that lasts.
    let says = |job: &PathBuf| fs::read_to_string(job.join("runs/1/output")).unwrap().contains(&said);
    jobs(harness).into_iter().find(says).unwrap().file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn ten_hosts_share_daemon_without_mixing_replies() {
    let harness = harness();
    let mut hosts: Vec<TestHost> = (0..10).map(|_| harness.bridge()).collect();
    hosts.iter_mut().for_each(TestHost::initialize);
    for (index, host) in hosts.iter_mut().enumerate() {
        for id in 1..=3 {
            call(host, &harness, id, &format!("say begun; answer {id} of host {index}"));
        }
    }
    for (index, host) in hosts.iter_mut().enumerate() {
        for (id, answer) in answers(host, (1..=3).collect()) {
            assert_eq!(answer["output"], format!("{id} of host {index}"), "{answer}");
        }
    }
    assert_eq!((harness.ready_count(), jobs(&harness).len()), (1, 30), "{}", harness.log());
    drop(hosts);
    nothing_is_left(&harness, &[]);
}
