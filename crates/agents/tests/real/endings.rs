//! Runs that are ended from outside, while a tool runs or the model is silent.

use std::time::Duration;

use model::{AgentKind, CallSpec, Deadline, End, FailureKind, Limits};
use model_api::{ModelApi, Script, Turn};

use crate::desk::Desk;
use crate::outside;
use crate::pinned::Pinned;

crate::scenarios! {
    a_stop_ends_a_tool_that_left_its_session_and_its_environment;
    a_silent_model_is_ended_by_the_clock;
    agent_killed_from_outside_is_told_as_killed;
}

fn a_stop_ends_a_tool_that_left_its_session_and_its_environment(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let marker = desk.workspace().join("followed").to_str().unwrap().to_owned();
        std::fs::write(&marker, "").unwrap();
        let api =
            ModelApi::start(Script::always(Turn::shell(format!("setsid env -i tail -f {marker}")))).await;
        let placed = desk.place(&api, &desk.spec("Follow that file.")).await;
        api.turn(0).await;
        // Found by its arguments and not by a pid file: a sandbox may count pids of its own.
        let running = || outside::processes_with("tail", &marker).first().copied();
        let tool = outside::eventually("the tool does not run", running).await;
        assert_eq!(outside::session_of(tool), Some(tool), "the tool has not left its session");
        assert!(outside::environment(tool).is_empty(), "the tool has not left its environment");
        assert!(desk.processes().contains(&tool), "the look from outside is blind");
        placed.run.stop().unwrap();
        let done = placed.end(None).await;
        assert!(!outside::is_running(tool), "{done}");
        assert_eq!(done.report.end, End::Stopped, "{done}");
        assert_eq!(*done.failed(), FailureKind::Stopped, "{done}");
        assert!(done.outcome.session.is_some(), "{done}");
    });
}

fn a_silent_model_is_ended_by_the_clock(cli: &Pinned) {
    // Long enough to have asked the model, on a machine with other things to do.
    let wall = Duration::from_secs(if cli.kind == AgentKind::Gemini { 15 } else { 6 });
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::always(Turn::HangBeforeFirstByte)).await;
        let plain = desk.spec("Say hello.");
        let limits = Limits { wall: Some(wall), ..plain.limits.clone() };
        let done = desk.ask(&api, &CallSpec { limits, ..plain }).await;
        assert_eq!(*done.failed(), FailureKind::Deadline { which: Deadline::Wall }, "{done}");
        assert!(!api.turns().is_empty(), "the model was not asked within {wall:?}: {done}");
        assert!(done.outcome.session.is_some() && done.outcome.text.is_empty(), "{done}");
    });
}

fn agent_killed_from_outside_is_told_as_killed(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::always(Turn::HangBeforeFirstByte)).await;
        let placed = desk.place(&api, &desk.spec("Say hello.")).await;
        api.turn(0).await;
        let agent = rustix::process::Pid::from_raw(placed.agent()).unwrap();
        rustix::process::kill_process(agent, rustix::process::Signal::KILL).unwrap();
        let done = placed.end(None).await;
        assert_eq!(*done.failed(), FailureKind::Killed { signal: 9 }, "{done}");
        assert!(done.outcome.hint().unwrap().contains("journalctl -k"), "{done}");
        assert!(done.outcome.session.is_some(), "{done}");
    });
}
