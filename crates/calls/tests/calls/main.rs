//! Calls from the desk to real processes and back, with everything that can happen in between.
//!
//! This binary is its own supervisor, its own scripted agent and, for those tests that kill one, its own daemon.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

mod answering;
mod ending;
mod identity;
mod killing;
mod losing;
mod placing;
mod rebuilding;
mod recovering;
mod replaced;
mod resuming;
mod scene;
mod sharing;
mod tidying;
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
    // `agents::launch` begins the arguments of the scripted agent like this.
    if rehearsal::is_cued() || std::env::args().nth(1).is_some_and(|argument| argument == "--as") {
        return rehearsal::main();
    }
    if let Some(code) = killing::serve_if_asked() {
        return code;
    }
    let arguments = Arguments::from_args();
    let all = [
        placing::TESTS,
        answering::TESTS,
        ending::TESTS,
        resuming::TESTS,
        recovering::TESTS,
        rebuilding::TESTS,
        identity::TESTS,
        replaced::TESTS,
        losing::TESTS,
        sharing::TESTS,
        tidying::TESTS,
        unfinished::TESTS,
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
