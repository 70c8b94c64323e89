//! Calls to the real CLIs, from the call to the outcome: the request to the model, the result, and the leftovers.
//!
//! Every scenario is a trial for every pinned CLI (`scripts/agents-install`); those that speak the Agent Client Protocol have
//! scenarios of their own. The model is a scripted API on loopback, so nothing
//! leaves the machine and no account is charged; everything else is real: probe, launch, supervisor, process, stream, judgment.
//! This binary is its own supervisor, its own MCP server, and under another name its own `terminal-host`.
//!
//! A trial that cannot run is ignored, with the reason in its name: a CLI that is not installed, or a scenario that a vendor does
//! not support (then `unsupported_options_are_rejected_before_start` proves the rejection).
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod acp;
mod answers;
mod background;
mod confined;
mod endings;
mod failures;
mod harness;
mod home;
mod leaves_nothing;
mod live;
mod loading;
mod outside;
mod permissions;
mod pinned;
mod planting;
mod profiles;
mod prompts;
mod refusals;
mod server;
mod sessions;
mod story;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use model::AgentKind;

use pinned::Pinned;

/// The default number of concurrent trials: each CLI takes a core.
const AT_ONCE: usize = 2;

/// A property of every CLI.
#[derive(Clone, Copy)]
pub struct AgentScenario {
    /// The name.
    pub name: &'static str,
    /// Runs it with one CLI.
    pub play: fn(&Pinned),
    /// The agents that do not support it, and the missing feature.
    pub not_for: &'static [(AgentKind, &'static str)],
}

/// Lists the functions of a module as scenarios. The compiler reports an unlisted one as dead code.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident $(, not for $kind:ident: $lacks:literal)*;)*) => {
        pub const SCENARIOS: &[$crate::AgentScenario] = &[$($crate::AgentScenario {
            name: stringify!($name),
            play: $name,
            not_for: &[$((model::AgentKind::$kind, $lacks)),*],
        }),*];
    };
}

fn main() -> ExitCode {
    if let Some(code) = supervisor::run_if_asked() {
        return code;
    }
    if let Some(code) = server::serve_if_asked() {
        return code;
    }
    let mut words = std::env::args_os();
    if words.next().is_some_and(|program| program.to_string_lossy().ends_with(harness::TERMINAL_HOST)) {
        return terminal_host::run(words);
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
        sessions::SCENARIOS,
        prompts::SCENARIOS,
        answers::SCENARIOS,
        permissions::SCENARIOS,
        background::SCENARIOS,
        failures::SCENARIOS,
        endings::SCENARIOS,
        confined::SCENARIOS,
        leaves_nothing::SCENARIOS,
        live::SCENARIOS,
        loading::SCENARIOS,
        planting::SCENARIOS,
        profiles::SCENARIOS,
        home::SCENARIOS,
        refusals::SCENARIOS,
    ];
    let own_format: Vec<AgentScenario> = scenarios.into_iter().flatten().copied().collect();
    let scenarios_of = |cli: &Pinned| if cli.speaks_acp() { acp::SCENARIOS } else { &own_format };
    pinned.iter().flat_map(|cli| scenarios_of(cli).iter().map(|scenario| trial(scenario, cli))).collect()
}

fn trial(scenario: &AgentScenario, cli: &Pinned) -> Trial {
    let name = format!("{cli}::{}", scenario.name);
    let lacks = scenario.not_for.iter().find(|(kind, _)| *kind == cli.kind).map(|(_, lacks)| *lacks);
    let missing = cli.installed.is_none().then_some(pinned::REMEDY);
    if let Some(reason) = lacks.or(missing) {
        // Requested explicitly, it fails, because it proves nothing.
        return Trial::test(name, move || Err(reason.into())).with_kind(reason).with_ignored_flag(true);
    }
    let (play, cli) = (scenario.play, cli.clone());
    Trial::test(name, move || {
        play(&cli);
        Ok(())
    })
}
