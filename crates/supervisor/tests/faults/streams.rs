//! Output of the agent: much, binary and none.

use std::fs;
use std::time::Duration;

use model::{Deadline, End, Exit, Limits, RunPlan};

use crate::harness::{Harness, read_to_end};

testkit::tests![
    hundred_megabyte_line_is_stored_complete,
    gigabyte_stream_ends_at_output_limit,
    output_of_exactly_the_limit_is_allowed,
    one_byte_over_output_limit_ends_run,
    both_streams_count_against_output_limit,
    binary_output_is_stored_unchanged,
    stderr_flood_does_not_block_stdout,
    agent_that_closes_stdout_meets_deadline,
    last_output_before_exit_is_not_lost,
    output_cannot_be_forged_by_other_processes,
];

fn limited(plan: RunPlan, bytes: u64) -> RunPlan {
    let limits = Limits { output_bytes: Some(bytes), ..plan.limits };
    RunPlan { limits, ..plan }
}

fn hundred_megabyte_line_is_stored_complete() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&harness.agent("garbage unended 100MB\nexit 0")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
        assert_eq!(report.output_bytes, 100_000_000);
        assert!(!harness.output().contains(&b'\n'));
    });
}

fn gigabyte_stream_ends_at_output_limit() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let report = harness.run(&limited(harness.agent("flood stdout 1GB\nanswer done"), 64 << 20)).await;
        assert_eq!(report.end, End::OutputLimit);
        assert_eq!(report.output_bytes, 64 << 20);
    });
}

fn print(bytes: usize) -> RunPlan {
    RunPlan { args: vec![format!("%{bytes}s"), "x".into()], ..RunPlan::new("/usr/bin/printf", "/") }
}

fn output_of_exactly_the_limit_is_allowed() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&limited(print(1000), 1000)).await;
        assert_eq!((report.end, report.output_bytes), (End::Exited, 1000));
    });
}

fn one_byte_over_output_limit_ends_run() {
    Harness::run_test(async |harness: &Harness| {
        let report = harness.run(&limited(print(1001), 1000)).await;
        assert_eq!((report.end, report.output_bytes), (End::OutputLimit, 1000));
    });
}

fn both_streams_count_against_output_limit() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let report =
            harness.run(&limited(harness.agent("flood stderr 2MB\nflood stdout 2MB"), 3_000_000)).await;
        assert_eq!(report.end, End::OutputLimit);
        assert_eq!(report.output_bytes + report.error_bytes, 3_000_000);
    });
}

fn binary_output_is_stored_unchanged() {
    Harness::run_test(async |harness: &Harness| {
        let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let report = harness.run(&RunPlan { input: bytes.clone(), ..RunPlan::new("/bin/cat", "/") }).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(harness.output() == bytes);
    });
    Harness::run_test(async |harness: &Harness| {
        harness.run(&harness.agent("garbage utf8\ngarbage nul\nexit 0")).await;
        let output = harness.output();
        assert!(str::from_utf8(&output).is_err() && output.contains(&0));
    });
}

fn stderr_flood_does_not_block_stdout() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let run = harness.start(&harness.agent("flood stderr 20MB\nanswer done")).await;
        let (output, error, report) = read_to_end(&run).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert_eq!(output, b"done\n");
        assert_eq!(error.len(), 20_000_000);
    });
}

fn agent_that_closes_stdout_meets_deadline() {
    Harness::run_test(async |harness: &Harness| {
        let plan = harness.agent("say hello\nclose stdout\nclose stderr\nhang");
        let limits = Limits { idle: Some(Duration::from_millis(500)), ..plan.limits };
        let report = harness.run(&RunPlan { limits, ..plan }).await;
        assert_eq!(report.end, End::Deadline { which: Deadline::Idle });
        assert_eq!(harness.text(), "hello\n");
    });
}

fn last_output_before_exit_is_not_lost() {
    for _ in 0..20 {
        Harness::run_test(async |harness: &Harness| {
            let args = vec!["-c".into(), "printf early; head -c 60000 /dev/zero; printf late >&2".into()];
            harness.run(&RunPlan { args, ..RunPlan::new("/bin/sh", "/") }).await;
            assert_eq!(harness.output().len(), 60_005);
            assert_eq!(fs::read(harness.spool().join("error")).unwrap(), b"late");
        });
    }
}

/// Otherwise, a tool of the agent could print a result in the agent's place, and suspend it.
fn output_cannot_be_forged_by_other_processes() {
    Harness::run_test(async |harness: &Harness| {
        let forge = "sh -c 'echo forged > /proc/$PPID/fd/1; cat > /proc/$PPID/fd/1' </dev/null; echo own";
        harness.run(&RunPlan { args: vec!["-c".into(), forge.into()], ..RunPlan::new("/bin/sh", "/") }).await;
        assert_eq!(harness.text(), "own\n");
    });
}
