//! Stop requests at every stage of a run.

use std::time::Duration;

use model::{End, Exit, Limits, RunPlan, RunState, TreeEnd};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{StartError, StopReply, Supervisor, attach};
use testkit::{eventually_async, is_running};

use crate::harness::{Harness, own_children};

testkit::tests![
    stopped_run_ends_as_stopped,
    stop_during_start_leaves_nothing,
    concurrent_stops_are_idempotent,
    stop_racing_exit_gives_one_outcome,
    exited_agent_keeps_exit_status_after_stop,
    suspended_supervisor_handles_stop,
    stop_after_end_is_ignored,
    dropped_handle_does_not_affect_run,
    stop_on_drop_stops_run,
    hangup_does_not_end_run,
];

fn stopped_run_ends_as_stopped() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("say hello\nhang")).await;
        assert_eq!(run.stop().unwrap(), StopReply::Requested);
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Signal(15))));
        assert_eq!(report.tree, TreeEnd::ProvenEmpty);
    });
}

fn stop_during_start_leaves_nothing() {
    let mut never_started = 0;
    for pause in 0..40_u64 {
        Harness::run_test_in_each_mode(async |harness: &Harness| {
            let supervisor = Supervisor::this_program().unwrap();
            let (spool, plan) = (harness.spool(), harness.agent("spawn setsid\nhang"));
            let stop = async {
                eventually_async("a supervisor appears", async || !own_children().is_empty()).await;
                tokio::time::sleep(Duration::from_micros(100 * pause)).await;
                for pid in own_children() {
                    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM);
                }
            };
            let (started, ()) = tokio::join!(supervisor.start(&spool, &plan), stop);
            match started {
                // Before it handled signals, or while it started: either nothing was started, or everything has ended.
                Err(StartError::GaveUp { .. }) => never_started += 1,
                Ok(run) => {
                    let report = run.wait().await.unwrap();
                    assert_eq!((report.end, report.tree), (End::Stopped, TreeEnd::ProvenEmpty));
                }
                Err(other) => panic!("{other:?}"),
            }
        });
    }
    assert!(never_started < 80, "no stop came after the start");
}

fn concurrent_stops_are_idempotent() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("ignore TERM\nsay up\nhang")).await;
        eventually_async("the agent is up", async || harness.output() == b"up\n").await;
        let other = attach(&harness.spool()).await.unwrap();
        assert_eq!(run.stop().unwrap(), StopReply::Requested);
        assert_eq!(other.stop().unwrap(), StopReply::Requested);
        let (one, two) = tokio::join!(run.wait(), other.wait());
        let report = one.unwrap();
        assert_eq!((&report.end, report.exit), (&End::Stopped, Some(Exit::Signal(9))));
        assert_eq!(report, two.unwrap());
    });
}

fn stop_racing_exit_gives_one_outcome() {
    let mut ends = [0; 2];
    for round in 0..100_u64 {
        Harness::run_test(async |harness: &Harness| {
            let args = vec!["-c".into(), format!("sleep 0.0{}", round % 4)];
            let run = harness.start(&RunPlan { args, ..RunPlan::new("/bin/sh", "/") }).await;
            tokio::time::sleep(Duration::from_micros(round * 400)).await;
            let reply = run.stop().unwrap();
            let report = run.wait().await.unwrap();
            match (&report.end, report.exit) {
                (End::Exited, Some(Exit::Code(0))) => ends[0] += 1,
                // An agent that is already exiting when it receives SIGTERM keeps its exit code.
                (End::Stopped, Some(Exit::Signal(15) | Exit::Code(0))) => ends[1] += 1,
                other => panic!("{other:?}"),
            }
            assert!(reply == StopReply::Requested || report.end == End::Exited);
            // The final status never changes.
            assert_eq!(attach(&harness.spool()).await.unwrap().wait().await.unwrap(), report);
        });
    }
    assert!(ends[0] > 0 && ends[1] > 0, "there was no race: {ends:?}");
}

fn exited_agent_keeps_exit_status_after_stop() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("delay 100ms\nexit 7")).await;
        let status = run.spool().status().unwrap().unwrap();
        let RunState::Running { agent } = status.state else { panic!("{status:?}") };
        let supervisor = Pid::from_raw(status.supervisor.pid).unwrap();
        // While the supervisor is suspended, the agent exits and the stop request arrives; then the supervisor sees
        // both at once.
        kill_process(supervisor, Signal::STOP).unwrap();
        eventually_async("the agent exits", async || !is_running(agent.pid)).await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(7))));
    });
}

fn suspended_supervisor_handles_stop() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("hang")).await;
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::STOP).unwrap();
        run.stop().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Stopped);
    });
}

fn stop_after_end_is_ignored() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("exit 7")).await;
        let report = run.wait().await.unwrap();
        assert_eq!(run.stop().unwrap(), StopReply::AlreadyEnded);
        assert_eq!(run.wait().await.unwrap(), report);
        assert_eq!(report.exit, Some(Exit::Code(7)));
    });
}

fn dropped_handle_does_not_affect_run() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        drop(harness.start(&harness.agent("say one\ndelay 200ms\nanswer two")).await);
        let run = attach(&harness.spool()).await.unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
        assert_eq!(harness.text(), "one\ntwo\n");
    });
}

fn stop_on_drop_stops_run() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        drop(harness.start(&harness.agent("hang")).await.stop_on_drop());
        let report = attach(&harness.spool()).await.unwrap().wait().await.unwrap();
        assert_eq!(report.end, End::Stopped);
    });
}

fn hangup_does_not_end_run() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let plan = harness.agent("delay 300ms\nanswer done");
        let limits = Limits { wall: Some(Duration::from_mins(1)), ..plan.limits };
        let run = harness.start(&RunPlan { limits, ..plan }).await;
        let supervisor = run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::HUP).unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
    });
}
