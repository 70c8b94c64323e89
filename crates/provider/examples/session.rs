//! Holds a conversation over several runs of this program: it prints the session, and with it the next run goes on.
//!
//! ```sh
//! cargo run -p provider --example session -- claude "My name is Ana."
//! cargo run -p provider --example session -- claude "What is my name?" <session>
//! ```
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to a person")]

use std::path::Path;
use std::process::ExitCode;

use provider::{Access, AgentSpec, Provider, ProviderError};

fn main() -> ExitCode {
    if let Some(code) = provider::run_if_asked() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    let (name, text) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let Some(provider) = provider::by_name(&name) else {
        eprintln!("usage: session <claude|codex|gemini|rehearsal> <message> [session]");
        return ExitCode::from(2);
    };
    match talk(&*provider, &text, arguments.next().as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\nhint: {}", error.hint());
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn talk(provider: &dyn Provider, text: &str, id: Option<&str>) -> Result<(), ProviderError> {
    let known = match id {
        Some(id) => provider.resume_session(id).await?,
        None => None,
    };
    let session = if let Some(session) = known {
        session
    } else {
        // An agent with the rights of the user. Left out, `access` would be the file tools and nothing else.
        let agent = AgentSpec { access: Access::Full, ..AgentSpec::new("You are terse.") };
        provider.create_session(&agent, Path::new(".")).await?
    };
    let response = provider.send_message(&session, text).await?;
    println!("{}", response.text);
    if let Some(id) = session.id() {
        println!("session: {id}");
    }
    Ok(())
}
