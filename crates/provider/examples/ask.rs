//! Asks one question: `cargo run -p provider --example ask -- claude "What is 2 + 2?"`
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to a person")]

use std::process::ExitCode;

use provider::{Context, Provider, ProviderError};

fn main() -> ExitCode {
    // This program is also the supervisor of its agents: it needs no other executable beside it.
    if let Some(code) = provider::run_if_asked() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    let (name, prompt) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let Some(provider) = provider::by_name(&name) else {
        eprintln!("usage: ask <claude|codex|gemini|rehearsal> <prompt>");
        return ExitCode::from(2);
    };
    match ask(&*provider, &prompt) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\nhint: {}", error.hint());
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn ask(provider: &dyn Provider, prompt: &str) -> Result<(), ProviderError> {
    let message = provider.complete(&Context::new(prompt)).await?;
    println!("{}", message.text);
    eprintln!("{} of {}", message.metadata.model.as_deref().unwrap_or("a model"), message.metadata.provider);
    Ok(())
}
