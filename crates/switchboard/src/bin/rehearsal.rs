//! The scripted agent as a program (see the crate `rehearsal`).

use std::process::ExitCode;

fn main() -> ExitCode {
    rehearsal::main()
}
