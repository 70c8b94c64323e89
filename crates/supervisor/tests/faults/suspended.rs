//! Limits and stop requests hold while the supervisor is suspended.

use std::cell::Cell;
use std::fs;
use std::time::Duration;

use model::{Deadline, End, Limits, RunPlan, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{Run, StartError, attach};
use testkit::{eventually_async, is_suspended};

use crate::harness::Harness;

testkit::tests![
    suspended_supervisor_meets_wall_deadline,
    suspended_supervisor_meets_idle_deadline,
    suspended_supervisor_meets_start_deadline,
    suspended_supervisor_is_enforced_after_attach,
    repeatedly_suspended_supervisor_is_killed_with_tree,
    repeatedly_suspended_supervisor_is_killed_on_stop,
    supervisor_suspended_before_reply_is_killed_with_tree,
];

const SHORT: Option<Duration> = Some(Duration::from_millis(400));

fn suspend(run: &Run) {
    let supervisor = run.supervisor().unwrap().pid;
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::STOP).unwrap();
}

fn suspended_run_ends_as(which: Deadline, script: &str, limits: &Limits) {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let plan = harness.agent(script);
        let run = harness.start(&RunPlan { limits: limits.clone(), ..plan }).await;
        eventually_async("the agent has printed", async || {
            harness.text() == "hello\n" || which == Deadline::Start
        })
        .await;
        suspend(&run);
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::Deadline { which }, TreeEnd::ProvenEmpty));
    });
}

fn suspended_supervisor_meets_wall_deadline() {
    let limits = Limits { wall: Some(Duration::from_secs(1)), ..Limits::default() };
    suspended_run_ends_as(Deadline::Wall, "say hello\nhang", &limits);
}

fn suspended_supervisor_meets_idle_deadline() {
    let limits = Limits { idle: Some(Duration::from_secs(1)), ..Limits::default() };
    suspended_run_ends_as(Deadline::Idle, "say hello\nhang", &limits);
}

fn suspended_supervisor_meets_start_deadline() {
    suspended_run_ends_as(Deadline::Start, "hang", &Limits { start: SHORT, ..Limits::default() });
}

fn suspended_supervisor_is_enforced_after_attach() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let limits = Limits { wall: Some(Duration::from_secs(1)), ..Limits::default() };
        let plan = harness.agent("hang");
        let first = harness.start(&RunPlan { limits, ..plan }).await;
        suspend(&first);
        drop(first);
        let report = attach(&harness.spool()).await.unwrap().wait().await.unwrap();
        assert_eq!(report.end, End::Deadline { which: Deadline::Wall });
    });
}

/// Returns a plan for an agent that has a descendant without any trace of the run, waits for the given command, and
/// then keeps suspending its supervisor for as long as both live.
fn hostile_agent(harness: &Harness, limits: Limits, wait: &str) -> RunPlan {
    let hidden = format!("env -i setsid sleep 600 & echo $! > {}", harness.pid_file().display());
    let script = format!("{hidden}; {wait}; while :; do kill -STOP $PPID; done");
    let env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
    RunPlan { args: vec!["-c".into(), script], env, limits, ..RunPlan::new("/bin/sh", "/") }
}

/// Starts a hostile agent that waits until its start was reported, and returns once it has suspended its supervisor.
async fn start_hostile(harness: &Harness, limits: Limits) -> Run {
    let reported = harness.directory().join("reported");
    let wait = format!("until test -e {}; do sleep 0.01; done", reported.display());
    let run = harness.start(&hostile_agent(harness, limits, &wait)).await;
    fs::write(reported, "").unwrap();
    let supervisor = run.supervisor().unwrap().pid;
    eventually_async("the supervisor is suspended", async || is_suspended(supervisor)).await;
    run
}

fn repeatedly_suspended_supervisor_is_killed_with_tree() {
    Harness::run_test(async |harness: &Harness| {
        let grace = Duration::from_millis(300);
        let run =
            start_hostile(harness, Limits { wall: Some(Duration::from_secs(1)), grace, ..Limits::default() })
                .await;
        let report = run.wait().await.unwrap();
        assert_eq!(report.end, End::Deadline { which: Deadline::Wall });
        assert_ne!(report.tree, TreeEnd::LeftAlive { processes: 1 });
        // The harness checks at the end of every test that nothing is left, including the hidden descendant.
        assert_eq!(attach(&harness.spool()).await.unwrap().wait().await.unwrap(), report);
    });
}

fn repeatedly_suspended_supervisor_is_killed_on_stop() {
    Harness::run_test(async |harness: &Harness| {
        let run = start_hostile(harness, Limits::default()).await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!(report.end, End::Stopped);
        assert!(!matches!(report.tree, TreeEnd::LeftAlive { .. }), "{report:?}");
    });
}

fn supervisor_suspended_before_reply_is_killed_with_tree() {
    // The supervisor often reports the start before the agent gets to suspend it.
    let lost_the_race = (0..8).any(|_| suspends_supervisor_before_reply());
    eprintln!("the agent was quicker than the first word: {lost_the_race}");
}

/// Returns whether the agent suspended its supervisor before the startup reply.
fn suspends_supervisor_before_reply() -> bool {
    let is_suspended = Cell::new(false);
    Harness::run_test(async |harness: &Harness| {
        match harness.try_start(&hostile_agent(harness, Limits::default(), ":")).await {
            Err(StartError::GaveUp { message }) => {
                assert_eq!(message, "it was suspended repeatedly");
                assert_eq!(harness.descendants().len(), 1);
                is_suspended.set(true);
            }
            Err(error) => panic!("{error:?}"),
            Ok(run) => {
                run.stop().unwrap();
                assert_eq!(run.wait().await.unwrap().end, End::Stopped);
            }
        }
    });
    is_suspended.get()
}
