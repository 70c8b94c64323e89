//! Conversations with the scripted agent over each live protocol, with its faults.
//!
//! This binary is its own supervisor, its own agent and its own `terminal-host`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails on the spot")]

mod faults;
mod harness;
mod owners;
mod terminals;
mod turns;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::harness::LiveProtocol;

/// A test: its name, its protocols and its body.
pub type Test = (&'static str, &'static [LiveProtocol], fn(LiveProtocol));

fn main() -> ExitCode {
    if let Some(code) = supervisor::run_if_asked() {
        return code;
    }
    if rehearsal::is_cued() {
        return rehearsal::main();
    }
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == harness::TERMINAL_HOST) {
        return terminal_host::run(args);
    }
    let tests = [turns::TESTS, faults::TESTS, owners::TESTS, terminals::TESTS].into_iter().flatten();
    let trials = tests.flat_map(|&(name, protocols, body)| {
        protocols.iter().map(move |&protocol| {
            Trial::test(format!("{name}::{}", protocol.name()), move || {
                body(protocol);
                Ok(())
            })
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
