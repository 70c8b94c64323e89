//! `codex exec --json`.

use super::{
    ScriptedFailure, ScriptedFailureKind, ToolCall, ToolInput, VendorExit, Voice, VoiceSession, line,
};
use crate::json::Object;

pub(super) struct CodexVoice {
    session: VoiceSession,
    items: u32,
}

impl CodexVoice {
    pub(super) fn new(session: VoiceSession) -> Self {
        Self { session, items: 0 }
    }

    fn item(&mut self) -> Object {
        let item = Object::new().string("id", &format!("item_{}", self.items));
        self.items += 1;
        item
    }

    fn text_item(&mut self, kind: &str, text: &str, out: &mut String) {
        self.session.count_words(text);
        let item = self.item().string("type", kind).string("text", text).done();
        event("item.completed", &item, out);
    }

    fn command(&mut self, command: &str, end: &CommandEnd, out: &mut String) {
        let id = format!("item_{}", self.items);
        self.items += 1;
        let item = |output: &str, code: &str, status: &str| {
            Object::new()
                .string("id", &id)
                .string("type", "command_execution")
                .string("command", command)
                .string("aggregated_output", output)
                .json("exit_code", code)
                .string("status", status)
                .done()
        };
        event("item.started", &item("", "null", "in_progress"), out);
        event("item.completed", &item(end.output, end.code, end.status), out);
        self.session.count_tool();
    }

    fn mcp_call(&mut self, call: &ToolCall, arguments: &str, out: &mut String) {
        let id = format!("item_{}", self.items);
        self.items += 1;
        let item = |result: &str, error: &str, status: &str| {
            Object::new()
                .string("id", &id)
                .string("type", "mcp_tool_call")
                .string("server", "rehearsal")
                .string("tool", &call.name)
                .json("arguments", arguments)
                .json("result", result)
                .json("error", error)
                .string("status", status)
                .done()
        };
        event("item.started", &item("null", "null", "in_progress"), out);
        let done = if call.failed {
            item("null", &Object::new().string("message", &call.result).done(), "failed")
        } else {
            let content = Object::new().string("type", "text").string("text", &call.result).done();
            let result =
                Object::new().json("content", format!("[{content}]")).json("structured_content", "null");
            item(&result.done(), "null", "completed")
        };
        event("item.completed", &done, out);
        self.session.count_tool();
    }
}

/// The result of a command.
struct CommandEnd<'a> {
    output: &'a str,
    code: &'a str,
    status: &'a str,
}

impl Voice for CodexVoice {
    fn open(&mut self, out: &mut String) {
        line(
            out,
            &Object::new().string("type", "thread.started").string("thread_id", &self.session.id).done(),
        );
        line(out, r#"{"type":"turn.started"}"#);
    }

    fn say(&mut self, text: &str, out: &mut String) {
        self.text_item("agent_message", text, out);
    }

    fn think(&mut self, text: &str, out: &mut String) {
        self.text_item("reasoning", text, out);
    }

    /// Prints a tool call. A command is codex's own shell tool; JSON arguments mean an MCP tool.
    fn tool(&mut self, call: &ToolCall, out: &mut String) {
        match &call.input {
            ToolInput::Command(command) => {
                let (code, status) = if call.failed { ("1", "failed") } else { ("0", "completed") };
                self.command(command, &CommandEnd { output: &call.result, code, status }, out);
            }
            ToolInput::Json(arguments) => self.mcp_call(call, arguments, out),
        }
    }

    /// Prints a denial. Codex keeps no list of denials: there is only a declined item.
    fn deny(&mut self, tool: &str, out: &mut String) {
        let end = CommandEnd { output: "rejected by user approval settings", code: "-1", status: "declined" };
        self.command(tool, &end, out);
    }

    /// Prints a delta. `exec --json` has none; each is a separate message.
    fn piece(&mut self, text: &str, out: &mut String) {
        self.text_item("agent_message", text, out);
    }

    fn end_pieces(&mut self, _whole: &str, _out: &mut String) {}

    fn retry_notice(&mut self, _status: Option<u16>, out: &mut String) -> Option<String> {
        top_level_error("Reconnecting... 1/5 (stream disconnected before completion)", out);
        None
    }

    fn finish(&mut self, _text: &str, out: &mut String) {
        let usage = Object::new()
            .json("input_tokens", self.session.input_tokens())
            .json("cached_input_tokens", 0)
            .json("output_tokens", self.session.output_tokens())
            .json("reasoning_output_tokens", 0)
            .done();
        line(out, &Object::new().string("type", "turn.completed").json("usage", usage).done());
    }

    fn fail(&mut self, failure: &ScriptedFailure, out: &mut String) -> VendorExit {
        let text = failure.text_or(match failure.kind {
            ScriptedFailureKind::Auth => "unexpected status 401 Unauthorized: Incorrect API key provided",
            ScriptedFailureKind::RateLimit => "exceeded retry limit, last status: 429 Too Many Requests",
            ScriptedFailureKind::Overloaded => "exceeded retry limit, last status: 503 Service Unavailable",
            ScriptedFailureKind::Network => "stream disconnected before completion: error sending request",
            ScriptedFailureKind::Budget => "You've hit your usage limit. Try again later.",
            ScriptedFailureKind::SessionNotFound => {
                let text = format!(
                    "Error: thread/resume: thread/resume failed: no rollout found for thread id {}",
                    self.session.id
                );
                return VendorExit::complaining(1, failure.text_or(&text));
            }
            ScriptedFailureKind::Other => "stream disconnected before completion: the rehearsed error",
        });
        // The same text is printed twice, and only the second ends the turn.
        top_level_error(&text, out);
        let error = Object::new().string("message", &text).done();
        line(out, &Object::new().string("type", "turn.failed").json("error", error).done());
        VendorExit::code(1)
    }

    /// Never reached: the script is refused first (see [`super::VoiceVendor::has_turn_limit`]).
    fn max_turns(&mut self, _out: &mut String) -> VendorExit {
        VendorExit::complaining(1, "codex has no turn limit")
    }
}

fn event(kind: &str, item: &str, out: &mut String) {
    line(out, &Object::new().string("type", kind).json("item", item).done());
}

fn top_level_error(text: &str, out: &mut String) {
    line(out, &Object::new().string("type", "error").string("message", text).done());
}
