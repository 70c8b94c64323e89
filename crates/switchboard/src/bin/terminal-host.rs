//! Runs an agent and the commands that it requests from its client (see the crate `terminal-host`).

use std::process::ExitCode;

fn main() -> ExitCode {
    terminal_host::main()
}
