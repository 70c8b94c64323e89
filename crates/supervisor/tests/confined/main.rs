//! A run in a sandbox: everything that holds without one still holds, and what an agent tries in it comes to nothing.
//!
//! This binary is its own supervisor, its own agent and the one who tries to break out. Each test runs twice when the user is
//! root: as root, and as an ordinary user. On a machine without bubblewrap or user namespaces, what needs them is listed as
//! ignored, with the reason in its name.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

mod attack;
mod behaviour;
mod bounds;
mod configured;
mod escapes;
mod home;
mod hosts;
mod lifetime;
mod links;
mod moved;
mod odd_paths;
#[path = "../faults/ordinary_user.rs"]
mod ordinary_user;
mod overlap;
mod packages;
mod quarantine;
mod repositories;
mod scene;
mod state;
mod swaps;
mod tries;
mod unfinished;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test: its name and what it does.
pub type Test = (&'static str, fn());

/// Names the functions of a module as tests. One that is not named is dead code, which the build refuses.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[$crate::Test] = &[$((stringify!($name), $name)),*];
    };
}

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
    if let Some(code) = tries::run_if_asked().or_else(attack::run_if_asked) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let lacks = scene::lacks();
    let all = [
        behaviour::TESTS,
        lifetime::TESTS,
        escapes::TESTS,
        hosts::TESTS,
        bounds::TESTS,
        packages::TESTS,
        quarantine::TESTS,
        odd_paths::TESTS,
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
        if let Some(reason) = &lacks {
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
