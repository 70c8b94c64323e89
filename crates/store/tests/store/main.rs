//! One conformance suite for every engine, and fault tests for each.
//!
//! This binary is also the process that the crash tests kill, so that it needs no other executable but the
//! `SurrealDB` server. Without a server (`scripts/surreal-server`) its suite is skipped with a message.
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod bed;
mod calls;
mod crash;
#[cfg(feature = "surreal")]
mod doubts;
#[cfg(feature = "surreal-embedded")]
mod embedded;
mod files;
mod holding;
mod keeping;
mod lists;
mod machine;
mod races;
mod remote;
mod secrets;
mod server;
#[cfg(feature = "surreal")]
mod tls;
#[cfg_attr(
    not(feature = "surreal"),
    expect(dead_code, reason = "without the engine its faults are not asked for")
)]
mod way;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use crate::bed::{Bed, Engine};

/// A test of the conformance suite: its name and its function.
pub type Conformance = (&'static str, fn(Bed));

/// Registers functions as tests that run on every engine. The compiler rejects an unregistered one as dead code.
#[macro_export]
macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[$crate::Conformance] =
            &[$((stringify!($name), |bed| $crate::bed::block_on($name(bed)))),*];
    };
}

/// Registers functions as tests that run once.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, fn())] = &[$((stringify!($name), $name)),*];
    };
}

fn main() -> ExitCode {
    if let Some(code) = crash::write_if_asked().or_else(races::work_if_asked).or_else(files::fill_if_asked) {
        return code;
    }
    #[cfg(feature = "surreal-embedded")]
    if let Some(code) = embedded::hold_if_asked() {
        return code;
    }
    let arguments = Arguments::from_args();
    let mut trials = on_every_engine();
    trials.extend(once());
    let code = libtest_mimic::run(&arguments, trials).exit_code();
    server::end_shared();
    code
}

fn on_every_engine() -> Vec<Trial> {
    let all = [
        keeping::TESTS,
        holding::TESTS,
        lists::TESTS,
        secrets::TESTS,
        races::CONFORMANCE,
        machine::CONFORMANCE,
    ];
    let mut trials = Vec::new();
    for &engine in Engine::ALL {
        let missing = engine.missing();
        if let Some(reason) = &missing {
            eprintln!("SKIPPED the conformance suite on {}: {reason}", engine.name());
        }
        for &(name, body) in all.into_iter().flatten() {
            let trial = Trial::test(format!("{}::{name}", engine.name()), move || {
                body(Bed::new(engine));
                Ok(())
            });
            trials.push(trial.with_ignored_flag(missing.is_some()));
        }
    }
    trials
}

fn once() -> Vec<Trial> {
    let trial = |(name, body): &(&'static str, fn())| {
        let body = *body;
        Trial::test(*name, move || {
            body();
            Ok(())
        })
    };
    let always = [files::TESTS, crash::TESTS, races::TESTS];
    let mut trials: Vec<Trial> = always.into_iter().flatten().map(trial).collect();
    let missing = Engine::Surreal.missing().is_some();
    trials.extend(remote::TESTS.iter().map(|test| trial(test).with_ignored_flag(missing)));
    #[cfg(feature = "surreal")]
    for tests in [doubts::TESTS, tls::TESTS] {
        trials.extend(tests.iter().map(|test| trial(test).with_ignored_flag(missing)));
    }
    #[cfg(feature = "surreal-embedded")]
    trials.extend(embedded::TESTS.iter().map(trial));
    trials
}
