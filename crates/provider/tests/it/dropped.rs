//! Dropped requests.

use std::time::Duration;

use futures_util::StreamExt;
use provider::{AgentEvent, Context, Provider, Update};

use crate::outside;
use crate::scene::Scene;

crate::tests! {
    a_request_that_is_dropped_at_any_moment_leaves_nothing,
    a_stream_that_is_dropped_ends_all_that_the_agent_has_started,
    a_request_that_waits_to_go_on_can_be_dropped,
    a_program_that_is_killed_leaves_nothing_running,
}

/// An agent with descendants that ignore SIGTERM.
const STUBBORN: &str = "@rehearse spawn setsid ignore-term\n@rehearse spawn daemon ignore-term\n@rehearse say Up.\n@rehearse hang";

fn a_request_that_is_dropped_at_any_moment_leaves_nothing() {
    Scene::play(async |scene| {
        let provider = scene.provider();
        // From before the supervisor exists until well after the agent's first output.
        for delay in (0..40).map(|step| Duration::from_millis(step * 3)) {
            let context = Context::new(STUBBORN);
            let request = provider.complete(&context);
            assert!(tokio::time::timeout(delay, request).await.is_err(), "it cannot be over");
            assert!(scene.spooled().is_empty(), "files are left after {delay:?}");
        }
        scene.nothing_is_left().await;
    });
}

fn a_stream_that_is_dropped_ends_all_that_the_agent_has_started() {
    Scene::play(async |scene| {
        let mut updates = scene.provider().complete_stream(&Context::new(STUBBORN));
        loop {
            if let Update::Event(AgentEvent::Text { .. }) = updates.next().await.unwrap().unwrap() {
                break;
            }
        }
        assert!(!outside::processes_of(&scene.path("")).is_empty());
        drop(updates);
        scene.nothing_is_left().await;
    });
}

fn a_request_that_waits_to_go_on_can_be_dropped() {
    Scene::play(async |scene| {
        let mut updates = scene.provider().complete_stream(&Context::new("@rehearse max-turns"));
        loop {
            if let Update::Resuming { .. } = updates.next().await.unwrap().unwrap() {
                break;
            }
        }
        drop(updates);
        assert!(scene.spooled().is_empty());
    });
}

fn a_program_that_is_killed_leaves_nothing_running() {
    Scene::play(async |scene| {
        // Writable for a confined agent. Its pids are those of its own namespace.
        let pids = scene.path("work/pids");
        let prompt = format!("@rehearse pidfile {}\n{STUBBORN}", pids.display());
        let mut program = crate::examples::command(scene, "ask", &["rehearsal", &prompt]).spawn().unwrap();
        let both =
            || std::fs::read_to_string(&pids).is_ok_and(|pids| pids.lines().count() == 2).then_some(());
        outside::eventually("the agent is not up", both).await;
        // The program, its supervisor, the agent and its descendants.
        let all = outside::processes_of(&scene.path(""));
        assert!(all.len() >= 5, "{all:?}");

        program.kill().unwrap();
        program.wait().unwrap();
        let gone = || (!all.iter().any(|pid| outside::is_running(*pid))).then_some(());
        outside::eventually("something outlives the program", gone).await;
        // The files remain, because a call is never lost; its secrets do not.
        assert!(!scene.spooled().is_empty() && scene.private_files().is_empty());
        std::fs::remove_dir_all(scene.path("spools")).unwrap();
        std::fs::create_dir(scene.path("spools")).unwrap();
    });
}
