//! The MCP server with real jobs, real supervisors, the scripted agent and real clients.
//!
//! Tests send plain JSON over a pipe, a socket or HTTP, so that they check the bytes on the wire. This binary has its own `main`: it is
//! also its supervisor, its scripted agent, and the stdio server of the foreign clients (see `stdio_server`).
//!
//! A test whose programs are missing is listed as ignored, with the reason.
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod bad_input;
mod call_tools;
mod claude_host;
mod client;
mod conformance;
mod group_apply;
mod groups;
mod harness;
mod http;
mod jobs;
mod pressure;
mod private_checkouts;
mod reference;
mod sdks;
mod stdio_server;
mod tasks;
mod tools;
mod verifying;
mod waiting;

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
    if let Some(code) = stdio_server::serve_if_requested() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // Each test starts its own processes.
    arguments.test_threads.get_or_insert(2);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    let plain = [
        bad_input::TESTS,
        call_tools::TESTS,
        group_apply::TESTS,
        groups::TESTS,
        http::TESTS,
        jobs::TESTS,
        pressure::TESTS,
        private_checkouts::TESTS,
        verifying::TESTS,
        reference::TESTS,
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
    plain.chain(sdks::trials()).chain(conformance::trials()).chain(claude_host::trials()).collect()
}

/// Lists a test as ignored because a program is missing. Run by name, it fails.
fn missing(name: &str, reason: &'static str) -> Trial {
    eprintln!("SKIPPED {name}: {reason}");
    Trial::test(name, move || Err(reason.into())).with_kind("missing").with_ignored_flag(true)
}
