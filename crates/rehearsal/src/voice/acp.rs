//! The Agent Client Protocol, after the session was opened.

use serde_json::Value;

use super::{
    ScriptedFailure, ScriptedFailureKind, ToolCall, ToolInput, VendorExit, Voice, VoiceSession, line,
};
use crate::json::Object;

pub(super) struct AcpVoice {
    session: VoiceSession,
    /// The id of the request with the prompt, as JSON.
    prompt: String,
}

impl AcpVoice {
    pub(super) fn new(session: VoiceSession, prompt: String) -> Self {
        Self { session, prompt }
    }

    fn update(&self, update: Object, out: &mut String) {
        let params = Object::new().string("sessionId", &self.session.id).json("update", update.done()).done();
        let message = Object::new().string("jsonrpc", "2.0").string("method", "session/update");
        line(out, &message.json("params", params).done());
    }

    fn chunk(&self, kind: &str, message: &str, text: &str, out: &mut String) {
        let content = Object::new().string("type", "text").string("text", text).done();
        let update = Object::new().string("sessionUpdate", kind).json("content", content);
        self.update(update.string("messageId", message), out);
    }

    fn end_tool(&mut self, id: &str, text: &str, failed: bool, out: &mut String) {
        let block = Object::new().string("type", "text").string("text", text).done();
        let content = Object::new().string("type", "content").json("content", block).done();
        let update = Object::new()
            .string("sessionUpdate", "tool_call_update")
            .string("toolCallId", id)
            .string("status", if failed { "failed" } else { "completed" })
            .json("content", format!("[{content}]"));
        self.update(update, out);
        self.session.count_tool();
    }

    fn reply(&self, field: &str, value: &str, out: &mut String) {
        line(out, &Object::new().string("jsonrpc", "2.0").json("id", &self.prompt).json(field, value).done());
    }

    fn stop(&self, reason: &str, out: &mut String) {
        let (input, output) = (self.session.input_tokens(), self.session.output_tokens());
        let usage = Object::new()
            .json("inputTokens", input)
            .json("outputTokens", output)
            .json("totalTokens", input + output)
            .done();
        self.reply("result", &Object::new().string("stopReason", reason).json("usage", usage).done(), out);
    }
}

/// Returns the fields that describe a tool call.
fn describe(id: &str, call: &ToolCall) -> Object {
    let kind = match call.input {
        ToolInput::Command(_) => "execute",
        ToolInput::Json(_) if call.name == "Write" => "edit",
        ToolInput::Json(_) if call.name == "Read" => "read",
        ToolInput::Json(_) => "other",
    };
    Object::new()
        .string("toolCallId", id)
        .string("title", &call.name)
        .string("kind", kind)
        .json("rawInput", call.input.as_object())
}

impl Voice for AcpVoice {
    fn open(&mut self, _out: &mut String) {}

    fn say(&mut self, text: &str, out: &mut String) {
        self.session.count_words(text);
        let message = self.session.next_uuid();
        self.chunk("agent_message_chunk", &message, text, out);
    }

    fn think(&mut self, text: &str, out: &mut String) {
        let message = self.session.next_uuid();
        self.chunk("agent_thought_chunk", &message, text, out);
    }

    fn tool(&mut self, call: &ToolCall, out: &mut String) {
        let id = self.session.next_id("call_");
        let started =
            describe(&id, call).string("sessionUpdate", "tool_call").string("status", "in_progress");
        self.update(started, out);
        self.end_tool(&id, &call.result, call.failed, out);
    }

    fn deny(&mut self, tool: &str, out: &mut String) {
        let id = self.session.next_id("call_");
        let call = ToolCall {
            name: tool.to_owned(),
            input: ToolInput::Json("{}".to_owned()),
            result: String::new(),
            failed: true,
        };
        self.update(
            describe(&id, &call).string("sessionUpdate", "tool_call").string("status", "pending"),
            out,
        );
        self.end_tool(&id, "the permission was denied", true, out);
    }

    fn ask(&mut self, request: &str, call: &ToolCall, can_allow: bool, out: &mut String) {
        let option = |kind: &str, id: &str| {
            Object::new().string("kind", kind).string("name", kind).string("optionId", id).done()
        };
        let mut options = vec![option("reject_once", "no")];
        if can_allow {
            options.insert(0, option("allow_once", "yes"));
        }
        let id = self.session.next_id("call_");
        let params = Object::new()
            .string("sessionId", &self.session.id)
            .json("options", crate::json::array(options))
            .json("toolCall", describe(&id, call).done())
            .done();
        line(out, &super::request(true, request, "session/request_permission", &params));
    }

    fn is_allowed(&self, reply: &Value) -> bool {
        reply["result"]["outcome"]["optionId"] == "yes"
    }

    fn piece(&mut self, text: &str, out: &mut String) {
        self.session.count_words(text);
        self.chunk("agent_message_chunk", "streamed", text, out);
    }

    fn end_pieces(&mut self, _whole: &str, _out: &mut String) {}

    fn retry_notice(&mut self, status: Option<u16>, _out: &mut String) -> Option<String> {
        let status = status.map(|status| format!(" after status {status}")).unwrap_or_default();
        Some(format!("trying again{status}"))
    }

    fn finish(&mut self, _text: &str, out: &mut String) {
        self.stop("end_turn", out);
    }

    fn fail(&mut self, failure: &ScriptedFailure, out: &mut String) -> VendorExit {
        let (code, status, message) = match failure.kind {
            ScriptedFailureKind::Auth => (-32000, 401, "Authentication required"),
            ScriptedFailureKind::RateLimit => (-32603, 429, "Too many requests"),
            ScriptedFailureKind::Overloaded => (-32603, 529, "The model is overloaded"),
            ScriptedFailureKind::Network => (-32603, 0, "fetch failed: ECONNREFUSED"),
            ScriptedFailureKind::Budget => (-32603, 429, "You have exhausted your quota"),
            ScriptedFailureKind::SessionNotFound => (-32002, 0, "Session not found"),
            ScriptedFailureKind::Other => (-32603, 0, "the rehearsed error"),
        };
        let mut error = Object::new().json("code", code).string("message", &failure.text_or(message));
        if status > 0 {
            error = error.json("data", Object::new().json("status", status).done());
        }
        self.reply("error", &error.done(), out);
        VendorExit::code(0)
    }

    fn max_turns(&mut self, out: &mut String) -> VendorExit {
        self.stop("max_turn_requests", out);
        VendorExit::code(0)
    }
}
