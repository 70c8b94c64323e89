//! The Gemini API's `generateContent` and `streamGenerateContent`, as far as Gemini CLI uses them.

use serde_json::{Value, json};

use crate::answer::{ApiResponse, event, words};
use crate::request::{ConversationRole, ModelRequest, Part};
use crate::script::{Block, Call, ModelUsage, Reply};

/// Returns whether the request is from one of the CLI's routers or checks, which request JSON; its conversation never does.
pub(crate) fn is_auxiliary(body: &Value) -> bool {
    body["generationConfig"]["responseMimeType"] == "application/json"
}

/// Returns the response to a request of the CLI itself.
pub(crate) fn auxiliary(request: &ModelRequest) -> ApiResponse {
    if request.path.contains(":countTokens") {
        return ApiResponse::json(200, &json!({"totalTokens": ModelUsage::default().input}));
    }
    let config = &request.body["generationConfig"];
    let schema = config.get("responseJsonSchema").or(config.get("responseSchema")).unwrap_or(&Value::Null);
    let reply = Reply { blocks: vec![Block::Text(smallest(schema).to_string())], ..Reply::default() };
    answer(request, &reply, 0)
}

/// Returns the model in a path.
pub(crate) fn model(path: &str) -> Option<&str> {
    path.split("/models/").nth(1)?.split([':', '?']).next()
}

pub(crate) fn answer(request: &ModelRequest, reply: &Reply, turn: usize) -> ApiResponse {
    let chunk = |parts: Vec<Value>, finished: bool| {
        let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
        if finished {
            candidate["finishReason"] = json!("STOP");
        }
        json!({
            "candidates": [candidate], "usageMetadata": usage(reply.usage),
            "modelVersion": request.model().unwrap_or("gemini"), "responseId": format!("response-{turn}"),
        })
    };
    if request.path.contains(":generateContent") {
        let parts = reply.blocks.iter().enumerate().flat_map(|(n, block)| whole(block, turn, n)).collect();
        return ApiResponse::whole(reply, &chunk(parts, true));
    }
    let open = reply
        .blocks
        .iter()
        .enumerate()
        .flat_map(|(n, block)| pieces(block, turn, n))
        .map(|part| event(None, &chunk(vec![part], false)))
        .collect();
    let close = vec![event(None, &chunk(vec![json!({"text": ""})], true))];
    ApiResponse::events(reply, open, close)
}

pub(crate) fn refusal(status: u16, retry_after: Option<u64>) -> ApiResponse {
    let (name, message) = match status {
        400 => ("INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
        401 => (
            "UNAUTHENTICATED",
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other \
             valid authentication credential.",
        ),
        403 => ("PERMISSION_DENIED", "The caller does not have permission"),
        404 => ("NOT_FOUND", "models/no-such-model is not found for API version v1beta"),
        429 => (
            "RESOURCE_EXHAUSTED",
            "You exceeded your current quota, please check your plan and billing details.",
        ),
        503 | 529 => ("UNAVAILABLE", "The model is overloaded. Please try again later."),
        _ => ("INTERNAL", "An internal error has occurred. Please retry."),
    };
    let mut error = json!({"code": status, "message": message, "status": name});
    let mut details = Vec::new();
    if status == 400 {
        details.push(json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "API_KEY_INVALID", "domain": "googleapis.com",
        }));
    }
    if let Some(seconds) = retry_after {
        details.push(
            json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{seconds}s")}),
        );
    }
    if !details.is_empty() {
        error["details"] = json!(details);
    }
    ApiResponse::json(status, &json!({"error": error}))
}

pub(crate) fn tools(body: &Value) -> Vec<String> {
    body["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|tool| tool["functionDeclarations"].as_array().into_iter().flatten())
        .filter_map(|function| function["name"].as_str().map(str::to_owned))
        .collect()
}

pub(crate) fn conversation(body: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    read(ConversationRole::System, &body["systemInstruction"], &mut parts);
    for content in body["contents"].as_array().into_iter().flatten() {
        let role = if content["role"] == "model" { ConversationRole::Model } else { ConversationRole::User };
        read(role, content, &mut parts);
    }
    parts
}

fn read(role: ConversationRole, content: &Value, parts: &mut Vec<Part>) {
    for part in content["parts"].as_array().into_iter().flatten() {
        if part["thought"] == json!(true) {
            continue;
        }
        if let Some(text) = part["text"].as_str() {
            parts.push(Part::Text { role, text: text.to_owned() });
        } else if let Some(call) = part.get("functionCall") {
            let name = call["name"].as_str().unwrap_or_default().to_owned();
            parts.push(Part::ToolCall { name, input: call["args"].clone() });
        } else if let Some(result) = part.get("functionResponse") {
            let response = &result["response"];
            let output = response["output"].as_str().map_or_else(|| response.to_string(), str::to_owned);
            parts.push(Part::ToolResult { output });
        }
    }
}

/// Renders a block of a response that is not streamed.
fn whole(block: &Block, turn: usize, index: usize) -> Vec<Value> {
    match block {
        Block::Text(text) => vec![json!({"text": text})],
        _ => pieces(block, turn, index),
    }
}

/// Renders a streamed block.
fn pieces(block: &Block, turn: usize, index: usize) -> Vec<Value> {
    match block {
        Block::Thinking(text) => vec![json!({"text": text, "thought": true})],
        Block::Text(text) => words(text).map(|word| json!({"text": word})).collect(),
        Block::Call(call) => {
            let (name, args) = named(call);
            vec![json!({
                "functionCall": {"id": format!("call-{turn}-{index}"), "name": name, "args": args},
                "thoughtSignature": "c2lnbmF0dXJl",
            })]
        }
    }
}

fn named(call: &Call) -> (String, Value) {
    match call {
        Call::Tool { name, input } => (name.clone(), input.clone()),
        Call::Shell { command } => ("run_shell_command".to_owned(), json!({"command": command})),
        Call::Mcp { server, tool, input } => (format!("mcp_{server}_{tool}"), input.clone()),
    }
}

fn usage(usage: ModelUsage) -> Value {
    json!({
        "promptTokenCount": usage.input,
        "cachedContentTokenCount": usage.cached,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.input + usage.output,
    })
}

/// Returns a minimal value for a schema: required fields only, a low score, a "no", the first choice.
fn smallest(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|choices| choices.first()) {
        return first.clone();
    }
    match schema["type"].as_str().map(str::to_ascii_lowercase).as_deref() {
        Some("object") | None => {
            let wanted = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            wanted.map(|name| (name.to_owned(), smallest(&schema["properties"][name]))).collect()
        }
        Some("array") => json!([]),
        Some("boolean") => json!(false),
        // A score counts from 1; a number is how sure the model is that something is wrong.
        Some("integer") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("number") => json!(0),
        Some(_) => json!("scripted"),
    }
}
