//! The MCP server with everything behind it: real jobs, real supervisors, the scripted agent, real clients.
//!
//! A test talks to the server as a client would, in plain JSON over a pipe, a socket or HTTP, so that what is checked is what is on
//! the wire. This binary is also the stdio front for the foreign clients (see `front`), so it has a `main` of its own.
//!
//! What cannot be tried here is listed as ignored with the reason in its name.
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod bad_input;
mod calling;
mod client;
mod conformance;
mod front;
mod host;
mod http;
mod looking;
mod page;
mod pressure;
mod scene;
mod sdks;
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
    if let Some(code) = front::serve_if_asked() {
        return code;
    }
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
        pressure::TESTS,
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
    plain.chain(sdks::trials()).chain(conformance::trials()).chain(host::trials()).collect()
}

/// A test that needs something that is not here: it is listed, and says what.
fn missing(name: &str, reason: &'static str) -> Trial {
    eprintln!("SKIPPED {name}: {reason}");
    // Asked for by name all the same, it fails: it has proven nothing.
    Trial::test(name, move || Err(reason.into())).with_kind("missing").with_ignored_flag(true)
}
