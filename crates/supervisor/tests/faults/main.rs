//! Faults that a run must survive, with real processes.
//!
//! This binary is its own supervisor and its own agent (as an embedding program may be), so it needs no other
//! executable. If the user is root, each test runs twice: as root, and as an ordinary user from a copy of this binary
//! that the other user can read.
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod deadlines;
mod fork_server;
mod harness;
mod input_writers;
mod lost;
mod many;
mod open_input;
mod ordinary_user;
mod spawning;
mod spooling;
mod stopping;
mod streams;
mod suspended;
mod trees;
mod unread_input;

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
    trees::run_without_main_thread_if_asked();
    if let Some(code) = lost::start_and_wait_if_asked().or_else(input_writers::hold_if_asked) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Each test counts the files and children of the whole process.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let all = [
        spawning::TESTS,
        trees::TESTS,
        streams::TESTS,
        deadlines::TESTS,
        suspended::TESTS,
        spooling::TESTS,
        stopping::TESTS,
        lost::TESTS,
        many::TESTS,
        open_input::TESTS,
        unread_input::TESTS,
        input_writers::TESTS,
        fork_server::TESTS,
    ];
    let mut trials = Vec::new();
    for &(name, body) in all.into_iter().flatten() {
        trials.push(Trial::test(name, move || {
            body();
            Ok(())
        }));
        trials.push(ordinary_user::trial(name));
    }
    trials
}
