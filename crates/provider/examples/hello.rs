//! The first program of docs/provider.md and README.md, which a test compares with this file.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::expect_used,
    reason = "an example talks to a person"
)]

use std::process::ExitCode;

use provider::{ClaudeCodeProvider, Context, Provider};

fn main() -> ExitCode {
    // First in `main`: this program is also the supervisor of its agents.
    if let Some(code) = provider::run_if_asked() {
        return code;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    match runtime.block_on(ClaudeCodeProvider::new().complete(&Context::new("What is 2 + 2?"))) {
        Ok(message) => {
            println!("{}", message.text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}\nhint: {}", error.hint());
            ExitCode::FAILURE
        }
    }
}
