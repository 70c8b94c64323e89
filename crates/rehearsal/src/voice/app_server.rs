//! `codex app-server`, after the thread was opened.

use serde_json::Value;

use super::{
    ScriptedFailure, ScriptedFailureKind, ToolCall, ToolInput, VendorExit, Voice, VoiceSession, line,
};
use crate::json::Object;

pub(super) struct AppServerVoice {
    session: VoiceSession,
    items: u32,
}

impl AppServerVoice {
    pub(super) fn new(session: VoiceSession) -> Self {
        Self { session, items: 0 }
    }

    fn notify(&self, method: &str, params: Object, out: &mut String) {
        let params = params.string("threadId", &self.session.id).string("turnId", "turn-1").done();
        line(out, &Object::new().string("method", method).json("params", params).done());
    }

    fn next_item(&mut self) -> String {
        self.items += 1;
        format!("item-{}", self.items)
    }

    fn text_item(&mut self, kind: &str, text: &str, out: &mut String) {
        let item = self.next_item();
        let item = Object::new().string("type", kind).string("id", &item).string("text", text).done();
        self.notify("item/completed", Object::new().json("item", item), out);
    }

    fn command(&mut self, command: &str, output: &str, code: i32, status: &str, out: &mut String) {
        let id = self.next_item();
        let item =
            || Object::new().string("type", "commandExecution").string("id", &id).string("command", command);
        let started = item().string("status", "inProgress").done();
        self.notify("item/started", Object::new().json("item", started), out);
        let ended = item().string("status", status).string("aggregatedOutput", output).json("exitCode", code);
        self.notify("item/completed", Object::new().json("item", ended.done()), out);
        self.session.count_tool();
    }

    fn mcp_call(&mut self, call: &ToolCall, arguments: &str, out: &mut String) {
        let id = self.next_item();
        let item = || {
            let item =
                Object::new().string("type", "mcpToolCall").string("id", &id).string("server", "rehearsal");
            item.string("tool", &call.name).json("arguments", arguments)
        };
        let started = item().string("status", "inProgress").done();
        self.notify("item/started", Object::new().json("item", started), out);
        let ended = if call.failed {
            let error = Object::new().string("message", &call.result).done();
            item().string("status", "failed").json("error", error)
        } else {
            let content = Object::new().string("type", "text").string("text", &call.result).done();
            let result = Object::new().json("content", format!("[{content}]")).done();
            item().string("status", "completed").json("result", result)
        };
        self.notify("item/completed", Object::new().json("item", ended.done()), out);
        self.session.count_tool();
    }

    fn end_turn(&self, status: &str, error: &str, out: &mut String) {
        let turn = Object::new().string("id", "turn-1").string("status", status).json("error", error).done();
        self.notify("turn/completed", Object::new().json("turn", turn), out);
    }
}

impl Voice for AppServerVoice {
    fn open(&mut self, _out: &mut String) {}

    fn say(&mut self, text: &str, out: &mut String) {
        self.session.count_words(text);
        self.text_item("agentMessage", text, out);
    }

    fn think(&mut self, text: &str, out: &mut String) {
        self.text_item("reasoning", text, out);
    }

    fn tool(&mut self, call: &ToolCall, out: &mut String) {
        match &call.input {
            ToolInput::Command(command) if call.failed => {
                self.command(command, &call.result, 1, "failed", out);
            }
            ToolInput::Command(command) => self.command(command, &call.result, 0, "completed", out),
            ToolInput::Json(arguments) => self.mcp_call(call, arguments, out),
        }
    }

    fn deny(&mut self, tool: &str, out: &mut String) {
        self.command(tool, "rejected by user approval settings", -1, "declined", out);
    }

    fn ask(&mut self, request: &str, call: &ToolCall, _can_allow: bool, out: &mut String) {
        let params = Object::new()
            .string("threadId", &self.session.id)
            .string("turnId", "turn-1")
            .string("itemId", "item-0")
            .json("command", crate::json::quote(&call.name))
            .done();
        line(out, &super::request(false, request, "item/commandExecution/requestApproval", &params));
    }

    fn request(&self, id: &str, method: &str) -> String {
        super::request(false, id, method, "{}")
    }

    fn is_allowed(&self, reply: &Value) -> bool {
        reply["result"]["decision"] == "accept"
    }

    fn piece(&mut self, text: &str, out: &mut String) {
        self.session.count_words(text);
        self.notify(
            "item/agentMessage/delta",
            Object::new().string("itemId", "streamed").string("delta", text),
            out,
        );
    }

    fn end_pieces(&mut self, whole: &str, out: &mut String) {
        self.text_item("agentMessage", whole, out);
    }

    fn retry_notice(&mut self, _status: Option<u16>, out: &mut String) -> Option<String> {
        let text = "Reconnecting... 1/5 (stream disconnected before completion)";
        let error = Object::new().string("message", text).done();
        self.notify("error", Object::new().json("error", error).json("willRetry", true), out);
        None
    }

    fn finish(&mut self, _text: &str, out: &mut String) {
        let total = Object::new()
            .json("inputTokens", self.session.input_tokens())
            .json("cachedInputTokens", 0)
            .json("outputTokens", self.session.output_tokens())
            .json("reasoningOutputTokens", 0)
            .done();
        let usage = Object::new().json("total", total).done();
        self.notify("thread/tokenUsage/updated", Object::new().json("tokenUsage", usage), out);
        self.end_turn("completed", "null", out);
    }

    fn fail(&mut self, failure: &ScriptedFailure, out: &mut String) -> VendorExit {
        let status =
            |code: u16| format!(r#"{{"responseTooManyFailedAttempts":{{"httpStatusCode":{code}}}}}"#);
        let (info, text) = match failure.kind {
            ScriptedFailureKind::Auth => {
                (r#""unauthorized""#.to_owned(), "unexpected status 401 Unauthorized")
            }
            ScriptedFailureKind::RateLimit => (status(429), "exceeded retry limit, last status: 429"),
            ScriptedFailureKind::Overloaded => {
                (r#""serverOverloaded""#.to_owned(), "the model is overloaded")
            }
            ScriptedFailureKind::Network => {
                ("null".to_owned(), "stream disconnected before completion: error sending request")
            }
            ScriptedFailureKind::Budget => {
                (r#""usageLimitExceeded""#.to_owned(), "You've hit your usage limit.")
            }
            ScriptedFailureKind::SessionNotFound => ("null".to_owned(), "no rollout found for the thread"),
            ScriptedFailureKind::Other => ("null".to_owned(), "the rehearsed error"),
        };
        let error =
            Object::new().string("message", &failure.text_or(text)).json("codexErrorInfo", info).done();
        self.end_turn("failed", &error, out);
        VendorExit::code(0)
    }

    /// Never reached: the script is refused first (see [`super::VoiceVendor::has_turn_limit`]).
    fn max_turns(&mut self, _out: &mut String) -> VendorExit {
        VendorExit::complaining(1, "codex has no turn limit")
    }
}
