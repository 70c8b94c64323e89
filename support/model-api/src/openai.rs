//! The `OpenAI` Responses API, as far as Codex uses it.

use serde_json::{Value, json};

use crate::answer::{ApiResponse, event, words};
use crate::request::{ConversationRole, ModelRequest, Part};
use crate::script::{Block, Call, ModelUsage, Reply};

/// Returns whether the request is housekeeping, such as compaction. Codex labels its requests.
pub(crate) fn is_auxiliary(body: &Value) -> bool {
    let metadata = body["client_metadata"]["x-codex-turn-metadata"].as_str().unwrap_or_default();
    let metadata: Value = serde_json::from_str(metadata).unwrap_or_default();
    metadata["request_kind"].as_str().is_some_and(|kind| kind != "turn")
}

/// Returns the response to a request of the CLI itself.
pub(crate) fn auxiliary(request: &ModelRequest) -> ApiResponse {
    let reply = Reply { blocks: vec![Block::Text("ok".to_owned())], ..Reply::default() };
    answer(request, &reply, 0)
}

pub(crate) fn answer(request: &ModelRequest, reply: &Reply, turn: usize) -> ApiResponse {
    let items: Vec<Value> =
        reply.blocks.iter().enumerate().map(|(n, block)| item(block, request, turn, n)).collect();
    let response = json!({
        "id": format!("resp_{turn:024}"), "object": "response", "created_at": 0, "status": "completed",
        "model": request.model().unwrap_or("gpt"), "output": items, "usage": usage(reply.usage),
    });
    if request.body["stream"] != json!(true) {
        return ApiResponse::whole(reply, &response);
    }
    let mut started = response.clone();
    started["status"] = json!("in_progress");
    started["output"] = json!([]);
    started["usage"] = Value::Null;
    let mut open = vec![said(json!({"type": "response.created", "response": started}))];
    let mut close = Vec::new();
    for (index, (block, item)) in reply.blocks.iter().zip(items).enumerate() {
        // The last item stays open in a stream that hangs or is cut.
        open.append(&mut close);
        let mut added = item.clone();
        if let Block::Text(_) = block {
            added["content"] = json!([]);
            added["status"] = json!("in_progress");
        }
        open.push(said(json!({"type": "response.output_item.added", "output_index": index, "item": added})));
        open.extend(deltas(block, &item["id"], index));
        close.push(said(json!({"type": "response.output_item.done", "output_index": index, "item": item})));
    }
    close.push(said(json!({"type": "response.completed", "response": response})));
    ApiResponse::events(reply, open, close)
}

pub(crate) fn refusal(status: u16, retry_after: Option<u64>) -> ApiResponse {
    let (kind, code, message) = match status {
        400 => ("invalid_request_error", json!("invalid_prompt"), "Invalid prompt.".to_owned()),
        401 => (
            "invalid_request_error",
            json!("invalid_api_key"),
            "Incorrect API key provided: dummy. You can find your API key in your account settings."
                .to_owned(),
        ),
        403 => (
            "invalid_request_error",
            json!("unsupported_country_region_territory"),
            "Country, region, or territory not supported".to_owned(),
        ),
        404 => (
            "invalid_request_error",
            json!("model_not_found"),
            "The model `no-such-model` does not exist or you do not have access to it.".to_owned(),
        ),
        429 => {
            let again = retry_after.map(|s| format!(" Please try again in {s}s.")).unwrap_or_default();
            let text = format!(
                "Rate limit reached for requests per min (RPM): Limit 3, Used 3, Requested 1.{again}"
            );
            ("requests", json!("rate_limit_exceeded"), text)
        }
        503 | 529 => (
            "server_error",
            json!("server_is_overloaded"),
            "Our servers are currently overloaded. Please try again later.".to_owned(),
        ),
        _ => (
            "server_error",
            Value::Null,
            "The server had an error while processing your request. Sorry about that!".to_owned(),
        ),
    };
    let body = json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    let answer = ApiResponse::json(status, &body).with_header("x-request-id", "req_0f6d3e1f5c8a4b7e");
    match retry_after {
        Some(seconds) => answer.with_header("retry-after", seconds.to_string()),
        None => answer,
    }
}

pub(crate) fn tools(body: &Value) -> Vec<String> {
    offered(body)
        .flat_map(|tool| match tool["tools"].as_array() {
            Some(inner) => {
                inner.iter().filter_map(|inner| qualified(&tool["name"], &inner["name"])).collect()
            }
            None => tool["name"]
                .as_str()
                .or(tool["type"].as_str())
                .map(str::to_owned)
                .into_iter()
                .collect::<Vec<_>>(),
        })
        .collect()
}

/// Returns the name of a tool in a namespace; `functions` is the namespace of tools without one.
fn qualified(namespace: &Value, tool: &Value) -> Option<String> {
    match (namespace.as_str()?, tool.as_str()?) {
        ("functions", tool) => Some(tool.to_owned()),
        (namespace, tool) => Some(format!("{namespace}__{tool}")),
    }
}

/// Returns the tools and namespaces of a request, wherever they are: newer models get them as an item of the input.
fn offered(body: &Value) -> impl Iterator<Item = &Value> {
    let listed = body["input"].as_array().into_iter().flatten();
    let listed = listed.filter(|item| item["type"] == "additional_tools").map(|item| &item["tools"]);
    std::iter::once(&body["tools"]).chain(listed).filter_map(Value::as_array).flatten()
}

pub(crate) fn conversation(body: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    if let Some(text) = body["instructions"].as_str() {
        parts.push(Part::Text { role: ConversationRole::System, text: text.to_owned() });
    }
    for item in body["input"].as_array().into_iter().flatten() {
        match item["type"].as_str() {
            Some("function_call") => parts.push(Part::ToolCall {
                name: item["name"].as_str().unwrap_or_default().to_owned(),
                input: item["arguments"]
                    .as_str()
                    .and_then(|s| serde_json::from_str(s).ok())
                    .unwrap_or_default(),
            }),
            Some("custom_tool_call") => parts.push(Part::ToolCall {
                name: item["name"].as_str().unwrap_or_default().to_owned(),
                input: item["input"].clone(),
            }),
            Some("function_call_output" | "custom_tool_call_output") => {
                parts.push(Part::ToolResult { output: content_text(&item["output"]) });
            }
            Some("message") | None => {
                let role = match item["role"].as_str() {
                    Some("assistant") => ConversationRole::Model,
                    Some("developer" | "system") => ConversationRole::System,
                    _ => ConversationRole::User,
                };
                let content = item["content"].as_array().into_iter().flatten();
                parts.extend(
                    content
                        .filter_map(|block| block["text"].as_str())
                        .map(|text| Part::Text { role, text: text.to_owned() }),
                );
            }
            Some(_) => {}
        }
    }
    parts
}

/// Returns content as text: a string, or the texts of its blocks.
pub(crate) fn content_text(output: &Value) -> String {
    if let Some(text) = output.as_str() {
        return text.to_owned();
    }
    let texts: Vec<&str> =
        output.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect();
    if texts.is_empty() { output.to_string() } else { texts.join("\n") }
}

/// Renders a block as a finished output item.
fn item(block: &Block, request: &ModelRequest, turn: usize, index: usize) -> Value {
    let id = |kind: &str| format!("{kind}_{turn:012}{index:012}");
    match block {
        Block::Thinking(text) => json!({
            "type": "reasoning", "id": id("rs"), "summary": [{"type": "summary_text", "text": text}],
            "encrypted_content": null,
        }),
        Block::Text(text) => json!({
            "type": "message", "id": id("msg"), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }),
        Block::Call(call) => {
            let mut item = named(call, &request.body);
            item["id"] = json!(id("fc"));
            item["call_id"] = json!(id("call"));
            item["status"] = json!("completed");
            item
        }
    }
}

fn deltas(block: &Block, id: &Value, index: usize) -> Vec<String> {
    let (kind, text) = match block {
        Block::Thinking(text) => ("response.reasoning_summary_text.delta", text),
        Block::Text(text) => ("response.output_text.delta", text),
        Block::Call(_) => return Vec::new(),
    };
    words(text)
        .map(|word| {
            said(json!({
                "type": kind, "item_id": id, "output_index": index, "content_index": 0, "summary_index": 0, "delta": word,
            }))
        })
        .collect()
}

fn named(call: &Call, body: &Value) -> Value {
    let (name, input) = match call {
        Call::Tool { name, input } => (name.clone(), input.clone()),
        Call::Shell { command } => ("exec_command".to_owned(), json!({"cmd": command})),
        Call::Mcp { server, tool, input } => (format!("mcp__{server}__{tool}"), input.clone()),
    };
    if tools(body).contains(&"exec".to_owned()) {
        // Newer models have one tool, which runs JavaScript that calls the others.
        let script = format!("text(await tools.{name}({input}));");
        return json!({"type": "custom_tool_call", "name": "exec", "input": script});
    }
    let mut item = json!({"type": "function_call", "name": name, "arguments": input.to_string()});
    if let Call::Mcp { server, tool, .. } = call {
        // Also where the namespace is not listed: some models have to search for it first, and may call it at once.
        item["namespace"] = json!(format!("mcp__{server}"));
        item["name"] = json!(tool);
    }
    item
}

fn usage(usage: ModelUsage) -> Value {
    json!({
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    })
}

/// An event, whose name is its data's type.
#[expect(clippy::needless_pass_by_value, reason = "every caller builds the value for this call")]
fn said(data: Value) -> String {
    event(data["type"].as_str(), &data)
}
