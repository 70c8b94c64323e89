//! Bytes: many, odd, and none.

use std::fs;
use std::time::Duration;

use model::{Deadline, End, Exit, Limits, RunPlan};

use crate::scene::{Scene, read_along};

crate::tests![
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
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.agent("garbage unended 100MB\nexit 0")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
        assert_eq!(report.output_bytes, 100_000_000);
        assert!(!scene.output().contains(&b'\n'));
    });
}

fn gigabyte_stream_ends_at_output_limit() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(scene.agent("flood stdout 1GB\nanswer done"), 64 << 20)).await;
        assert_eq!(report.end, End::OutputLimit);
        assert_eq!(report.output_bytes, 64 << 20);
    });
}

fn print(bytes: usize) -> RunPlan {
    RunPlan { args: vec![format!("%{bytes}s"), "x".into()], ..RunPlan::new("/usr/bin/printf", "/") }
}

fn output_of_exactly_the_limit_is_allowed() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(print(1000), 1000)).await;
        assert_eq!((report.end, report.output_bytes), (End::Exited, 1000));
    });
}

fn one_byte_over_output_limit_ends_run() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(print(1001), 1000)).await;
        assert_eq!((report.end, report.output_bytes), (End::OutputLimit, 1000));
    });
}

fn both_streams_count_against_output_limit() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(scene.agent("flood stderr 2MB\nflood stdout 2MB"), 3_000_000)).await;
        assert_eq!(report.end, End::OutputLimit);
        assert_eq!(report.output_bytes + report.error_bytes, 3_000_000);
    });
}

fn binary_output_is_stored_unchanged() {
    Scene::play(async |scene: &Scene| {
        let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let report = scene.run(&RunPlan { stdin: bytes.clone(), ..RunPlan::new("/bin/cat", "/") }).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert!(scene.output() == bytes);
    });
    Scene::play(async |scene: &Scene| {
        scene.run(&scene.agent("garbage utf8\ngarbage nul\nexit 0")).await;
        let output = scene.output();
        assert!(str::from_utf8(&output).is_err() && output.contains(&0));
    });
}

fn stderr_flood_does_not_block_stdout() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.agent("flood stderr 20MB\nanswer done")).await;
        let (output, error, report) = read_along(&run).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert_eq!(output, b"done\n");
        assert_eq!(error.len(), 20_000_000);
    });
}

fn agent_that_closes_stdout_meets_deadline() {
    Scene::play(async |scene: &Scene| {
        let plan = scene.agent("say hello\nclose stdout\nclose stderr\nhang");
        let limits = Limits { idle: Some(Duration::from_millis(500)), ..plan.limits };
        let report = scene.run(&RunPlan { limits, ..plan }).await;
        assert_eq!(report.end, End::Deadline { which: Deadline::Idle });
        assert_eq!(scene.text(), "hello\n");
    });
}

fn last_output_before_exit_is_not_lost() {
    for _ in 0..20 {
        Scene::play(async |scene: &Scene| {
            let args = vec!["-c".into(), "printf early; head -c 60000 /dev/zero; printf late >&2".into()];
            scene.run(&RunPlan { args, ..RunPlan::new("/bin/sh", "/") }).await;
            assert_eq!(scene.output().len(), 60_005);
            assert_eq!(fs::read(scene.spool().join("error")).unwrap(), b"late");
        });
    }
}

/// A tool of an agent could otherwise print a result in the agent's place, and suspend it.
fn output_cannot_be_forged_by_other_processes() {
    Scene::play(async |scene: &Scene| {
        let forge = "sh -c 'echo forged > /proc/$PPID/fd/1; cat > /proc/$PPID/fd/1' </dev/null; echo own";
        scene.run(&RunPlan { args: vec!["-c".into(), forge.into()], ..RunPlan::new("/bin/sh", "/") }).await;
        assert_eq!(scene.text(), "own\n");
    });
}
