//! Nothing outlives a run, whoever is killed.

use model::{End, Preset, RunState, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::Run;

use crate::scene::{Scene, eventually, is_running, processes_below};

crate::tests![
    killed_supervisor_ends_sandbox_without_recovery,
    killed_outer_process_ends_sandbox,
    fork_bomb_is_ended,
];

/// A grandchild of another session, without environment, whose parent has gone: what no sweep by identity can find.
const HIDDEN: &str = "setsid env -i sh -c 'trap \"\" TERM HUP; echo up; while :; do sleep 1; done' & sleep 0.2; echo started; \
                      while :; do sleep 1; done";

async fn with_a_hidden_grandchild(scene: &Scene) -> (Run, i32, Vec<i32>) {
    let run = scene.start(&scene.shell(HIDDEN)).await;
    scene.says("up").await;
    scene.says("started").await;
    let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
    let family = processes_below(supervisor);
    assert!(family.len() >= 4, "{family:?}");
    (run, supervisor, family)
}

fn killed_supervisor_ends_sandbox_without_recovery() {
    Scene::play(async |scene: &Scene| {
        let (run, supervisor, family) = with_a_hidden_grandchild(scene).await;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        // Nobody waits and nobody recovers: the kernel does it.
        eventually("all of it is gone", || !family.iter().any(|pid| is_running(*pid))).await;
        let status = run.spool().status().unwrap().unwrap();
        assert!(matches!(status.state, RunState::Running { .. }), "something was recovered");
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
        assert_eq!(report.descendants_ended, 0);
        assert!(report.sandbox.is_some());
    });
}

fn killed_outer_process_ends_sandbox() {
    Scene::play(async |scene: &Scene| {
        let (run, _, family) = with_a_hidden_grandchild(scene).await;
        kill_process(Pid::from_raw(family[0]).unwrap(), Signal::KILL).unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::Exited, TreeEnd::ProvenEmpty));
        assert_eq!(report.exit, Some(model::Exit::Signal(9)));
        assert!(!family.iter().any(|pid| is_running(*pid)));
    });
}

fn fork_bomb_is_ended() {
    Scene::play(async |scene: &Scene| {
        // A small one, which goes on for as long as anybody lets it.
        let script = "bomb() { while :; do sleep 0.05 & sleep 0.01; done; }; trap '' TERM; bomb & bomb & echo up; wait";
        let mut confinement = scene.confinement(Preset::Workspace);
        // Root is held to no number, so none can be required.
        confinement.bounds.processes = (!rustix::process::geteuid().is_root()).then_some(200);
        let plan =
            model::RunPlan { policy: model::Policy::Confined(Box::new(confinement)), ..scene.shell(script) };
        let run = scene.start(&plan).await;
        scene.says("up").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::Stopped, TreeEnd::ProvenEmpty));
    });
}
