//! The program with real agents and commands, which are shell scripts.
//!
//! This binary is both the tests and the program under test, selected by the cue.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails on the spot")]

mod commands;
mod harness;
mod streams;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test: its name and its body.
pub type Test = (&'static str, fn());

/// Names the functions of a module as tests. One that is not named is dead code, which the build refuses.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[$crate::Test] = &[$((stringify!($name), $name)),*];
    };
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == harness::CUE) {
        return terminal_host::run(args);
    }
    let tests = [streams::TESTS, commands::TESTS].into_iter().flatten();
    let trials = tests.map(|&(name, body)| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
