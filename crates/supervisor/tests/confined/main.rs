//! Runs in a sandbox: they behave like runs without one, and no escape attempt succeeds.
//!
//! This binary is its own supervisor, agent and attacker. If the user is root, each test runs twice: as root, and as an
//! ordinary user. On a machine without bubblewrap or user namespaces, tests that need them are listed as ignored, with
//! the reason in their names.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

mod attack;
mod attempts;
mod behavior;
mod configured;
mod escapes;
mod harness;
mod home;
mod hosts;
mod lifetime;
mod limits;
mod links;
mod moved;
mod odd_paths;
mod open_input;
#[path = "../faults/ordinary_user.rs"]
mod ordinary_user;
mod overlap;
mod packages;
mod quarantine;
mod repositories;
mod state;
mod swaps;
mod unfinished;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test: its name and its body.
pub type Test = (&'static str, fn());

fn main() -> ExitCode {
    if let Some(code) = supervisor::run_if_asked() {
        return code;
    }
    if rehearsal::is_cued() {
        return rehearsal::main();
    }
    if let Some(code) = hosts::run_if_asked() {
        return code;
    }
    if let Some(code) = attempts::run_if_asked().or_else(attack::run_if_asked) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let missing = harness::missing_requirement();
    let all = [
        behavior::TESTS,
        lifetime::TESTS,
        escapes::TESTS,
        hosts::TESTS,
        limits::TESTS,
        packages::TESTS,
        quarantine::TESTS,
        odd_paths::TESTS,
        open_input::TESTS,
        overlap::TESTS,
        moved::TESTS,
        repositories::TESTS,
        configured::TESTS,
        links::TESTS,
        unfinished::TESTS,
        state::TESTS,
        swaps::TESTS,
        attack::TESTS,
        home::TESTS,
    ];
    let mut trials = Vec::new();
    for &(name, body) in all.into_iter().flatten() {
        if let Some(reason) = &missing {
            let name = format!("{name} (skipped: {reason})");
            trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
            continue;
        }
        trials.push(Trial::test(name, move || {
            body();
            Ok(())
        }));
        trials.push(ordinary_user::trial(name));
    }
    trials
}
