//! A model that does what the prompt says, for trying the real CLIs by hand.
//!
//! A line of the prompt is a step, run in order, one tool call each:
//!
//! | line | step |
//! | --- | --- |
//! | `$ COMMAND` | run COMMAND with the CLI's shell tool |
//! | `& COMMAND` | start COMMAND in the background, the way the CLI itself does it |
//! | `! TOOL JSON` | call a tool by the CLI's name for it |
//!
//! All other lines are the text of the answer, which ends with the output of the last tool.

use serde_json::{Value, json};

use crate::request::{ApiVendor, ConversationRole, ModelRequest, Part};
use crate::script::{Block, Call, ModelTurn, Script};

/// The length of a tool's output in the answer.
const ECHOED_CHARS: usize = 400;

impl Script {
    /// Runs the steps of the prompt, then answers with the rest of it.
    pub fn obey() -> Self {
        Self::by(|request, _| next_turn(request))
    }
}

fn next_turn(request: &ModelRequest) -> ModelTurn {
    let prompt = request.prompt().unwrap_or_default();
    let vendor = request.vendor.unwrap_or(ApiVendor::Anthropic);
    let results = results_since_prompt(request, &prompt);
    let mut steps = prompt.lines().filter_map(|line| step(line, vendor));
    if let Some(call) = steps.nth(results.len()) {
        return ModelTurn::blocks(vec![Block::Call(call)]);
    }
    let text: Vec<&str> = prompt.lines().filter(|line| step(line, vendor).is_none()).collect();
    let mut answer = text.join("\n").trim().to_owned();
    if let Some(output) = results.last() {
        answer.push_str(if answer.is_empty() { "" } else { "\n" });
        answer.extend(output.trim().chars().take(ECHOED_CHARS));
    }
    ModelTurn::text(if answer.is_empty() { "done".to_owned() } else { answer })
}

fn step(line: &str, vendor: ApiVendor) -> Option<Call> {
    let (sign, rest) = line.trim().split_once(' ')?;
    let rest = rest.trim().to_owned();
    match sign {
        "$" => Some(Call::Shell { command: rest }),
        "&" => Some(background(&rest, vendor)),
        "!" => {
            let (name, input) = rest.split_once(' ')?;
            Some(Call::Tool { name: name.to_owned(), input: serde_json::from_str(input).ok()? })
        }
        _ => None,
    }
}

fn background(command: &str, vendor: ApiVendor) -> Call {
    let tool = |name: &str, input: Value| Call::Tool { name: name.to_owned(), input };
    match vendor {
        ApiVendor::Anthropic => {
            tool("Bash", json!({"command": command, "description": command, "run_in_background": true}))
        }
        // A command that outlasts its yield time continues as a background terminal.
        ApiVendor::OpenAi => tool("exec_command", json!({"cmd": command, "yield_time_ms": 250})),
        ApiVendor::Gemini | ApiVendor::OpenAiChat => {
            tool("run_shell_command", json!({"command": command, "is_background": true}))
        }
    }
}

/// Returns the tool results after the prompt.
fn results_since_prompt(request: &ModelRequest, prompt: &str) -> Vec<String> {
    let mut results = Vec::new();
    for part in request.conversation() {
        match part {
            Part::Text { role: ConversationRole::User, text } if text == prompt => results.clear(),
            Part::ToolResult { output } => results.push(output),
            Part::Text { .. } | Part::ToolCall { .. } => {}
        }
    }
    results
}
