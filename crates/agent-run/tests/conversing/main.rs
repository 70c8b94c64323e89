//! Conversations with the scripted agent over each live protocol, with its faults.
//!
//! This binary is its own supervisor and its own agent.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails on the spot")]

mod faults;
mod harness;
mod owners;
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
    let tests = [turns::TESTS, faults::TESTS, owners::TESTS].into_iter().flatten();
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
