//! Runs that are stopped from outside, while a tool runs or the model is silent.

use std::time::Duration;

use model::{AgentKind, CallSpec, Deadline, End, FailureKind, Limits};
use model_api::{ModelApi, ModelTurn, Script};

use crate::harness::Harness;
use crate::outside;
use crate::pinned::Pinned;
use testkit::{eventually_some, is_running, session_of};

crate::scenarios! {
    stop_kills_tool_that_left_its_session;
    silent_model_hits_deadline;
    agent_killed_from_outside_is_reported_as_killed;
}

fn stop_kills_tool_that_left_its_session(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let marker = harness.workspace().join("followed").to_str().unwrap().to_owned();
        std::fs::write(&marker, "").unwrap();
        let api =
            ModelApi::start(Script::always(ModelTurn::shell(format!("setsid env -i tail -f {marker}"))))
                .await;
        let started = harness.place(&api, &harness.spec("Follow that file.")).await;
        api.turn(0).await;
        // Found by its arguments rather than a pid file: a sandbox may have its own pid namespace.
        let running = || outside::processes_with("tail", &marker).first().copied();
        let tool = eventually_some("the process of the tool", running).await;
        assert_eq!(session_of(tool), Some(tool), "the tool has not left its session");
        assert!(outside::environment(tool).is_empty(), "the tool has not left its environment");
        assert!(harness.processes().contains(&tool), "the look from outside is blind");
        started.run.stop().unwrap();
        let done = started.end(None).await;
        assert!(!is_running(tool), "{done}");
        assert_eq!(done.report.end, End::Stopped, "{done}");
        assert_eq!(*done.failed(), FailureKind::Stopped, "{done}");
        assert!(done.outcome.session.is_some(), "{done}");
    });
}

fn silent_model_hits_deadline(cli: &Pinned) {
    // Long enough for a request to the model on a busy machine.
    let wall = Duration::from_secs(if cli.kind == AgentKind::Gemini { 15 } else { 6 });
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::HangBeforeFirstByte)).await;
        let plain = harness.spec("Say hello.");
        let limits = Limits { wall: Some(wall), ..plain.limits.clone() };
        let done = harness.ask(&api, &CallSpec { limits, ..plain }).await;
        assert_eq!(*done.failed(), FailureKind::Deadline { which: Deadline::Wall }, "{done}");
        assert!(!api.turns().is_empty(), "the model was not asked within {wall:?}: {done}");
        assert!(done.outcome.session.is_some() && done.outcome.text.is_empty(), "{done}");
    });
}

fn agent_killed_from_outside_is_reported_as_killed(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::always(ModelTurn::HangBeforeFirstByte)).await;
        let started = harness.place(&api, &harness.spec("Say hello.")).await;
        api.turn(0).await;
        let agent = rustix::process::Pid::from_raw(started.agent()).unwrap();
        rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
        let done = started.end(None).await;
        assert_eq!(*done.failed(), FailureKind::Killed { signal: 9 }, "{done}");
        assert!(done.outcome.hint().unwrap().contains("journalctl -k"), "{done}");
        assert!(done.outcome.session.is_some(), "{done}");
    });
}
