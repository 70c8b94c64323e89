//! Shows what an agent does while it works, and its words as they are written:
//! `cargo run -p provider --example stream -- claude "Tidy up the notes."`
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to a person")]

use std::io::Write;
use std::process::ExitCode;

use futures_util::StreamExt;
use provider::{
    AgentEvent, ClaudeCodeProvider, Context, Provider, ProviderConfig, ProviderError, TextPart, Update,
};

fn main() -> ExitCode {
    if let Some(code) = provider::run_if_asked() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    let (name, prompt) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    let provider: Option<Box<dyn Provider>> = match name.as_str() {
        // Left to itself it tells each text when it is whole.
        "claude" => Some(Box::new(ClaudeCodeProvider::from_config(ProviderConfig {
            partial_messages: true,
            ..ProviderConfig::default()
        }))),
        other => provider::by_name(other),
    };
    let Some(provider) = provider else {
        eprintln!("usage: stream <claude|codex|gemini|rehearsal> <prompt>");
        return ExitCode::from(2);
    };
    match watch(&*provider, &prompt) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\nhint: {}", error.hint());
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn watch(provider: &dyn Provider, prompt: &str) -> Result<(), ProviderError> {
    // Dropping the stream would stop the agent and everything that it has started.
    let mut updates = provider.complete_stream(&Context::new(prompt));
    // Whether the text that is being written is on the screen already.
    let mut shown = false;
    while let Some(update) = updates.next().await {
        match update? {
            Update::Event(AgentEvent::Text { text, part: TextPart::Partial, .. }) => {
                print!("{text}");
                let _ = std::io::stdout().flush();
                shown = true;
            }
            Update::Event(AgentEvent::Text { .. }) if shown => {
                println!();
                shown = false;
            }
            Update::Event(AgentEvent::Text { text, .. }) => println!("{text}"),
            Update::Event(AgentEvent::ToolUse { name, input, .. }) => println!("· {name} {input}"),
            Update::Event(_) => {}
            Update::Resuming { attempt, after } => println!("· goes on in {} s ({attempt})", after.as_secs()),
            Update::Done(message) => println!("\ndone after {:?}", message.metadata.processing_time),
        }
    }
    Ok(())
}
