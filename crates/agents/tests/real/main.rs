//! Calls to the real CLIs, from the call to the outcome: what reached the model, what came back, what is left behind.
//!
//! Every scenario is a trial for every pinned CLI (`scripts/agents-install`). The model is a scripted API on loopback, so
//! nothing leaves the machine and no account is spent; all else is real: the look at the installed program, the launch,
//! the supervisor, the process, its stream, the judgement. This binary is its own supervisor and its own MCP server.
//!
//! What cannot be tried is listed as ignored with the reason in its name: a CLI that is not installed, and a scenario that
//! a vendor has no means for (then `what_it_cannot_do_is_refused_before_it_starts` proves the refusal).
#![expect(clippy::disallowed_methods, clippy::print_stderr, clippy::unwrap_used, reason = "a test may")]

mod answers;
mod background;
mod confined;
mod desk;
mod endings;
mod failures;
mod home;
mod leaves_nothing;
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

/// How many trials run at once, where nobody says otherwise: each is a CLI that takes a core to itself.
const AT_ONCE: usize = 2;

/// Something that must hold for every CLI.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// What must hold, as a sentence.
    pub name: &'static str,
    /// Plays it with one CLI.
    pub play: fn(&Pinned),
    /// The agents that have no means for it, and what they lack.
    pub not_for: &'static [(AgentKind, &'static str)],
}

/// Names the functions of a module as scenarios. One that is not named is dead code, which the build refuses.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident $(, not for $kind:ident: $lacks:literal)*;)*) => {
        pub const SCENARIOS: &[$crate::Scenario] = &[$($crate::Scenario {
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
        loading::SCENARIOS,
        planting::SCENARIOS,
        profiles::SCENARIOS,
        home::SCENARIOS,
        refusals::SCENARIOS,
    ];
    let scenarios: Vec<Scenario> = scenarios.into_iter().flatten().copied().collect();
    pinned.iter().flat_map(|cli| scenarios.iter().map(|scenario| trial(scenario, cli))).collect()
}

fn trial(scenario: &Scenario, cli: &Pinned) -> Trial {
    let name = format!("{cli}::{}", scenario.name);
    let lacks = scenario.not_for.iter().find(|(kind, _)| *kind == cli.kind).map(|(_, lacks)| *lacks);
    let missing = cli.installed.is_none().then_some(pinned::REMEDY);
    if let Some(reason) = lacks.or(missing) {
        // Asked for by name all the same, it fails: it has proven nothing.
        return Trial::test(name, move || Err(reason.into())).with_kind(reason).with_ignored_flag(true);
    }
    let (play, cli) = (scenario.play, cli.clone());
    Trial::test(name, move || {
        play(&cli);
        Ok(())
    })
}
