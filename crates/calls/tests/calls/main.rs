//! Tests of the job service with real processes.
//!
//! This binary is its own supervisor, its own scripted agent and, for tests that kill one, its own daemon.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

mod answering;
mod applying;
mod background_tasks;
mod cancelling;
mod harness;
mod identity;
mod janitor;
mod killing;
mod log;
mod private_checkouts;
mod racing;
mod rebuild;
mod recording_changes;
mod recovering;
mod replaced_files;
mod resuming;
mod sharing;
mod store_loss;
mod submitting;
mod verifying;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test: its name and its body.
pub type Test = (&'static str, fn());

/// The tests of faults, which run with each protocol of the scripted agent.
const OVER_ACP: [&[Test]; 9] = [
    submitting::TESTS,
    answering::TESTS,
    cancelling::TESTS,
    resuming::TESTS,
    recovering::TESTS,
    identity::TESTS,
    replaced_files::TESTS,
    store_loss::TESTS,
    killing::TESTS,
];

/// Those of them that do not apply over the Agent Client Protocol.
const ONE_SHOT_ONLY: [&str; 8] = [
    // It reports no turns and no cost, has no limit of turns, and its session ids are no UUIDs.
    "answer_contains_all_known_facts",
    "call_that_cannot_be_launched_is_not_stored",
    "turn_limit_of_the_caller_is_final",
    // Its stream is not empty before the answer.
    "failure_has_a_kind_and_a_hint",
    // The agent waits for the next service to close its input.
    "answer_before_an_unread_cancel_is_kept",
    "cancel_without_a_daemon_prevents_a_resume",
    "corrupt_record_does_not_prevent_opening",
    "run_without_a_daemon_keeps_its_end_time",
];

fn main() -> ExitCode {
    if let Some(code) = supervisor::run_if_asked() {
        return code;
    }
    // `agents::launch` starts the scripted agent with this argument.
    if rehearsal::is_cued() || std::env::args().nth(1).is_some_and(|argument| argument == "--as") {
        return rehearsal::main();
    }
    if let Some(code) = killing::serve_if_asked() {
        return code;
    }
    let arguments = Arguments::from_args();
    let all = [
        submitting::TESTS,
        answering::TESTS,
        cancelling::TESTS,
        resuming::TESTS,
        recovering::TESTS,
        rebuild::TESTS,
        recording_changes::TESTS,
        private_checkouts::TESTS,
        applying::TESTS,
        racing::TESTS,
        verifying::TESTS,
        identity::TESTS,
        replaced_files::TESTS,
        store_loss::TESTS,
        sharing::TESTS,
        janitor::TESTS,
        background_tasks::TESTS,
        killing::TESTS,
    ];
    let one_shot = all.into_iter().flatten().map(|&(name, body)| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    });
    let over_acp = OVER_ACP.into_iter().flatten().filter(|(name, _)| !ONE_SHOT_ONLY.contains(name));
    let over_acp = over_acp.map(|&(name, body)| {
        Trial::test(format!("{name}::over_acp"), move || {
            harness::speak_acp();
            body();
            Ok(())
        })
    });
    let trials = one_shot.chain(over_acp).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
