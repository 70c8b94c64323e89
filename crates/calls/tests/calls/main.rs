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
    let trial = |&(name, body): &Test| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    };
    let trials = all.into_iter().flatten().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
