//! An open input of a confined agent, with namespaces and without.

use std::fs;
use std::io::Write;
use std::time::Duration;

use model::{End, Exit, InputMode, Limits, RunPlan};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::{Run, RunInput};
use testkit::{descendants_of, eventually_async, is_running};

use crate::behavior::in_tier;
use crate::harness::Harness;

testkit::tests![
    input_arrives_in_either_tier,
    confined_tool_cannot_write_to_stdin_in_either_tier,
    confined_agent_inherits_no_file_of_the_pump,
    run_that_closes_its_stdin_ends_in_either_tier,
    run_with_unread_input_ends_in_either_tier,
    killed_supervisor_ends_sandbox_with_open_input,
];

fn shell(harness: &Harness, script: &str, namespaces: bool) -> RunPlan {
    in_tier(RunPlan { input_mode: InputMode::Open, ..harness.shell(script) }, namespaces)
}

fn input_of(run: &Run) -> RunInput {
    run.input().unwrap().unwrap()
}

fn input_arrives_in_either_tier() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let plan = shell(harness, "cat; echo end", namespaces);
            let run = harness.start(&RunPlan { input: b"of the plan\n".to_vec(), ..plan }).await;
            harness.wait_for_output("of the plan\n").await;
            let mut input = input_of(&run);
            let text = "x".repeat(777_777);
            for _ in 0..5 {
                input.write_all(text.as_bytes()).unwrap();
            }
            input.close().unwrap();
            let report = run.wait().await.unwrap();
            assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))), "{}", harness.error());
            assert!(harness.output() == format!("of the plan\n{}end\n", text.repeat(5)));
        });
    }
}

fn confined_tool_cannot_write_to_stdin_in_either_tier() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let spool = harness.spool();
            let forge = format!(
                "sh -c 'echo forged > /proc/$PPID/fd/0'; sh -c 'echo forged >&0'; (echo forged > /dev/stdin); \
                 for end in /proc/[0-9]*/fd/*; do \
                     case $(readlink $end) in socket:*|*/input|*/control) (echo forged >> $end) ;; esac; \
                 done; \
                 (echo forged >> {0}/input); (echo '{{\"command\":\"close_input\"}}' >> {0}/control); \
                 echo tried; cat; echo end",
                spool.display()
            );
            let run = harness.start(&shell(harness, &forge, namespaces)).await;
            harness.wait_for_output("tried").await;
            let mut input = input_of(&run);
            input.write_all(b"genuine\n").unwrap();
            harness.wait_for_output("genuine").await;
            input.close().unwrap();
            run.wait().await.unwrap();
            assert_eq!(harness.output(), "tried\ngenuine\nend\n", "namespaces {namespaces}");
            assert_eq!(fs::read_to_string(run.spool().input()).unwrap(), "genuine\n");
            assert!(harness.error().contains("No such device or address"), "{}", harness.error());
        });
    }
}

fn confined_agent_inherits_no_file_of_the_pump() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            harness.run(&shell(harness, "exec ls /proc/self/fd", namespaces)).await;
            // 3 is the directory that `ls` itself is reading.
            assert_eq!(harness.output(), "0\n1\n2\n3\n", "namespaces {namespaces}: {}", harness.error());
        });
    }
}

fn run_that_closes_its_stdin_ends_in_either_tier() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let script = "exec 0<&-; echo up; until test -e go; do sleep 0.01; done; exit 7";
            let run = harness.start(&shell(harness, script, namespaces)).await;
            harness.wait_for_output("up").await;
            let mut input = input_of(&run);
            input.write_all(&vec![b'x'; 1_000_000]).unwrap();
            input.close().unwrap();
            fs::write(harness.workspace().join("go"), "").unwrap();
            let report = run.wait().await.unwrap();
            assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(7))), "{}", harness.error());
        });
    }
}

fn run_with_unread_input_ends_in_either_tier() {
    for namespaces in [true, false] {
        Harness::run_test(async |harness: &Harness| {
            let run = harness.start(&shell(harness, "echo up; exec sleep 600", namespaces)).await;
            input_of(&run).write_all(&vec![b'x'; 10_000_000]).unwrap();
            harness.wait_for_output("up").await;
            run.stop().unwrap();
            let report = run.wait().await.unwrap();
            assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Signal(15))));
        });
        Harness::run_test(async |harness: &Harness| {
            let plan = shell(harness, "exec sleep 600", namespaces);
            let limits = Limits { wall: Some(Duration::from_millis(300)), ..plan.limits.clone() };
            let run = harness.start(&RunPlan { limits, ..plan }).await;
            input_of(&run).write_all(&vec![b'x'; 10_000_000]).unwrap();
            let report = run.wait().await.unwrap();
            assert!(matches!(report.end, End::Deadline { .. }), "{}", report.end);
        });
    }
}

fn killed_supervisor_ends_sandbox_with_open_input() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&shell(harness, "echo up; exec cat", true)).await;
        harness.wait_for_output("up").await;
        let mut input = input_of(&run);
        input.write_all(b"hello\n").unwrap();
        harness.wait_for_output("hello").await;
        let supervisor = run.supervisor().unwrap().pid;
        let family = descendants_of(supervisor);
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        eventually_async("all of it is gone", async || !family.iter().any(|pid| is_running(*pid))).await;
        input.write_all(b"late\n").unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::SupervisorLost);
        assert_eq!(harness.output(), "up\nhello\n");
    });
}
