//! The agent as its callers see it: a process with streams, an exit code and descendants.
//!
//! This binary is both the tests and the agent, selected by the cue.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails on the spot")]

mod descendants;
mod faults;
mod formats;
mod given;
mod harness;
mod language;

use std::process::ExitCode;

fn main() -> ExitCode {
    if rehearsal::is_cued() {
        return rehearsal::main();
    }
    let arguments = libtest_mimic::Arguments::from_args();
    let tests = [formats::tests(), language::tests(), faults::tests(), given::tests(), descendants::tests()];
    libtest_mimic::run(&arguments, tests.into_iter().flatten().collect()).exit_code()
}
