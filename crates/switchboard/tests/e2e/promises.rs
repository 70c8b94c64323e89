//! Guarantees in ordinary use, with and without the daemon: background work of the real claude, and a workspace after kills.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use testkit::eventually;

use model::RunStatus;
use model_api::cli::Agent;
use model_api::{ModelApi, Script};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Harness, newest, stdout};

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Calls the real claude with a model that obeys the prompt, and returns the answer and the exit code.
fn call_claude(prompt: &str, more: &[&str]) -> Option<(Value, Option<i32>)> {
    let claude = newest(Agent::Claude)?;
    let harness = Harness::new();
    let (person, work) = (harness.scratch().join("person"), harness.scratch().join("work"));
    for directory in [&person, &work] {
        fs::create_dir(directory).unwrap();
    }
    harness.configure(&format!("[programs]\nclaude = \"{}\"\n", claude.program.display()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let api = runtime.block_on(ModelApi::start(Script::obey()));
    let args = [&["call", "claude", prompt, "--json", "--cwd", work.to_str().unwrap()], more].concat();
    let output = harness.command(&args).envs(claude.environment(&api, &person).unwrap()).output().unwrap();
    let answer = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{output:?}"));
    let finished = work.join("finished").exists();
    assert_eq!(finished, output.status.success(), "the task decides: {output:?}");
    Some((answer, output.status.code()))
}

#[test]
fn daemon_waits_for_background_work_of_claude() {
    let Some((answer, code)) = call_claude("The answer is 42.\n& sleep 1; touch finished", &[]) else {
        return;
    };
    assert_eq!((answer["status"].as_str(), code), (Some("completed"), Some(0)), "{answer}");
    assert!(answer["output"].as_str().unwrap().starts_with("The answer is 42."), "{answer}");
    assert_eq!((&answer["background"], &answer["exit_code"]), (&Value::Null, &Value::from(0)), "{answer}");
}

#[test]
fn background_work_cut_by_limit_is_failure() {
    let prompt = "The answer is 42.\n& sleep 600; touch finished";
    let Some((answer, code)) = call_claude(prompt, &["--timeout", "5s"]) else { return };
    assert_ne!(code, Some(0), "{answer}");
    assert_eq!(answer["status"], "timeout", "{answer}");
    assert!(answer["output"].as_str().unwrap().starts_with("The answer is 42."), "{answer}");
    assert_eq!(answer["background"][0]["description"], "sleep 600; touch finished", "{answer}");
    assert_eq!(answer["exit_code"], Value::Null, "{answer}");
}

#[test]
fn direct_call_waits_for_background_work() {
    let prompt = "The answer is 42.\n& sleep 1; touch finished";
    let Some((answer, code)) = call_claude(prompt, &["--direct"]) else { return };
    assert_eq!((answer["verdict"]["verdict"].as_str(), code), (Some("success"), Some(0)), "{answer}");
}

#[test]
fn killed_daemon_and_supervisor_leave_no_files() {
    let harness = Harness::new();
    harness.configure("[limits]\nattempts = 1\n");
    let work = harness.work();
    assert!(Command::new("git").args(["init", "--quiet"]).arg(&work).status().unwrap().success());
    let git_before = names_in(&work.join(".git"));
    let prompt = "@rehearse write .envrc evil\n@rehearse write kept work\n@rehearse hang";
    let cwd = work.to_str().unwrap();
    let output = harness.run(&["call", "rehearsal", prompt, "--cwd", cwd, "--background"]);
    let job = harness.state().join("jobs").join(stdout(&output).trim());
    eventually("the agent has written", || work.join("kept").exists());
    let during = BTreeSet::from([".git", ".envrc", "kept"].map(str::to_owned));
    assert_eq!(names_in(&work), during, "the agent's own files, and nothing of ours");

    let file = job.join("runs/1/status.json");
    eventually("the supervisor has written its status", || file.exists());
    let status: RunStatus = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    harness.running_daemon().unwrap().kill();
    kill_process(Pid::from_raw(status.supervisor.pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(names_in(&work), during, "a kill adds nothing");

    harness.daemon();
    let id = job.file_name().unwrap().to_str().unwrap();
    let waited = harness.run(&["wait", id, "--json"]);
    let quarantined = job.join("runs/1/quarantine").join(work.strip_prefix("/").unwrap()).join(".envrc");
    assert_eq!(fs::read_to_string(&quarantined).unwrap(), "evil", "{waited:?}");
    let status = harness.run(&["status", id]);
    assert!(stdout(&status).contains(quarantined.to_str().unwrap()), "it is named: {status:?}");
    assert_eq!(names_in(&work), BTreeSet::from([".git", "kept"].map(str::to_owned)));
    assert_eq!(names_in(&work.join(".git")), git_before);
}
