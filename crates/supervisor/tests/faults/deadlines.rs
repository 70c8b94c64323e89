//! Each deadline that ends a run is reported by its own name.

use std::time::Duration;

use model::{Deadline, End, Exit, Limits, RunPlan};

use crate::harness::Harness;

testkit::tests![
    silent_agent_meets_start_deadline,
    silent_agent_without_start_limit_meets_idle_deadline,
    agent_that_falls_silent_meets_idle_deadline,
    printing_agent_meets_wall_deadline,
    flood_on_both_streams_meets_wall_deadline,
    agent_that_exits_in_time_meets_no_deadline,
];

const SHORT: Option<Duration> = Some(Duration::from_millis(400));

async fn run_end(harness: &Harness, script: &str, limits: Limits) -> End {
    let plan = harness.agent(script);
    harness.run(&RunPlan { limits: Limits { grace: plan.limits.grace, ..limits }, ..plan }).await.end
}

fn silent_agent_meets_start_deadline() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let end = run_end(harness, "hang", Limits { start: SHORT, ..Limits::default() }).await;
        assert_eq!(end, End::Deadline { which: Deadline::Start });
    });
}

fn silent_agent_without_start_limit_meets_idle_deadline() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let wall = Some(Duration::from_mins(1));
        let end = run_end(harness, "hang", Limits { idle: SHORT, wall, ..Limits::default() }).await;
        assert_eq!(end, End::Deadline { which: Deadline::Idle });
    });
}

fn agent_that_falls_silent_meets_idle_deadline() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let start = Some(Duration::from_mins(1));
        let end =
            run_end(harness, "say hello\nhang", Limits { start, idle: SHORT, ..Limits::default() }).await;
        assert_eq!(end, End::Deadline { which: Deadline::Idle });
        assert_eq!(harness.text(), "hello\n");
    });
}

fn printing_agent_meets_wall_deadline() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let idle = Some(Duration::from_mins(1));
        let limits = Limits { start: idle, idle, wall: SHORT, ..Limits::default() };
        let end = run_end(harness, "stream 100000 10 10ms", limits).await;
        assert_eq!(end, End::Deadline { which: Deadline::Wall });
        assert!(!harness.output().is_empty());
    });
}

fn flood_on_both_streams_meets_wall_deadline() {
    Harness::run_test(async |harness: &Harness| {
        let args = vec!["-c".into(), "cat /dev/zero >&2 & exec cat /dev/zero".into()];
        let limits =
            Limits { wall: Some(Duration::from_millis(100)), output_bytes: None, ..Limits::default() };
        let report = harness.run(&RunPlan { args, limits, ..RunPlan::new("/bin/sh", "/") }).await;
        assert_eq!(report.end, End::Deadline { which: Deadline::Wall });
        assert!(report.output_bytes > 0 && report.error_bytes > 0, "{report:?}");
    });
}

fn agent_that_exits_in_time_meets_no_deadline() {
    Harness::run_test_in_each_mode(async |harness: &Harness| {
        let minute = Some(Duration::from_mins(1));
        let limits = Limits { start: minute, idle: minute, wall: minute, ..Limits::default() };
        let plan = harness.agent("say hello\nanswer done");
        let report = harness.run(&RunPlan { limits, ..plan }).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
    });
}
