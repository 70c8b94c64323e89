//! Processes that an agent may leave behind, and their termination.

use std::time::Duration;

use model::{Deadline, End, Exit, Limits, RunPlan};
use testkit::eventually_async;

use crate::harness::Harness;

testkit::tests![
    agent_ignoring_sigterm_is_killed,
    agent_handling_sigterm_keeps_exit_status,
    background_processes_end_with_agent,
    background_process_ignoring_sigterm_is_killed,
    stop_ends_whole_tree,
    descendants_without_environment_are_ended,
    grandchild_holding_stdout_does_not_block_run,
    forking_tree_is_ended,
    process_without_main_thread_is_ended,
    suspended_agent_handles_sigterm,
    processes_are_listed_during_run,
];

/// The ways in which a descendant escapes its parent.
const KINDS: [&str; 3] = ["same-group", "setsid", "daemon"];

fn stopping(plan: RunPlan) -> RunPlan {
    let limits = Limits { wall: Some(Duration::from_millis(500)), ..plan.limits };
    RunPlan { limits, ..plan }
}

fn agent_ignoring_sigterm_is_killed() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let report = harness.run(&stopping(harness.agent("ignore TERM\nhang"))).await;
        assert_eq!(report.end, End::Deadline { which: Deadline::Wall });
        assert_eq!(report.exit, Some(Exit::Signal(9)));
        assert_eq!(report.descendants_ended, 0);
    });
}

fn agent_handling_sigterm_keeps_exit_status() {
    Harness::run_test(async |harness: &Harness| {
        let script = "trap 'echo bye; exit 143' TERM; echo up; while :; do sleep 0.02; done";
        let plan = RunPlan {
            args: vec!["-c".into(), script.into()],
            limits: Limits { grace: Duration::from_secs(30), ..Limits::default() },
            ..RunPlan::new("/bin/sh", "/")
        };
        let report = harness.run(&stopping(plan)).await;
        assert_eq!(report.exit, Some(Exit::Code(143)));
        assert_eq!(harness.text(), "up\nbye\n");
    });
}

fn background_processes_end_with_agent() {
    for kind in KINDS {
        Harness::run_test(async |harness: &Harness| {
            let report = harness.run(&harness.agent(&format!("spawn {kind}\nanswer done"))).await;
            assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))), "{kind}");
            assert_eq!(harness.descendants().len(), 1);
            assert_eq!(report.descendants_ended, 1, "{kind}");
        });
    }
}

fn background_process_ignoring_sigterm_is_killed() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let spawns = KINDS.map(|kind| format!("spawn {kind} ignore-term\n")).concat();
        let report = harness.run(&harness.agent(&format!("{spawns}exit 3"))).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(3))));
        assert_eq!(harness.descendants().len(), 3);
        assert_eq!(report.descendants_ended, 3);
    });
}

fn stop_ends_whole_tree() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let spawns = KINDS.map(|kind| format!("spawn {kind}\nspawn {kind} ignore-term\n")).concat();
        let report = harness.run(&stopping(harness.agent(&format!("{spawns}ignore TERM\nhang")))).await;
        assert_eq!(report.end, End::Deadline { which: Deadline::Wall });
        assert_eq!(harness.descendants().len(), 6);
        assert_eq!(report.descendants_ended, 6);
    });
}

fn descendants_without_environment_are_ended() {
    Harness::run_test(async |harness: &Harness| {
        let spawns = KINDS.map(|kind| format!("spawn {kind} clear-env\n")).concat();
        let report = harness.run(&harness.agent(&format!("{spawns}answer done"))).await;
        assert_eq!(report.descendants_ended, 3);
    });
}

fn grandchild_holding_stdout_does_not_block_run() {
    for kind in KINDS {
        Harness::run_test(async |harness: &Harness| {
            let plan = harness.agent(&format!("spawn {kind} keep-stdout ignore-term\nanswer done"));
            let report = harness.run(&plan).await;
            assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))), "{kind}");
            assert_eq!(harness.text(), "done\n");
        });
    }
}

fn forking_tree_is_ended() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let report = harness.run(&harness.agent("fork-bomb 8 for 60s\nanswer done")).await;
        assert_eq!((&report.end, report.exit), (&End::Exited, Some(Exit::Code(0))));
        assert!(report.descendants_ended >= 1, "{report:?}");
    });
}

/// The argument of a process that continues without its main thread.
const HEADLESS: &str = "--headless";

/// The other half of `process_without_main_thread_is_ended`.
#[expect(unsafe_code, reason = "there is no safe way to end one thread and not the process")]
pub fn run_without_main_thread_if_asked() {
    if std::env::args().nth(1).as_deref() == Some(HEADLESS) {
        std::thread::spawn(|| std::thread::sleep(Duration::from_mins(10)));
        // SAFETY: ends this thread without touching memory that another one uses.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

fn process_without_main_thread_is_ended() {
    Harness::run_test(async |harness: &Harness| {
        let me = std::env::current_exe().unwrap();
        let script =
            format!("setsid {} {HEADLESS} & echo $! > {}", me.display(), harness.pid_file().display());
        let args = vec!["-c".into(), format!("{script}; sleep 0.3")];
        let env = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into();
        let report = harness.run(&RunPlan { args, env, ..RunPlan::new("/bin/sh", "/") }).await;
        assert_eq!(report.descendants_ended, 1);
    });
}

fn suspended_agent_handles_sigterm() {
    Harness::run_test(async |harness: &Harness| {
        let script = "trap 'echo bye; exit 0' TERM; kill -STOP $$; while :; do sleep 0.02; done";
        let limits = Limits { grace: Duration::from_mins(1), ..Limits::default() };
        let plan = RunPlan { args: vec!["-c".into(), script.into()], limits, ..RunPlan::new("/bin/sh", "/") };
        let report = harness.run(&stopping(plan)).await;
        assert_eq!(report.exit, Some(Exit::Code(0)), "{report:?}");
        assert_eq!(harness.text(), "bye\n");
    });
}

fn processes_are_listed_during_run() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("spawn setsid\nsay up\nhang")).await;
        eventually_async("the agent has printed", async || harness.text().contains("up")).await;
        let seen = run.processes().unwrap();
        let supervisor = run.supervisor().unwrap().pid;
        let agent = seen.iter().find(|process| process.parent == supervisor).unwrap();
        assert!(agent.command.contains("rehearsal"), "{seen:?}");
        assert!(agent.resident_bytes > 0, "{seen:?}");
        let descendant = harness.descendants()[0];
        assert!(seen.iter().any(|process| process.pid == descendant), "{descendant} is not in {seen:?}");
        run.stop().unwrap();
        run.wait().await.unwrap();
        assert_eq!(run.processes().unwrap(), []);
    });
}
