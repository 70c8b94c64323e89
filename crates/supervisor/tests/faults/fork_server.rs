//! Supervisors forked by a fork server.

use std::time::Duration;

use model::{End, RunReport, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{Run, Supervisor};
use testkit::{children_of, eventually_async, is_running, is_suspended};

use crate::harness::{Harness, own_children, parent_of};

testkit::tests![
    supervisors_are_forked_by_fork_server,
    killed_fork_server_is_replaced,
    forked_supervisor_survives_fork_server,
    killed_idle_supervisor_is_replaced,
    suspended_idle_supervisor_is_bypassed,
    suspended_fork_server_is_bypassed,
    suspended_fork_server_and_supervisor_are_bypassed,
    killed_forked_supervisor_is_recovered,
    fork_server_starts_concurrent_runs,
    fork_server_exits_with_starter,
];

fn with_fork_server() -> Supervisor {
    Supervisor::this_program().unwrap().with_fork_server()
}

async fn start(harness: &Harness, supervisor: &Supervisor, name: &str, script: &str) -> Run {
    supervisor.start(&harness.directory().join(name), &harness.agent(script)).await.unwrap()
}

async fn report(run: &Run) -> RunReport {
    let report = run.wait().await.unwrap();
    assert_eq!(report.tree, TreeEnd::ProvenEmpty, "{report:?}");
    report
}

/// Runs a first run to its end. Returns the pid of the fork server that it has started.
async fn start_fork_server(harness: &Harness, supervisor: &Supervisor) -> i32 {
    let first = start(harness, supervisor, "first", "answer one").await;
    report(&first).await;
    let of_the_run = first.supervisor().map(|supervisor| supervisor.pid);
    let others: Vec<i32> = own_children().into_iter().filter(|pid| Some(*pid) != of_the_run).collect();
    assert_eq!(others.len(), 1, "{others:?}");
    others[0]
}

/// Returns the pid of the idle supervisor.
async fn idle_supervisor_of(fork_server: i32) -> i32 {
    let mut idle = Vec::new();
    eventually_async("one waits", async || {
        idle = children_of(fork_server).into_iter().filter(|pid| is_running(*pid)).collect();
        idle.len() == 1
    })
    .await;
    idle[0]
}

fn supervisors_are_forked_by_fork_server() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let supervisor = with_fork_server();
        let fork_server = start_fork_server(harness, &supervisor).await;
        for name in ["second", "third"] {
            let run = start(harness, &supervisor, name, "spawn setsid\nanswer two\nhang").await;
            assert_eq!(parent_of(run.supervisor().unwrap().pid), Some(fork_server));
            let output = || std::fs::read_to_string(run.spool().output()).unwrap();
            eventually_async("it has answered", async || output() == "two\n").await;
            run.stop().unwrap();
            let ended = report(&run).await;
            assert_eq!((ended.end, ended.descendants_ended), (End::Stopped, 1));
            assert!(!run.spool().directory().join("supervisor.log").exists());
        }
    });
}

fn killed_fork_server_is_replaced() {
    Harness::run_test(async |harness: &Harness| {
        let supervisor = with_fork_server();
        let idle = start_fork_server(harness, &supervisor).await;
        send(idle, Signal::KILL);
        eventually_async("it is gone", async || !is_running(idle)).await;
        for name in ["second", "third"] {
            let run = start(harness, &supervisor, name, "answer two").await;
            assert_eq!(report(&run).await.end, End::Exited);
        }
    });
}

fn forked_supervisor_survives_fork_server() {
    Harness::run_test(async |harness: &Harness| {
        let supervisor = with_fork_server();
        let idle = start_fork_server(harness, &supervisor).await;
        let second = start(harness, &supervisor, "second", "delay 300ms\nanswer two").await;
        send(idle, Signal::KILL);
        assert_eq!(report(&second).await.end, End::Exited);
        assert_eq!(std::fs::read_to_string(second.spool().output()).unwrap(), "two\n");
    });
}

fn killed_idle_supervisor_is_replaced() {
    Harness::run_test(async |harness: &Harness| {
        let supervisor = with_fork_server();
        let fork_server = start_fork_server(harness, &supervisor).await;
        let first = idle_supervisor_of(fork_server).await;
        send(first, Signal::KILL);
        eventually_async("it is gone", async || !is_running(first)).await;
        let second = start(harness, &supervisor, "second", "answer two").await;
        assert_eq!(parent_of(idle_supervisor_of(fork_server).await), Some(fork_server));
        assert_eq!(report(&second).await.end, End::Exited);
    });
}

/// Starts a second run after the given processes of the fork server were suspended, and waits until those are gone.
fn assert_run_starts_despite_suspended(which: fn(fork_server: i32, idle: i32) -> Vec<i32>) {
    Harness::run_test(async move |harness: &Harness| {
        let supervisor = with_fork_server().with_startup_timeout(Duration::from_secs(5));
        let fork_server = start_fork_server(harness, &supervisor).await;
        let suspended = which(fork_server, idle_supervisor_of(fork_server).await);
        for pid in &suspended {
            send(*pid, Signal::STOP);
            // The fork server kills a suspended idle supervisor as soon as it notices.
            eventually_async("it is suspended", async || is_suspended(*pid) || !is_running(*pid)).await;
        }
        let second = start(harness, &supervisor, "second", "answer two").await;
        assert_eq!(report(&second).await.end, End::Exited);
        eventually_async("they are gone", async || !suspended.iter().any(|pid| is_running(*pid))).await;
        let third = start(harness, &supervisor, "third", "answer three").await;
        assert_eq!(report(&third).await.end, End::Exited);
    });
}

fn suspended_idle_supervisor_is_bypassed() {
    assert_run_starts_despite_suspended(|_, idle| vec![idle]);
}

fn suspended_fork_server_is_bypassed() {
    assert_run_starts_despite_suspended(|fork_server, _| vec![fork_server]);
}

fn suspended_fork_server_and_supervisor_are_bypassed() {
    assert_run_starts_despite_suspended(|fork_server, idle| vec![fork_server, idle]);
}

fn killed_forked_supervisor_is_recovered() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let supervisor = with_fork_server();
        start_fork_server(harness, &supervisor).await;
        let second = start(harness, &supervisor, "second", "spawn setsid ignore-term\nhang").await;
        eventually_async("the descendant is there", async || harness.descendants().len() == 1).await;
        send(second.supervisor().unwrap().pid, Signal::KILL);
        assert_eq!(second.wait().await.unwrap().end, End::SupervisorLost);
    });
}

fn fork_server_starts_concurrent_runs() {
    Harness::run_test(async |harness: &Harness| {
        let supervisor = with_fork_server();
        start_fork_server(harness, &supervisor).await;
        let names: Vec<String> = (0..8).map(|number| format!("run-{number}")).collect();
        let runs = names.iter().map(|name| start(harness, &supervisor, name, "delay 20ms\nanswer done"));
        for run in join_all(runs).await {
            assert_eq!(report(&run).await.end, End::Exited);
        }
    });
}

fn fork_server_exits_with_starter() {
    Harness::run_test(async |harness: &Harness| {
        let supervisor = with_fork_server();
        let fork_server = start_fork_server(harness, &supervisor).await;
        let idle = idle_supervisor_of(fork_server).await;
        drop(supervisor);
        eventually_async("both end", async || !is_running(idle) && !is_running(fork_server)).await;
    });
}

/// Awaits all futures concurrently.
async fn join_all(runs: impl Iterator<Item = impl Future<Output = Run>>) -> Vec<Run> {
    let mut runs: Vec<_> = runs.map(Box::pin).collect();
    let mut ready = Vec::new();
    std::future::poll_fn(|context| {
        runs.retain_mut(|run| match run.as_mut().poll(context) {
            std::task::Poll::Ready(run) => {
                ready.push(run);
                false
            }
            std::task::Poll::Pending => true,
        });
        if runs.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    ready
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
