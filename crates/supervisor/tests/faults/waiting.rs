//! A supervisor that is started before there is a run for it.

use model::{End, RunReport, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{Run, Supervisor};

use crate::scene::{Scene, children_of_this_process, eventually, is_running};

crate::tests![
    a_supervisor_that_waits_carries_out_the_next_run,
    one_that_was_killed_while_it_waited_is_no_loss,
    one_that_was_killed_in_its_run_is_recovered_like_any_other,
    many_runs_at_once_need_no_waiting_supervisor_each,
    it_ends_with_whoever_keeps_it,
];

fn warm() -> Supervisor {
    Supervisor::this_program().unwrap().kept_warm()
}

async fn start(scene: &Scene, supervisor: &Supervisor, name: &str, script: &str) -> Run {
    supervisor.start(&scene.folder().join(name), &scene.agent(script)).await.unwrap()
}

async fn report(run: &Run) -> RunReport {
    let report = run.wait().await.unwrap();
    assert_eq!(report.tree, TreeEnd::ProvenEmpty, "{report:?}");
    report
}

/// The child of this process that is no run's supervisor.
fn spare(runs: &[&Run]) -> i32 {
    let of_runs: Vec<i32> = runs.iter().filter_map(|run| Some(run.supervisor()?.pid)).collect();
    let spares: Vec<i32> =
        children_of_this_process().into_iter().filter(|pid| !of_runs.contains(pid)).collect();
    assert_eq!(spares.len(), 1, "{spares:?}");
    spares[0]
}

fn a_supervisor_that_waits_carries_out_the_next_run() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let first = start(scene, &supervisor, "first", "answer one").await;
        report(&first).await;
        let waiting = spare(&[&first]);
        let second = start(scene, &supervisor, "second", "spawn setsid\nanswer two").await;
        assert_eq!(second.supervisor().unwrap().pid, waiting);
        let ended = report(&second).await;
        assert_eq!((ended.end, ended.descendants_ended), (End::Exited, 1));
        let said = std::fs::read_to_string(second.spool().output()).unwrap();
        assert_eq!(said, "two\n");
        assert!(!second.spool().folder().join("supervisor.log").exists());
    });
}

fn one_that_was_killed_while_it_waited_is_no_loss() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let first = start(scene, &supervisor, "first", "answer one").await;
        report(&first).await;
        let waiting = spare(&[&first]);
        kill(waiting);
        eventually("it is gone", || !is_running(waiting)).await;
        let second = start(scene, &supervisor, "second", "answer two").await;
        assert_eq!(report(&second).await.end, End::Exited);
    });
}

fn one_that_was_killed_in_its_run_is_recovered_like_any_other() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        report(&start(scene, &supervisor, "first", "answer one").await).await;
        let second = start(scene, &supervisor, "second", "spawn setsid ignore-term\nhang").await;
        eventually("the descendant is there", || scene.descendants().len() == 1).await;
        kill(second.supervisor().unwrap().pid);
        assert_eq!(second.wait().await.unwrap().end, End::SupervisorLost);
    });
}

fn many_runs_at_once_need_no_waiting_supervisor_each() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let names: Vec<String> = (0..8).map(|number| format!("run-{number}")).collect();
        let runs = names.iter().map(|name| start(scene, &supervisor, name, "delay 20ms\nanswer done"));
        for run in futures(runs).await {
            assert_eq!(report(&run).await.end, End::Exited);
        }
    });
}

fn it_ends_with_whoever_keeps_it() {
    Scene::play(async |scene: &Scene| {
        let supervisor = warm();
        let run = start(scene, &supervisor, "first", "answer one").await;
        report(&run).await;
        let waiting = spare(&[&run]);
        drop(supervisor);
        eventually("it ends", || !is_running(waiting)).await;
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

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}
