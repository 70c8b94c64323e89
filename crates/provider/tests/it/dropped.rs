//! Dropped requests.

use std::time::Duration;

use futures_util::StreamExt;
use provider::{AgentEvent, Context, Provider, Update};

use crate::harness::Harness;
use crate::outside;
use testkit::{eventually_async, is_running};

crate::tests! {
    dropped_request_leaves_no_process_or_file,
    dropped_stream_kills_the_process_tree,
    request_can_be_dropped_during_backoff,
    killed_program_leaves_no_process,
}

/// An agent with descendants that ignore SIGTERM.
const STUBBORN: &str = "@rehearse spawn setsid ignore-term\n@rehearse spawn daemon ignore-term\n@rehearse say Up.\n@rehearse hang";

fn dropped_request_leaves_no_process_or_file() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        // From before the supervisor exists until well after the agent's first output.
        for delay in (0..40).map(|step| Duration::from_millis(step * 3)) {
            let context = Context::new(STUBBORN);
            let request = provider.complete(&context);
            assert!(tokio::time::timeout(delay, request).await.is_err(), "it cannot be over");
            assert!(harness.spooled().is_empty(), "files are left after {delay:?}");
        }
        harness.nothing_is_left().await;
    });
}

fn dropped_stream_kills_the_process_tree() {
    Harness::run(async |harness| {
        let mut updates = harness.provider().complete_stream(&Context::new(STUBBORN));
        loop {
            if let Update::Event(AgentEvent::Text { .. }) = updates.next().await.unwrap().unwrap() {
                break;
            }
        }
        assert!(!outside::processes_of(&harness.path("")).is_empty());
        drop(updates);
        harness.nothing_is_left().await;
    });
}

fn request_can_be_dropped_during_backoff() {
    Harness::run(async |harness| {
        let mut updates = harness.provider().complete_stream(&Context::new("@rehearse max-turns"));
        loop {
            if let Update::Resuming { .. } = updates.next().await.unwrap().unwrap() {
                break;
            }
        }
        drop(updates);
        assert!(harness.spooled().is_empty());
    });
}

fn killed_program_leaves_no_process() {
    Harness::run(async |harness| {
        // Writable for a confined agent. Its pids are those of its own namespace.
        let pids = harness.path("work/pids");
        let prompt = format!("@rehearse pidfile {}\n{STUBBORN}", pids.display());
        let mut program = crate::examples::command(harness, "ask", &["rehearsal", &prompt]).spawn().unwrap();
        let both = async || std::fs::read_to_string(&pids).is_ok_and(|pids| pids.lines().count() == 2);
        eventually_async("the agent is up", both).await;
        // The program, its supervisor, the agent and its descendants.
        let all = outside::processes_of(&harness.path(""));
        assert!(all.len() >= 5, "{all:?}");

        program.kill().unwrap();
        program.wait().unwrap();
        let gone = async || !all.iter().any(|pid| is_running(*pid));
        eventually_async("no process outlives the program", gone).await;
        // The files remain, because a call is never lost; its secrets do not.
        assert!(!harness.spooled().is_empty() && harness.private_files().is_empty());
        std::fs::remove_dir_all(harness.path("spools")).unwrap();
        std::fs::create_dir(harness.path("spools")).unwrap();
    });
}
