//! Every wait that ends a run has its own name.

use std::time::Duration;

use model::{Deadline, End, Exit, Limits, RunPlan};

use crate::scene::Scene;

crate::tests![
    silent_agent_meets_start_deadline,
    silent_agent_without_start_limit_meets_idle_deadline,
    agent_that_falls_silent_meets_idle_deadline,
    printing_agent_meets_wall_deadline,
    flood_on_both_streams_meets_wall_deadline,
    agent_that_exits_in_time_meets_no_deadline,
];

const SHORT: Option<Duration> = Some(Duration::from_millis(400));

async fn end(scene: &Scene, script: &str, limits: Limits) -> End {
    let plan = scene.agent(script);
    scene.run(&RunPlan { limits: Limits { grace: plan.limits.grace, ..limits }, ..plan }).await.end
}

fn silent_agent_meets_start_deadline() {
    Scene::play(async |scene: &Scene| {
        let end = end(scene, "hang", Limits { start: SHORT, ..Limits::default() }).await;
        assert_eq!(end, End::Deadline { which: Deadline::Start });
    });
}

fn silent_agent_without_start_limit_meets_idle_deadline() {
    Scene::play(async |scene: &Scene| {
        let wall = Some(Duration::from_mins(1));
        let end = end(scene, "hang", Limits { idle: SHORT, wall, ..Limits::default() }).await;
        assert_eq!(end, End::Deadline { which: Deadline::Idle });
    });
}

fn agent_that_falls_silent_meets_idle_deadline() {
    Scene::play(async |scene: &Scene| {
        let start = Some(Duration::from_mins(1));
        let end = end(scene, "say hello\nhang", Limits { start, idle: SHORT, ..Limits::default() }).await;
        assert_eq!(end, End::Deadline { which: Deadline::Idle });
        assert_eq!(scene.text(), "hello\n");
    });
}

fn printing_agent_meets_wall_deadline() {
    Scene::play(async |scene: &Scene| {
        let idle = Some(Duration::from_mins(1));
        let limits = Limits { start: idle, idle, wall: SHORT, ..Limits::default() };
        let end = end(scene, "stream 100000 10 10ms", limits).await;
        assert_eq!(end, End::Deadline { which: Deadline::Wall });
        assert!(!scene.output().is_empty());
    });
}

fn flood_on_both_streams_meets_wall_deadline() {
    Scene::play(async |scene: &Scene| {
        let args = vec!["-c".into(), "cat /dev/zero >&2 & exec cat /dev/zero".into()];
        let limits =
            Limits { wall: Some(Duration::from_millis(100)), output_bytes: None, ..Limits::default() };
        let report = scene.run(&RunPlan { args, limits, ..RunPlan::new("/bin/sh", "/") }).await;
        assert_eq!(report.end, End::Deadline { which: Deadline::Wall });
        assert!(report.output_bytes > 0 && report.error_bytes > 0, "{report:?}");
    });
}

fn agent_that_exits_in_time_meets_no_deadline() {
    Scene::play(async |scene: &Scene| {
        let minute = Some(Duration::from_mins(1));
        let limits = Limits { start: minute, idle: minute, wall: minute, ..Limits::default() };
        let plan = scene.agent("say hello\nanswer done");
        let report = scene.run(&RunPlan { limits, ..plan }).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
    });
}
