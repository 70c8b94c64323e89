//! The whole library with the real CLIs: requests, sessions, continuations, servers and the restricted executor.
//!
//! Every scenario is a trial for every pinned CLI (`scripts/agents-install`). The model is a scripted API on loopback, so
//! nothing leaves the machine and no account is spent; all else is real. This binary is its own supervisor, the program
//! that is restarted, and the MCP servers that are passed in.
//!
//! What cannot be tried is listed as ignored with the reason in its name.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test may"
)]

mod any_agent;
mod bounds;
mod by_shell;
mod continued;
mod harness;
#[path = "../../../agents/tests/real/outside.rs"]
#[expect(dead_code, reason = "shared with the trials of `agents`, which ask for more")]
mod outside;
#[path = "../../../agents/tests/real/pinned.rs"]
mod pinned;
mod program;
mod requests;
mod servers;
mod sessions;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use provider::AgentKind;

use pinned::Pinned;

/// The default number of concurrent trials: each CLI takes a core.
const AT_ONCE: usize = 2;

/// A scenario that must hold for every CLI.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name.
    pub name: &'static str,
    /// Runs it with one CLI.
    pub play: fn(&Pinned),
    /// The agents that do not support it, with the reason.
    pub not_for: &'static [(AgentKind, &'static str)],
    /// Returns another missing requirement.
    pub lacks: fn() -> Option<&'static str>,
}

/// Names the functions of a module as scenarios. One that is not named is dead code, which the build refuses.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident $(, needs $lacks:path)? $(, not for $kind:ident: $what:literal)*;)*) => {
        pub const SCENARIOS: &[$crate::Scenario] = &[$($crate::Scenario {
            name: stringify!($name),
            play: $name,
            not_for: &[$((provider::AgentKind::$kind, $what)),*],
            lacks: $crate::first_of!($($lacks,)? $crate::nothing),
        }),*];
    };
}

/// Returns the first argument.
#[macro_export]
macro_rules! first_of {
    ($first:path $(, $rest:path)*) => {
        $first
    };
}

/// Returns no missing requirement.
pub fn nothing() -> Option<&'static str> {
    None
}

fn main() -> ExitCode {
    if let Some(code) = provider::run_if_asked() {
        return code;
    }
    if let Some(code) = servers::serve_if_asked() {
        return code;
    }
    if let Some(code) = program::talk_if_asked() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let pinned = pinned::all();
    if pinned.iter().any(|cli| cli.installed.is_none()) {
        eprintln!("some agent CLIs are not installed, and their trials are ignored: {}", pinned::REMEDY);
    }
    libtest_mimic::run(&arguments, trials(&pinned)).exit_code()
}

fn trials(pinned: &[Pinned]) -> Vec<Trial> {
    let scenarios = [
        requests::SCENARIOS,
        sessions::SCENARIOS,
        continued::SCENARIOS,
        bounds::SCENARIOS,
        by_shell::SCENARIOS,
    ];
    let own_format: Vec<Scenario> = scenarios.into_iter().flatten().copied().collect();
    let scenarios_of = |cli: &Pinned| match (cli.speaks_acp(), cli.needs_terminals()) {
        (false, _) => own_format.as_slice(),
        (true, false) => any_agent::SCENARIOS,
        // This package builds no `terminal-host`.
        (true, true) => &[],
    };
    pinned.iter().flat_map(|cli| scenarios_of(cli).iter().map(|scenario| trial(scenario, cli))).collect()
}

fn trial(scenario: &Scenario, cli: &Pinned) -> Trial {
    let name = format!("{cli}::{}", scenario.name);
    let unable = scenario.not_for.iter().find(|(kind, _)| *kind == cli.kind).map(|(_, lacks)| *lacks);
    let missing = cli.installed.is_none().then_some(pinned::REMEDY);
    if let Some(reason) = unable.or(missing).or_else(scenario.lacks) {
        // Fails when it is requested by name: it has proven nothing.
        return Trial::test(name, move || Err(reason.into())).with_kind(reason).with_ignored_flag(true);
    }
    let (play, cli) = (scenario.play, cli.clone());
    Trial::test(name, move || {
        play(&cli);
        Ok(())
    })
}
