//! A process that waits for runs, and from which their supervisors come.

use std::time::Duration;

use model::{End, RunReport, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{Run, Supervisor};

use crate::scene::{
    Scene, children_of, children_of_this_process, eventually, is_running, is_suspended, parent_of,
};

crate::tests![
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

fn warm() -> Supervisor {
    Supervisor::this_program().unwrap().with_fork_server()
}

async fn start(scene: &Scene, supervisor: &Supervisor, name: &str, script: &str) -> Run {
    supervisor.start(&scene.folder().join(name), &scene.agent(script)).await.unwrap()
}

async fn report(run: &Run) -> RunReport {
    let report = run.wait().await.unwrap();
    assert_eq!(report.tree, TreeEnd::ProvenEmpty, "{report:?}");
    report
}

/// Starts a first run and waits for its end; the process that waits for further ones.
async fn nursery_of(scene: &Scene, supervisor: &Supervisor) -> i32 {
    let first = start(scene, supervisor, "first", "answer one").await;
    report(&first).await;
    let of_the_run = first.supervisor().map(|supervisor| supervisor.pid);
    let others: Vec<i32> =
        children_of_this_process().into_iter().filter(|pid| Some(*pid) != of_the_run).collect();
    assert_eq!(others.len(), 1, "{others:?}");
    others[0]
}

/// The supervisor that has no folder yet.
async fn waiting_in(fork_server: i32) -> i32 {
    let mut waiting = Vec::new();
    eventually("one waits", || {
        waiting = children_of(fork_server).into_iter().filter(|pid| is_running(*pid)).collect();
        waiting.len() == 1
    })
    .await;
    waiting[0]
}

fn supervisors_are_forked_by_fork_server() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let fork_server = nursery_of(scene, &supervisor).await;
        for name in ["second", "third"] {
            let run = start(scene, &supervisor, name, "spawn setsid\nanswer two\nhang").await;
            assert_eq!(parent_of(run.supervisor().unwrap().pid), Some(fork_server));
            let said = || std::fs::read_to_string(run.spool().output()).unwrap();
            eventually("it has answered", || said() == "two\n").await;
            run.stop().unwrap();
            let ended = report(&run).await;
            assert_eq!((ended.end, ended.descendants_ended), (End::Stopped, 1));
            assert!(!run.spool().directory().join("supervisor.log").exists());
        }
    });
}

fn killed_fork_server_is_replaced() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let waiting = nursery_of(scene, &supervisor).await;
        send(waiting, Signal::KILL);
        eventually("it is gone", || !is_running(waiting)).await;
        for name in ["second", "third"] {
            let run = start(scene, &supervisor, name, "answer two").await;
            assert_eq!(report(&run).await.end, End::Exited);
        }
    });
}

fn forked_supervisor_survives_fork_server() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let waiting = nursery_of(scene, &supervisor).await;
        let second = start(scene, &supervisor, "second", "delay 300ms\nanswer two").await;
        send(waiting, Signal::KILL);
        assert_eq!(report(&second).await.end, End::Exited);
        assert_eq!(std::fs::read_to_string(second.spool().output()).unwrap(), "two\n");
    });
}

fn killed_idle_supervisor_is_replaced() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let fork_server = nursery_of(scene, &supervisor).await;
        let first = waiting_in(fork_server).await;
        send(first, Signal::KILL);
        eventually("it is gone", || !is_running(first)).await;
        let second = start(scene, &supervisor, "second", "answer two").await;
        assert_eq!(parent_of(waiting_in(fork_server).await), Some(fork_server));
        assert_eq!(report(&second).await.end, End::Exited);
    });
}

/// Starts a second run after the given processes of the fork_server were suspended; they are gone afterwards.
fn run_starts_although_suspended(which: fn(fork_server: i32, waiting: i32) -> Vec<i32>) {
    Scene::play(async move |scene: &Scene| {
        let supervisor = warm().with_startup_timeout(Duration::from_secs(5));
        let fork_server = nursery_of(scene, &supervisor).await;
        let suspended = which(fork_server, waiting_in(fork_server).await);
        for pid in &suspended {
            send(*pid, Signal::STOP);
            // The fork_server kills a waiting one as soon as it sees it.
            eventually("it is suspended", || is_suspended(*pid) || !is_running(*pid)).await;
        }
        let second = start(scene, &supervisor, "second", "answer two").await;
        assert_eq!(report(&second).await.end, End::Exited);
        eventually("they are gone", || !suspended.iter().any(|pid| is_running(*pid))).await;
        let third = start(scene, &supervisor, "third", "answer three").await;
        assert_eq!(report(&third).await.end, End::Exited);
    });
}

fn suspended_idle_supervisor_is_bypassed() {
    run_starts_although_suspended(|_, waiting| vec![waiting]);
}

fn suspended_fork_server_is_bypassed() {
    run_starts_although_suspended(|fork_server, _| vec![fork_server]);
}

fn suspended_fork_server_and_supervisor_are_bypassed() {
    run_starts_although_suspended(|fork_server, waiting| vec![fork_server, waiting]);
}

fn killed_forked_supervisor_is_recovered() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        nursery_of(scene, &supervisor).await;
        let second = start(scene, &supervisor, "second", "spawn setsid ignore-term\nhang").await;
        eventually("the descendant is there", || scene.descendants().len() == 1).await;
        send(second.supervisor().unwrap().pid, Signal::KILL);
        assert_eq!(second.wait().await.unwrap().end, End::SupervisorLost);
    });
}

fn fork_server_starts_concurrent_runs() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        nursery_of(scene, &supervisor).await;
        let names: Vec<String> = (0..8).map(|number| format!("run-{number}")).collect();
        let runs = names.iter().map(|name| start(scene, &supervisor, name, "delay 20ms\nanswer done"));
        for run in futures(runs).await {
            assert_eq!(report(&run).await.end, End::Exited);
        }
    });
}

fn fork_server_exits_with_starter() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let fork_server = nursery_of(scene, &supervisor).await;
        let waiting = waiting_in(fork_server).await;
        drop(supervisor);
        eventually("both end", || !is_running(waiting) && !is_running(fork_server)).await;
    });
}

/// All of them at once.
async fn futures(runs: impl Iterator<Item = impl Future<Output = Run>>) -> Vec<Run> {
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
