//! The promises of the library, with real processes and the scripted agent.
//!
//! This binary is its own supervisor and agent (as an embedding program may be), so it needs no other executable.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

mod answers;
mod continued;
mod dropped;
mod errors;
mod examples;
mod harness;
mod many;
#[path = "../../../agents/tests/real/outside.rs"]
#[expect(dead_code, reason = "shared with the trials of `agents`, which ask for more")]
mod outside;
mod policies;
mod sessions;

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
    if let Some(code) = provider::run_if_asked() {
        return code;
    }
    if rehearsal::is_cued() {
        return rehearsal::main();
    }
    if let Some(code) = many::measure_if_asked() {
        return code;
    }
    let all = [
        answers::TESTS,
        continued::TESTS,
        dropped::TESTS,
        errors::TESTS,
        sessions::TESTS,
        policies::TESTS,
        many::TESTS,
        examples::TESTS,
    ];
    let trials = all.into_iter().flatten().map(|&(name, body)| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
