//! `claude -p --output-format stream-json --verbose`.

use serde_json::Value;

use super::{
    ScriptedFailure, ScriptedFailureKind, TaskChange, ToolCall, VendorExit, Voice, VoiceSession, line,
};
use crate::json::{Object, array, array_of_strings, quote};

pub(super) struct ClaudeVoice {
    session: VoiceSession,
    denials: Vec<String>,
    /// Background tasks that are running.
    tasks: Vec<String>,
    retries: u32,
    /// The tokens and turns of earlier results: each result reports the difference.
    reported: (usize, usize, u32),
}

/// The end of a result event; the rest is constant.
struct Verdict<'a> {
    subtype: &'a str,
    is_error: bool,
    /// Absent, not null, for a turn without a text.
    result: Option<&'a str>,
    errors: Option<&'a str>,
    terminal_reason: &'a str,
    api_status: Option<u16>,
}

impl ClaudeVoice {
    pub(super) fn new(session: VoiceSession) -> Self {
        Self { session, denials: Vec::new(), tasks: Vec::new(), retries: 0, reported: (0, 0, 0) }
    }

    fn assistant(&mut self, content: &str, out: &mut String) {
        let message = self.message(&self.session.model.clone(), content);
        self.event("assistant", &message, out);
    }

    fn message(&mut self, model: &str, content: &str) -> String {
        Object::new()
            .string("model", model)
            .string("id", &self.session.next_id("msg_"))
            .string("type", "message")
            .string("role", "assistant")
            .json("content", content)
            .json("stop_reason", "null")
            .json("stop_sequence", "null")
            .json("usage", self.usage())
            .done()
    }

    fn event(&mut self, kind: &str, message: &str, out: &mut String) {
        let event = Object::new()
            .string("type", kind)
            .json("message", message)
            .json("parent_tool_use_id", "null")
            .string("session_id", &self.session.id)
            .string("uuid", &self.session.next_uuid())
            .done();
        line(out, &event);
    }

    fn tool_use(&mut self, name: &str, input: &str, out: &mut String) -> String {
        let id = self.session.next_id("toolu_");
        let block = Object::new()
            .string("type", "tool_use")
            .string("id", &id)
            .string("name", name)
            .json("input", input)
            .done();
        self.assistant(&format!("[{block}]"), out);
        self.session.count_tool();
        id
    }

    fn tool_result(&mut self, id: &str, text: &str, failed: bool, out: &mut String) {
        let mut block =
            Object::new().string("tool_use_id", id).string("type", "tool_result").string("content", text);
        if failed {
            block = block.json("is_error", true);
        }
        let message =
            Object::new().string("role", "user").json("content", format!("[{}]", block.done())).done();
        self.event("user", &message, out);
    }

    fn stream_event(&mut self, event: &str, out: &mut String) {
        let event = Object::new()
            .string("type", "stream_event")
            .json("event", event)
            .string("session_id", &self.session.id)
            .json("parent_tool_use_id", "null")
            .string("uuid", &self.session.next_uuid())
            .done();
        line(out, &event);
    }

    fn usage(&self) -> String {
        Object::new()
            .json("input_tokens", self.session.input_tokens())
            .json("cache_creation_input_tokens", 0)
            .json("cache_read_input_tokens", 0)
            .json("output_tokens", self.session.output_tokens())
            .done()
    }

    fn usage_since_last_result(&mut self) -> String {
        let (input, output) = (self.session.input_tokens(), self.session.output_tokens());
        let usage = Object::new()
            .json("input_tokens", input.saturating_sub(self.reported.0))
            .json("cache_creation_input_tokens", 0)
            .json("cache_read_input_tokens", 0)
            .json("output_tokens", output.saturating_sub(self.reported.1))
            .done();
        self.reported = (input, output, self.session.turns);
        usage
    }

    fn system(&mut self, subtype: &str, rest: Object, out: &mut String) {
        let event = rest
            .string("session_id", &self.session.id)
            .string("uuid", &self.session.next_uuid())
            .string("subtype", subtype)
            .string("type", "system")
            .done();
        line(out, &event);
    }

    fn model_usage(&self) -> String {
        let figures = Object::new()
            .json("inputTokens", self.session.input_tokens())
            .json("outputTokens", self.session.output_tokens())
            .json("cacheReadInputTokens", 0)
            .json("cacheCreationInputTokens", 0)
            .json("webSearchRequests", 0)
            .json("costUSD", self.session.cost())
            .json("contextWindow", 200_000)
            .done();
        Object::new().json(&self.session.model, figures).done()
    }

    fn result(&mut self, verdict: &Verdict, out: &mut String) {
        let elapsed = self.session.milliseconds();
        let mut result = Object::new()
            .string("subtype", verdict.subtype)
            .json("is_error", verdict.is_error)
            .json("duration_ms", elapsed)
            .json("duration_api_ms", elapsed)
            .json("num_turns", self.session.turns.saturating_sub(self.reported.2).max(1));
        if let Some(text) = verdict.result {
            result = result.string("result", text);
        }
        result = result
            .string("session_id", &self.session.id)
            .json("total_cost_usd", self.session.cost())
            .json("usage", self.usage_since_last_result())
            .json("modelUsage", self.model_usage())
            .json("permission_denials", array(self.denials.iter().cloned()));
        if let Some(text) = verdict.errors {
            result = result.json("errors", array_of_strings([text]));
        }
        let status = verdict.api_status.map_or("null".to_owned(), |status| status.to_string());
        // The real program prints `type` last here, and only here: a parser must not rely on its position.
        let result = result
            .string("terminal_reason", verdict.terminal_reason)
            .json("api_error_status", status)
            .string("uuid", &self.session.next_uuid())
            .string("type", "result")
            .done();
        line(out, &result);
    }

    fn task_list(&mut self, out: &mut String) {
        let task = |task: &String| Object::new().string("task_id", task).string("description", task).done();
        let tasks = Object::new().json("tasks", array(self.tasks.iter().map(task)));
        self.system("background_tasks_changed", tasks, out);
    }

    /// Prints an API error: as a text of the agent, repeated by the result.
    fn api_error(&mut self, status: Option<u16>, error: &str, text: &str, out: &mut String) {
        let message = self.message("<synthetic>", &text_block(text));
        let event = Object::new()
            .string("type", "assistant")
            .json("message", message)
            .json("parent_tool_use_id", "null")
            .string("session_id", &self.session.id)
            .string("uuid", &self.session.next_uuid())
            .string("error", error)
            .done();
        line(out, &event);
        let verdict = Verdict {
            // The trap of this format: an API error has the subtype `success`.
            subtype: "success",
            is_error: true,
            result: Some(text),
            errors: None,
            terminal_reason: "completed",
            api_status: status,
        };
        self.result(&verdict, out);
    }

    fn stopped(&mut self, subtype: &str, terminal_reason: &str, error: &str, out: &mut String) {
        let verdict = Verdict {
            subtype,
            is_error: true,
            result: None,
            errors: Some(error),
            terminal_reason,
            api_status: None,
        };
        self.result(&verdict, out);
    }
}

impl Voice for ClaudeVoice {
    fn open(&mut self, out: &mut String) {
        let event = Object::new()
            .string("type", "system")
            .string("subtype", "init")
            .string("cwd", &self.session.cwd)
            .string("session_id", &self.session.id)
            .json("tools", array_of_strings(["Bash", "Edit", "Read", "Write"]))
            .json("mcp_servers", "[]")
            .string("model", &self.session.model)
            .string("permissionMode", "default")
            .string("apiKeySource", "none")
            .string("uuid", &self.session.next_uuid())
            .done();
        line(out, &event);
    }

    fn say(&mut self, text: &str, out: &mut String) {
        self.session.count_words(text);
        self.assistant(&text_block(text), out);
    }

    fn think(&mut self, text: &str, out: &mut String) {
        self.session.count_words(text);
        let block =
            Object::new().string("type", "thinking").string("thinking", text).string("signature", "").done();
        self.assistant(&format!("[{block}]"), out);
    }

    fn tool(&mut self, call: &ToolCall, out: &mut String) {
        let id = self.tool_use(&call.name, &call.input.as_object(), out);
        self.tool_result(&id, &call.result, call.failed, out);
    }

    fn ask(&mut self, request: &str, call: &ToolCall, _can_allow: bool, out: &mut String) {
        let asked = Object::new()
            .string("subtype", "can_use_tool")
            .string("tool_name", &call.name)
            .json("input", call.input.as_object())
            .done();
        let event = Object::new().string("type", "control_request").json("request_id", request);
        line(out, &event.json("request", asked).done());
    }

    fn request(&self, id: &str, method: &str) -> String {
        let request = Object::new().string("subtype", method).done();
        let event = Object::new().string("type", "control_request").json("request_id", id);
        event.json("request", request).done()
    }

    fn is_allowed(&self, reply: &Value) -> bool {
        reply["response"]["response"]["behavior"] == "allow"
    }

    fn deny(&mut self, tool: &str, out: &mut String) {
        let id = self.tool_use(tool, "{}", out);
        let text = format!("Claude requested permissions to use {tool}, but you haven't granted it yet.");
        self.tool_result(&id, &text, true, out);
        let denial =
            Object::new().string("tool_name", tool).string("tool_use_id", &id).json("tool_input", "{}");
        self.denials.push(denial.done());
    }

    fn begin_pieces(&mut self, out: &mut String) {
        let message = self.message(&self.session.model.clone(), "[]");
        self.stream_event(
            &Object::new().string("type", "message_start").json("message", message).done(),
            out,
        );
        let start = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
        self.stream_event(start, out);
    }

    fn piece(&mut self, text: &str, out: &mut String) {
        let delta = Object::new().string("type", "text_delta").string("text", text).done();
        let event =
            Object::new().string("type", "content_block_delta").json("index", 0).json("delta", delta).done();
        self.stream_event(&event, out);
    }

    fn end_pieces(&mut self, whole: &str, out: &mut String) {
        self.say(whole, out);
        self.stream_event(r#"{"type":"content_block_stop","index":0}"#, out);
        let delta = Object::new()
            .string("type", "message_delta")
            .json("delta", r#"{"stop_reason":"end_turn","stop_sequence":null}"#)
            .json("usage", self.usage());
        self.stream_event(&delta.done(), out);
        self.stream_event(r#"{"type":"message_stop"}"#, out);
    }

    fn background(&mut self, change: TaskChange, task: &str, out: &mut String) {
        let status = match change {
            TaskChange::Start => {
                self.tasks.push(task.to_owned());
                self.task_list(out);
                let started = Object::new()
                    .string("task_id", task)
                    .string("description", task)
                    .json("is_backgrounded", true);
                return self.system("task_started", started, out);
            }
            TaskChange::Completed => "completed",
            TaskChange::Failed => "failed",
            TaskChange::Stopped => "stopped",
        };
        self.tasks.retain(|running| running != task);
        let ended = Object::new().string("task_id", task).string("status", status).string("summary", task);
        self.system("task_notification", ended, out);
        self.task_list(out);
    }

    fn retry_notice(&mut self, status: Option<u16>, out: &mut String) -> Option<String> {
        self.retries += 1;
        let error = match status.unwrap_or(529) {
            401 => "authentication_failed",
            429 => "rate_limit",
            529 => "overloaded",
            _ => "server_error",
        };
        let event = Object::new()
            .string("type", "system")
            .string("subtype", "api_retry")
            .json("attempt", self.retries)
            .json("max_retries", 10)
            .json("retry_delay_ms", 591)
            .json("error_status", status.unwrap_or(529))
            .string("error", error)
            .string("session_id", &self.session.id)
            .string("uuid", &self.session.next_uuid());
        line(out, &event.done());
        None
    }

    fn finish(&mut self, text: &str, out: &mut String) {
        let verdict = Verdict {
            subtype: "success",
            is_error: false,
            result: Some(text),
            errors: None,
            terminal_reason: "completed",
            api_status: None,
        };
        self.result(&verdict, out);
    }

    fn fail(&mut self, failure: &ScriptedFailure, out: &mut String) -> VendorExit {
        match failure.kind {
            ScriptedFailureKind::Auth => {
                let text = failure.text_or("Failed to authenticate. API Error: 401 invalid x-api-key");
                self.api_error(Some(401), "authentication_failed", &text, out);
            }
            ScriptedFailureKind::RateLimit => {
                let text = failure.text_or("API Error: 429 This request would exceed your rate limit.");
                self.api_error(Some(429), "rate_limit", &text, out);
            }
            ScriptedFailureKind::Overloaded => {
                let text = failure.text_or("API Error: 529 Overloaded");
                self.api_error(Some(529), "overloaded", &text, out);
            }
            ScriptedFailureKind::Network => {
                let text = failure.text_or("API Error: Connection error.");
                self.api_error(None, "unknown", &text, out);
            }
            ScriptedFailureKind::Budget => {
                let text = failure.text_or("Reached maximum budget ($0.01)");
                self.stopped("error_max_budget_usd", "max_budget_usd", &text, out);
            }
            ScriptedFailureKind::SessionNotFound => {
                let text =
                    failure.text_or(&format!("No conversation found with session ID: {}", self.session.id));
                self.stopped("error_during_execution", "error", &text, out);
                return VendorExit::complaining(1, text);
            }
            ScriptedFailureKind::Other => {
                let text = failure.text_or("the rehearsed error");
                self.stopped("error_during_execution", "error", &text, out);
            }
        }
        VendorExit::code(1)
    }

    fn max_turns(&mut self, out: &mut String) -> VendorExit {
        let limit = self.session.turn_limit.unwrap_or(1);
        self.session.turns = limit.saturating_add(1);
        let text = format!("Reached maximum number of turns ({limit})");
        self.stopped("error_max_turns", "max_turns", &text, out);
        VendorExit::code(1)
    }
}

fn text_block(text: &str) -> String {
    format!(r#"[{{"type":"text","text":{}}}]"#, quote(text))
}
