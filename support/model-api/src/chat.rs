//! The Chat Completions API of `OpenAI`, which many agents use with any vendor's models.

use serde_json::{Value, json};

use crate::answer::{ApiResponse, event, words};
use crate::openai::content_text;
use crate::request::{ConversationRole, ModelRequest, Part};
use crate::script::{Block, Call, ModelUsage, Reply};

/// The starts of system prompts of helpers that qwen runs beside the conversation.
const HELPERS: [&str; 3] = [
    "You are now acting as the managed memory extraction subagent",
    "You are performing a managed memory dream",
    "You are a security classifier",
];

/// Returns whether the request is housekeeping: it has no tools, such as the request for a title, or is that of a helper.
pub(crate) fn is_auxiliary(body: &Value) -> bool {
    let system = content_text(&body["messages"][0]["content"]);
    tools(body).is_empty() || HELPERS.iter().any(|start| system.starts_with(start))
}

/// Returns the response to a request of the CLI itself.
pub(crate) fn auxiliary(request: &ModelRequest) -> ApiResponse {
    let reply = Reply { blocks: vec![Block::Text("ok".to_owned())], ..Reply::default() };
    answer(request, &reply, 0)
}

pub(crate) fn answer(request: &ModelRequest, reply: &Reply, turn: usize) -> ApiResponse {
    let base = |object: &str| {
        json!({
            "id": format!("chatcmpl-{turn:024}"), "object": object, "created": 0,
            "model": request.model().unwrap_or("gpt"),
        })
    };
    let finish = if has_call(reply) { "tool_calls" } else { "stop" };
    if request.body["stream"] != json!(true) {
        let mut completion = base("chat.completion");
        completion["choices"] =
            json!([{"index": 0, "message": message(request, reply, turn), "finish_reason": finish}]);
        completion["usage"] = usage(reply.usage);
        return ApiResponse::whole(reply, &completion);
    }
    let chunk = |delta: Value, finish: Option<&str>| {
        let mut chunk = base("chat.completion.chunk");
        chunk["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
        event(None, &chunk)
    };
    let mut open = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
    for (index, block) in reply.blocks.iter().enumerate() {
        match block {
            Block::Thinking(text) => {
                open.extend(words(text).map(|word| chunk(json!({"reasoning_content": word}), None)));
            }
            Block::Text(text) => {
                open.extend(words(text).map(|word| chunk(json!({"content": word}), None)));
            }
            Block::Call(call) => {
                open.push(chunk(json!({"tool_calls": [tool_call(call, request, turn, index)]}), None));
            }
        }
    }
    let mut counted = base("chat.completion.chunk");
    counted["choices"] = json!([]);
    counted["usage"] = usage(reply.usage);
    let close = vec![chunk(json!({}), Some(finish)), event(None, &counted), "data: [DONE]\n\n".to_owned()];
    ApiResponse::events(reply, open, close)
}

pub(crate) fn tools(body: &Value) -> Vec<String> {
    let tools = body["tools"].as_array().into_iter().flatten();
    tools.filter_map(|tool| tool["function"]["name"].as_str().map(str::to_owned)).collect()
}

pub(crate) fn conversation(body: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = match message["role"].as_str() {
            Some("assistant") => ConversationRole::Model,
            Some("system" | "developer") => ConversationRole::System,
            Some("tool") => {
                parts.push(Part::ToolResult { output: content_text(&message["content"]) });
                continue;
            }
            _ => ConversationRole::User,
        };
        match &message["content"] {
            Value::String(text) => parts.push(Part::Text { role, text: text.clone() }),
            Value::Array(blocks) => {
                let texts = blocks.iter().filter_map(|block| block["text"].as_str());
                parts.extend(texts.map(|text| Part::Text { role, text: text.to_owned() }));
            }
            _ => {}
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let input =
                call["function"]["arguments"].as_str().and_then(|text| serde_json::from_str(text).ok());
            parts.push(Part::ToolCall {
                name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
                input: input.unwrap_or_default(),
            });
        }
    }
    parts
}

fn has_call(reply: &Reply) -> bool {
    reply.blocks.iter().any(|block| matches!(block, Block::Call(_)))
}

/// Renders a message that is not streamed.
fn message(request: &ModelRequest, reply: &Reply, turn: usize) -> Value {
    let mut message = json!({"role": "assistant", "content": null});
    let mut calls = Vec::new();
    let mut text = String::new();
    for (index, block) in reply.blocks.iter().enumerate() {
        match block {
            Block::Thinking(thought) => message["reasoning_content"] = json!(thought),
            Block::Text(more) => text.push_str(more),
            Block::Call(call) => calls.push(tool_call(call, request, turn, index)),
        }
    }
    if !text.is_empty() {
        message["content"] = json!(text);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    message
}

fn tool_call(call: &Call, request: &ModelRequest, turn: usize, index: usize) -> Value {
    let (name, input) = match call {
        Call::Tool { name, input } => (name.clone(), input.clone()),
        Call::Shell { command } => shell(&tools(&request.body), command),
        Call::Mcp { server, tool, input } => (mcp_tool(&tools(&request.body), server, tool), input.clone()),
    };
    json!({
        "index": index, "id": format!("call_{turn:012}{index:012}"), "type": "function",
        "function": {"name": name, "arguments": input.to_string()},
    })
}

/// Returns the offered shell tool, and its input.
fn shell(offered: &[String], command: &str) -> (String, Value) {
    let has = |name: &str| offered.iter().any(|offered| offered == name);
    if has("run_shell_command") {
        return (
            "run_shell_command".to_owned(),
            json!({"command": command, "is_background": false, "description": "scripted"}),
        );
    }
    let name = if has("bash") { "bash" } else { "Bash" };
    (name.to_owned(), json!({"command": command, "description": "scripted"}))
}

/// Returns the name of a tool of a server: the agents have no common form.
fn mcp_tool(offered: &[String], server: &str, tool: &str) -> String {
    let forms = [format!("{server}_{tool}"), format!("{server}-{tool}")];
    forms
        .into_iter()
        .find(|form| offered.contains(form))
        // Also where it is not listed: some agents search for a tool first, and may call it at once.
        .unwrap_or_else(|| format!("mcp__{server}__{tool}"))
}

fn usage(usage: ModelUsage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens": usage.output,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    })
}
