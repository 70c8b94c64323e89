//! The confined file verbs as a program (see the crate `file-tools`).

use std::process::ExitCode;

fn main() -> ExitCode {
    file_tools::main()
}
