//! The MCP server with everything behind it: real jobs, real supervisors, the scripted agent, real clients.
//!
//! A test talks to the server as a client would, in plain JSON over a pipe, a socket or HTTP, so that what is checked is what is on
//! the wire.
//!
//! What cannot be tried here is listed as ignored with the reason in its name.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may")]

mod bad_input;
mod calling;
mod client;
mod http;
mod looking;
mod page;
mod scene;
mod tasks;
mod tools;
mod waiting;

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
    let mut arguments = Arguments::from_args();
    // Each test has a desk with processes of its own.
    arguments.test_threads.get_or_insert(2);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let plain = [
        bad_input::TESTS,
        calling::TESTS,
        http::TESTS,
        looking::TESTS,
        page::TESTS,
        tasks::TESTS,
        tools::TESTS,
        waiting::TESTS,
    ];
    let plain = plain.into_iter().flatten().map(|&(name, body)| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    });
    plain.collect()
}
