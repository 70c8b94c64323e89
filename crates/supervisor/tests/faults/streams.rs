//! Bytes: many, odd, and none.

use std::fs;
use std::time::Duration;

use model::{Deadline, End, Exit, Limits, RunPlan};

use crate::scene::{Scene, read_along};

crate::tests![
    a_line_of_a_hundred_megabytes_is_kept_whole,
    a_stream_of_a_gigabyte_ends_at_its_limit,
    output_of_just_the_limit_is_not_over_it,
    one_byte_over_the_limit_is,
    both_streams_count_against_the_limit,
    bytes_that_are_no_text_are_kept_as_they_are,
    a_flood_of_stderr_does_not_hold_stdout_up,
    an_agent_that_closes_stdout_and_lives_on_meets_its_deadline,
    what_is_printed_last_is_not_lost,
    output_cannot_be_forged_by_other_processes,
];

fn limited(plan: RunPlan, bytes: u64) -> RunPlan {
    let limits = Limits { output_bytes: Some(bytes), ..plan.limits };
    RunPlan { limits, ..plan }
}

fn a_line_of_a_hundred_megabytes_is_kept_whole() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&scene.agent("garbage unended 100MB\nexit 0")).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
        assert_eq!(report.output_bytes, 100_000_000);
        assert!(!scene.output().contains(&b'\n'));
    });
}

fn a_stream_of_a_gigabyte_ends_at_its_limit() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(scene.agent("flood stdout 1GB\nanswer done"), 64 << 20)).await;
        assert_eq!(report.end, End::OutputLimit);
        assert_eq!(report.output_bytes, 64 << 20);
    });
}

fn print(bytes: usize) -> RunPlan {
    RunPlan { args: vec![format!("%{bytes}s"), "x".into()], ..RunPlan::new("/usr/bin/printf", "/") }
}

fn output_of_just_the_limit_is_not_over_it() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(print(1000), 1000)).await;
        assert_eq!((report.end, report.output_bytes), (End::Exited, 1000));
    });
}

fn one_byte_over_the_limit_is() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(print(1001), 1000)).await;
        assert_eq!((report.end, report.output_bytes), (End::OutputLimit, 1000));
    });
}

fn both_streams_count_against_the_limit() {
    Scene::play(async |scene: &Scene| {
        let report = scene.run(&limited(scene.agent("flood stderr 2MB\nflood stdout 2MB"), 3_000_000)).await;
        assert_eq!(report.end, End::OutputLimit);
        assert_eq!(report.output_bytes + report.error_bytes, 3_000_000);
    });
}

fn bytes_that_are_no_text_are_kept_as_they_are() {
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

fn a_flood_of_stderr_does_not_hold_stdout_up() {
    Scene::play(async |scene: &Scene| {
        let run = scene.start(&scene.agent("flood stderr 20MB\nanswer done")).await;
        let (output, error, report) = read_along(&run).await;
        assert_eq!(report.exit, Some(Exit::Code(0)));
        assert_eq!(output, b"done\n");
        assert_eq!(error.len(), 20_000_000);
    });
}

fn an_agent_that_closes_stdout_and_lives_on_meets_its_deadline() {
    Scene::play(async |scene: &Scene| {
        let plan = scene.agent("say hello\nclose stdout\nclose stderr\nhang");
        let limits = Limits { idle: Some(Duration::from_millis(500)), ..plan.limits };
        let report = scene.run(&RunPlan { limits, ..plan }).await;
        assert_eq!(report.end, End::Deadline { which: Deadline::Idle });
        assert_eq!(scene.text(), "hello\n");
    });
}

fn what_is_printed_last_is_not_lost() {
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
