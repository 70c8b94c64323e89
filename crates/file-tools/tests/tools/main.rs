//! Attacks the program from outside, as its callers would.
//!
//! This binary is both the tests and the program under test, which confines itself in a process of its own. As root, each test
//! runs a second time as an ordinary user.
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod any_path;
mod faces;
mod harness;
mod held;
mod mcp;
mod ordinary_user;
mod outside;
mod protected;
mod races;
mod searching;
mod verbs;
mod writers;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// A test: its name and function.
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
    match args.next() {
        Some(cue) if cue == harness::CUE => return file_tools::run(args),
        Some(cue) if cue == held::CUE => return held::try_everything(args),
        _ => {}
    }
    let all = [
        faces::TESTS,
        verbs::TESTS,
        outside::TESTS,
        any_path::TESTS,
        protected::TESTS,
        searching::TESTS,
        writers::TESTS,
        races::TESTS,
        held::TESTS,
        mcp::TESTS,
    ];
    let trials = all.into_iter().flatten().flat_map(|&(name, body)| {
        let own = Trial::test(name, move || {
            body();
            Ok(())
        });
        [own, ordinary_user::trial(name)]
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
