//! The Anthropic Messages API, as far as Claude Code uses it.

use serde_json::{Value, json};

use crate::answer::{ApiResponse, event, words};
use crate::request::{ConversationRole, ModelRequest, Part};
use crate::script::{Block, Call, ModelUsage, Reply};

/// Returns whether this is a quota check, which requests one token; a conversation never does.
pub(crate) fn is_auxiliary(body: &Value) -> bool {
    body["max_tokens"] == json!(1)
}

/// Returns the response to a request of the CLI itself.
pub(crate) fn auxiliary(request: &ModelRequest) -> ApiResponse {
    if request.path.contains("count_tokens") {
        return ApiResponse::json(200, &json!({"input_tokens": ModelUsage::default().input}));
    }
    let reply = Reply { blocks: vec![Block::Text("ok".to_owned())], ..Reply::default() };
    answer(request, &reply, 0)
}

pub(crate) fn answer(request: &ModelRequest, reply: &Reply, turn: usize) -> ApiResponse {
    let model = request.model().unwrap_or("claude");
    let content: Vec<Value> =
        reply.blocks.iter().enumerate().map(|(n, block)| whole(block, turn, n)).collect();
    let stop = if has_call(reply) { "tool_use" } else { "end_turn" };
    let message = json!({
        "id": format!("msg_{turn:024}"), "type": "message", "role": "assistant", "model": model,
        "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage(reply.usage),
    });
    if request.body["stream"] != json!(true) {
        return ApiResponse::whole(reply, &message);
    }
    let mut start = message;
    start["content"] = json!([]);
    start["stop_reason"] = Value::Null;
    start["usage"]["output_tokens"] = json!(1);
    let mut open = vec![said(json!({"type": "message_start", "message": start}))];
    let mut close = Vec::new();
    for (index, block) in reply.blocks.iter().enumerate() {
        // The last block stays open in a stream that hangs or is cut.
        open.append(&mut close);
        let (begin, deltas) = pieces(block, turn, index);
        open.push(said(json!({"type": "content_block_start", "index": index, "content_block": begin})));
        open.extend(
            deltas
                .into_iter()
                .map(|delta| said(json!({"type": "content_block_delta", "index": index, "delta": delta}))),
        );
        close.push(said(json!({"type": "content_block_stop", "index": index})));
    }
    close.push(said(json!({
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": null},
        "usage": usage(reply.usage),
    })));
    close.push(said(json!({"type": "message_stop"})));
    ApiResponse::events(reply, open, close)
}

pub(crate) fn refusal(status: u16, retry_after: Option<u64>) -> ApiResponse {
    let (kind, message) = match status {
        400 => ("invalid_request_error", "messages: at least one message is required"),
        401 => ("authentication_error", "invalid x-api-key"),
        403 => ("permission_error", "Your API key does not have permission to use the specified resource."),
        404 => ("not_found_error", "model: no-such-model"),
        429 => (
            "rate_limit_error",
            "This request would exceed your organization's rate limit of 50 requests per minute.",
        ),
        529 => ("overloaded_error", "Overloaded"),
        _ => ("api_error", "Internal server error"),
    };
    let request_id = "req_011CSHoEeqs5C35K2UUqR7Fy";
    let body =
        json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id});
    let answer = ApiResponse::json(status, &body).with_header("request-id", request_id);
    match retry_after {
        Some(seconds) => answer.with_header("retry-after", seconds.to_string()),
        None => answer,
    }
}

pub(crate) fn tools(body: &Value) -> Vec<String> {
    let tools = body["tools"].as_array().into_iter().flatten();
    tools.filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}

pub(crate) fn conversation(body: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    read(ConversationRole::System, &body["system"], &mut parts);
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = match message["role"].as_str() {
            Some("assistant") => ConversationRole::Model,
            Some("system") => ConversationRole::System,
            _ => ConversationRole::User,
        };
        read(role, &message["content"], &mut parts);
    }
    parts
}

fn read(role: ConversationRole, content: &Value, parts: &mut Vec<Part>) {
    if let Some(text) = content.as_str() {
        parts.push(Part::Text { role, text: text.to_owned() });
    }
    for block in content.as_array().into_iter().flatten() {
        match block["type"].as_str() {
            Some("text") => {
                parts.push(Part::Text { role, text: block["text"].as_str().unwrap_or_default().to_owned() });
            }
            Some("tool_use") => parts.push(Part::ToolCall {
                name: block["name"].as_str().unwrap_or_default().to_owned(),
                input: block["input"].clone(),
            }),
            Some("tool_result") => parts.push(Part::ToolResult { output: flat(&block["content"]) }),
            _ => {}
        }
    }
}

/// A tool result's content as text.
fn flat(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let blocks: Vec<&str> =
        content.as_array().into_iter().flatten().filter_map(|block| block["text"].as_str()).collect();
    if blocks.is_empty() { content.to_string() } else { blocks.join("\n") }
}

fn has_call(reply: &Reply) -> bool {
    reply.blocks.iter().any(|block| matches!(block, Block::Call(_)))
}

/// Renders a block of a finished message.
fn whole(block: &Block, turn: usize, index: usize) -> Value {
    match block {
        Block::Thinking(text) => json!({"type": "thinking", "thinking": text, "signature": "c2lnbmF0dXJl"}),
        Block::Text(text) => json!({"type": "text", "text": text}),
        Block::Call(call) => {
            let (name, input) = named(call);
            json!({"type": "tool_use", "id": call_id(turn, index), "name": name, "input": input})
        }
    }
}

/// Renders a streamed block: its start and its deltas.
fn pieces(block: &Block, turn: usize, index: usize) -> (Value, Vec<Value>) {
    match block {
        Block::Thinking(text) => {
            let mut deltas: Vec<Value> =
                words(text).map(|word| json!({"type": "thinking_delta", "thinking": word})).collect();
            deltas.push(json!({"type": "signature_delta", "signature": "c2lnbmF0dXJl"}));
            (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
        }
        Block::Text(text) => {
            let deltas = words(text).map(|word| json!({"type": "text_delta", "text": word})).collect();
            (json!({"type": "text", "text": ""}), deltas)
        }
        Block::Call(call) => {
            let (name, input) = named(call);
            let begin = json!({"type": "tool_use", "id": call_id(turn, index), "name": name, "input": {}});
            (begin, vec![json!({"type": "input_json_delta", "partial_json": input.to_string()})])
        }
    }
}

fn named(call: &Call) -> (String, Value) {
    match call {
        Call::Tool { name, input } => (name.clone(), input.clone()),
        Call::Shell { command } => {
            ("Bash".to_owned(), json!({"command": command, "description": "scripted"}))
        }
        Call::Mcp { server, tool, input } => (format!("mcp__{server}__{tool}"), input.clone()),
    }
}

fn call_id(turn: usize, index: usize) -> String {
    format!("toolu_{turn:012}{index:012}")
}

fn usage(usage: ModelUsage) -> Value {
    json!({
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "service_tier": "standard",
    })
}

/// An event, whose name is its data's type.
#[expect(clippy::needless_pass_by_value, reason = "every caller builds the value for this call")]
fn said(data: Value) -> String {
    event(data["type"].as_str(), &data)
}
