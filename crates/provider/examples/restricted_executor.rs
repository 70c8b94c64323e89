//! Lets an agent work on a directory with the file tools and nothing else: no shell, no web, no other directory.
//!
//! ```sh
//! cargo run -p provider --example restricted_executor -- claude ~/notes "Make a table of contents in index.md."
//! ```
//!
//! With `by-shell` as a fourth argument it gets a shell that may run `file-tools` alone, in the sandbox of the operating system.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to a person")]

use std::path::Path;
use std::process::ExitCode;

use provider::{Access, AgentSpec, FileVerb, Provider, ProviderError};

fn main() -> ExitCode {
    if let Some(code) = provider::run_if_asked() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    let (name, workspace) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let task = arguments.next().unwrap_or_default();
    let by_shell = arguments.next().as_deref() == Some("by-shell");
    let Some(provider) = provider::by_name(&name) else {
        eprintln!("usage: restricted_executor <claude|rehearsal> <workspace> <task> [by-shell]");
        return ExitCode::from(2);
    };
    match execute(&*provider, Path::new(&workspace), &task, by_shell) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\nhint: {}", error.hint());
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn execute(
    provider: &dyn Provider,
    workspace: &Path,
    task: &str,
    by_shell: bool,
) -> Result<(), ProviderError> {
    let verbs = vec![FileVerb::Read, FileVerb::List, FileVerb::Search, FileVerb::Write];
    let agent = AgentSpec {
        access: if by_shell { Access::FilesByShell(verbs) } else { Access::Files(verbs) },
        ..AgentSpec::new(
            "You keep the notes of your workspace in order. You have file tools and nothing else.",
        )
    };
    // Validates the environment: the agent's program, its login, that `file-tools` is there, and the sandbox where one is needed.
    let session = provider.create_session(&agent, workspace).await?;
    let response = provider.send_message(&session, task).await?;
    for used in &response.tool_uses {
        println!("· {} {}", used.name, used.input);
    }
    println!("{}", response.text);
    Ok(())
}
