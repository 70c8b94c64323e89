//! Nothing outlives a run, whichever process is killed.

use model::{End, Preset, RunState, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::Run;
use testkit::{descendants_of, eventually_async, is_running};

use crate::harness::Harness;

testkit::tests![
    killed_supervisor_ends_sandbox_without_recovery,
    killed_outer_process_ends_sandbox,
    fork_bomb_is_ended,
];

/// A grandchild in another session, without environment and without parent, which no sweep by identity can find.
const HIDDEN: &str = "setsid env -i sh -c 'trap \"\" TERM HUP; echo up; while :; do sleep 1; done' & sleep 0.2; echo started; \
                      while :; do sleep 1; done";

async fn with_a_hidden_grandchild(harness: &Harness) -> (Run, i32, Vec<i32>) {
    let run = harness.start(&harness.shell(HIDDEN)).await;
    harness.wait_for_output("up").await;
    harness.wait_for_output("started").await;
    let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
    let family = descendants_of(supervisor);
    assert!(family.len() >= 4, "{family:?}");
    (run, supervisor, family)
}

fn killed_supervisor_ends_sandbox_without_recovery() {
    Harness::run_test(async |harness: &Harness| {
        let (run, supervisor, family) = with_a_hidden_grandchild(harness).await;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        // No wait and no recovery: the kernel does it.
        eventually_async("all of it is gone", async || !family.iter().any(|pid| is_running(*pid))).await;
        let status = run.spool().status().unwrap().unwrap();
        assert!(matches!(status.state, RunState::Running { .. }), "something was recovered");
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::SupervisorLost, TreeEnd::SweptByIdentity));
        assert_eq!(report.descendants_ended, 0);
        assert!(report.sandbox.is_some());
    });
}

fn killed_outer_process_ends_sandbox() {
    Harness::run_test(async |harness: &Harness| {
        let (run, _, family) = with_a_hidden_grandchild(harness).await;
        kill_process(Pid::from_raw(family[0]).unwrap(), Signal::KILL).unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::Exited, TreeEnd::ProvenEmpty));
        assert_eq!(report.exit, Some(model::Exit::Signal(9)));
        assert!(!family.iter().any(|pid| is_running(*pid)));
    });
}

fn fork_bomb_is_ended() {
    Harness::run_test(async |harness: &Harness| {
        // A small one, which continues until it is stopped.
        let script = "bomb() { while :; do sleep 0.05 & sleep 0.01; done; }; trap '' TERM; bomb & bomb & echo up; wait";
        let mut confinement = harness.confinement(Preset::Workspace);
        // Root has no process limit, so none can be required.
        confinement.bounds.processes = (!rustix::process::geteuid().is_root()).then_some(200);
        let plan = model::RunPlan {
            policy: model::Policy::Confined(Box::new(confinement)),
            ..harness.shell(script)
        };
        let run = harness.start(&plan).await;
        harness.wait_for_output("up").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.tree), (End::Stopped, TreeEnd::ProvenEmpty));
    });
}
