//! The output of the commands that the agent ran through its client. `terminal-host` runs them and reports each at its exit.

use std::collections::VecDeque;

use model::AgentText;
use serde_json::Value;

use crate::driver::json::Reader;

/// The notification of `terminal-host`.
pub(super) const OUTPUT_METHOD: &[u8] = b"_switchboard/terminal_output";

/// The limit of outputs without a tool call that refers to them.
const MAX_OUTPUTS: usize = 32;

/// The outputs that no ended tool call has used.
#[derive(Debug, Default)]
pub(super) struct TerminalOutputs(VecDeque<TerminalOutput>);

/// The output of a command that has exited.
#[derive(Debug)]
pub(super) struct TerminalOutput {
    terminal: String,
    pub(super) text: String,
    /// `None` if a signal terminated the command.
    pub(super) exit_code: Option<i32>,
}

impl TerminalOutputs {
    /// Adds the output in a notification. The oldest one is dropped at the limit.
    pub(super) fn add(&mut self, params: &[u8]) {
        let mut params: Value = serde_json::from_slice(params).unwrap_or_default();
        let exit_code = params["exitStatus"]["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok());
        let (Value::String(terminal), Value::String(text)) =
            (params["terminalId"].take(), params["output"].take())
        else {
            return;
        };
        if self.0.len() >= MAX_OUTPUTS {
            self.0.pop_front();
        }
        self.0.push_back(TerminalOutput { terminal, text, exit_code });
    }

    /// Removes the output of a terminal.
    pub(super) fn remove(&mut self, terminal: &str) -> Option<TerminalOutput> {
        let at = self.0.iter().position(|output| output.terminal == terminal)?;
        self.0.remove(at)
    }
}

/// Returns the terminal in the content of a tool call.
pub(super) fn terminal_in(content: &[u8]) -> Option<AgentText<'_>> {
    let mut found = None;
    let read = Reader::new(content).array_if(|item| {
        item.object_if(|key, value| match key {
            b"terminalId" if found.is_none() => {
                found = value.text()?;
                Ok(())
            }
            _ => value.skip(),
        })
    });
    read.ok().and(found)
}
