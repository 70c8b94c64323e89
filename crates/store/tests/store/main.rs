//! One conformance suite for every engine, and fault tests for each.
//!
//! This binary is also the process that the crash tests kill, so that it needs no other executable but the
//! `SurrealDB` server. Without a server (`scripts/surreal-server`) its suite is skipped with a message.
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod claims;
mod crash;
#[cfg(feature = "surreal-embedded")]
mod embedded;
mod fixtures;
mod harness;
mod histories;
mod lists;
#[cfg_attr(
    not(feature = "surreal"),
    expect(dead_code, reason = "without the engine its faults are not injected")
)]
mod proxy;
mod races;
mod records;
mod redaction;
mod server;
mod server_faults;
mod sqlite_file;
#[cfg(feature = "surreal")]
mod tls;
#[cfg(feature = "surreal")]
mod unconfirmed;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::harness::{EngineKind, Harness};

/// A test of the conformance suite: its name and its function.
pub type Conformance = (&'static str, fn(Harness));

/// A test that runs once.
pub type Test = (&'static str, fn());

/// Registers functions as tests that run on every engine. The compiler rejects an unregistered one as dead code.
#[macro_export]
macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[$crate::Conformance] =
            &[$((stringify!($name), |harness| $crate::harness::block_on($name(harness)))),*];
    };
}

fn main() -> ExitCode {
    if let Some(code) =
        crash::write_if_requested().or_else(races::work_if_requested).or_else(sqlite_file::fill_if_requested)
    {
        return code;
    }
    #[cfg(feature = "surreal-embedded")]
    if let Some(code) = embedded::hold_if_requested() {
        return code;
    }
    let arguments = Arguments::from_args();
    let mut trials = conformance_trials();
    trials.extend(single_trials());
    let code = libtest_mimic::run(&arguments, trials).exit_code();
    server::stop_shared();
    code
}

fn conformance_trials() -> Vec<Trial> {
    let all = [
        records::TESTS,
        claims::TESTS,
        lists::TESTS,
        redaction::TESTS,
        races::CONFORMANCE,
        histories::CONFORMANCE,
    ];
    let mut trials = Vec::new();
    for &engine in EngineKind::ALL {
        let missing = engine.missing();
        if let Some(reason) = &missing {
            eprintln!("SKIPPED the conformance suite on {}: {reason}", engine.name());
        }
        for &(name, body) in all.into_iter().flatten() {
            let trial = Trial::test(format!("{}::{name}", engine.name()), move || {
                body(Harness::new(engine));
                Ok(())
            });
            trials.push(trial.with_ignored_flag(missing.is_some()));
        }
    }
    trials
}

fn single_trials() -> Vec<Trial> {
    let trial = |(name, body): &Test| {
        let body = *body;
        Trial::test(*name, move || {
            body();
            Ok(())
        })
    };
    let always = [sqlite_file::TESTS, crash::TESTS, races::TESTS];
    let mut trials: Vec<Trial> = always.into_iter().flatten().map(trial).collect();
    let missing = EngineKind::Surreal.missing().is_some();
    trials.extend(server_faults::TESTS.iter().map(|test| trial(test).with_ignored_flag(missing)));
    #[cfg(feature = "surreal")]
    for tests in [unconfirmed::TESTS, tls::TESTS] {
        trials.extend(tests.iter().map(|test| trial(test).with_ignored_flag(missing)));
    }
    #[cfg(feature = "surreal-embedded")]
    trials.extend(embedded::TESTS.iter().map(trial));
    trials
}
