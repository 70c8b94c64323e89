//! The owner of one run's process tree as a program (see the crate `supervisor`).

use std::process::ExitCode;

fn main() -> ExitCode {
    supervisor::main()
}
