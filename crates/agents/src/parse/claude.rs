//! Claude Code's stream (`--output-format stream-json`, seen with 2.1.197 and 2.1.325).
//!
//! The lines that make up nearly all of a stream, messages with texts and tool results, are read in one walk. The few
//! that come once a run are read as whole values, leniently: a field of another type is a field that is missing.

use std::time::Duration;

use model::{
    AgentEvent, AgentText, Finish, McpServerState, Part, PermissionDenial, RawJson, ToolOutput, Usage,
};
use serde_json::{Map, Value};

use super::json::{Read, Reader};
use super::summary::{Complaint, ComplaintCode, Said, Summary};
use super::unknown;

/// Who speaks when the CLI itself reports an error in the place of the model.
const SYNTHETIC: &str = "<synthetic>";

#[derive(Default)]
struct Line<'a> {
    kind: Option<&'a [u8]>,
    subtype: Option<&'a [u8]>,
    within: Option<AgentText<'a>>,
    message: Message<'a>,
    delta: Delta<'a>,
}

#[derive(Default)]
struct Message<'a> {
    model: Option<&'a [u8]>,
    blocks: Vec<Block<'a>>,
}

struct Block<'a> {
    kind: &'a [u8],
    text: Option<AgentText<'a>>,
    id: Option<AgentText<'a>>,
    name: Option<AgentText<'a>>,
    input: Option<RawJson<'a>>,
    output: ToolOutput<'a>,
    is_error: bool,
}

#[derive(Default)]
struct Delta<'a> {
    kind: Option<&'a [u8]>,
    text: Option<AgentText<'a>>,
}

pub(super) fn read(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    let line = walk(bytes)?;
    match line.kind {
        Some(b"assistant") => assistant(line, summary, on_event),
        Some(b"user") => user(line.message, on_event),
        Some(b"stream_event") => stream_event(line, summary, on_event),
        Some(b"system") => system(line.subtype, bytes, summary, on_event),
        Some(b"result") => result(&map(bytes), summary, on_event),
        Some(b"rate_limit_event") => rate_limit(&map(bytes), summary, on_event),
        kind => on_event(unknown(kind, bytes)),
    }
    Ok(())
}

fn walk(bytes: &[u8]) -> Read<Line<'_>> {
    let mut line = Line::default();
    let mut reader = Reader::new(bytes);
    reader.object(|key, value| {
        match key {
            // What follows the message of a tool result is a copy of it in another shape: half of a long stream.
            _ if line.kind == Some(b"user") && !line.message.blocks.is_empty() => value.skip_rest()?,
            b"type" => line.kind = value.word()?,
            b"subtype" => line.subtype = value.word()?,
            b"message" => line.message = message(value)?,
            b"event" => line.delta = delta(value)?,
            b"parent_tool_use_id" => line.within = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    reader.end()?;
    Ok(line)
}

fn message<'a>(value: &mut Reader<'a>) -> Read<Message<'a>> {
    let mut message = Message::default();
    value.object_if(|key, value| {
        match key {
            b"model" => message.model = value.word()?,
            b"content" => value.array_if(|item| {
                message.blocks.extend(block(item)?);
                Ok(())
            })?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(message)
}

fn block<'a>(item: &mut Reader<'a>) -> Read<Option<Block<'a>>> {
    let mut kind = None;
    let mut block = Block {
        kind: b"",
        text: None,
        id: None,
        name: None,
        input: None,
        output: ToolOutput::Nothing,
        is_error: false,
    };
    item.object_if(|key, value| {
        match key {
            b"type" => kind = value.word()?,
            b"text" | b"thinking" => block.text = value.text()?,
            b"id" | b"tool_use_id" => block.id = value.text()?,
            b"name" => block.name = value.text()?,
            b"input" => block.input = Some(value.raw_json()?),
            b"content" => block.output = value.tool_output()?,
            b"is_error" => block.is_error = value.is_true()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(kind.map(|kind| Block { kind, ..block }))
}

fn delta<'a>(value: &mut Reader<'a>) -> Read<Delta<'a>> {
    let mut delta = Delta::default();
    value.object_if(|key, value| match key {
        b"delta" => value.object_if(|key, value| {
            match key {
                b"type" => delta.kind = value.word()?,
                b"text" | b"thinking" => delta.text = value.text()?,
                _ => value.skip()?,
            }
            Ok(())
        }),
        _ => value.skip(),
    })?;
    Ok(delta)
}

fn assistant(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let synthetic = line.message.model == Some(SYNTHETIC.as_bytes());
    let main = line.within.is_none();
    if main
        && !synthetic
        && let Some(model) = line.message.model
    {
        note_model(summary, model);
    }
    for block in line.message.blocks {
        match (block.kind, block.text) {
            // An error of the CLI, which the result tells again with its status: not the answer.
            (b"text", Some(message)) if synthetic => on_event(AgentEvent::Warning { message }),
            (b"text", Some(text)) => {
                if main {
                    summary.saw_text(&text);
                }
                on_event(AgentEvent::Text { text, part: Part::Whole, within: line.within.clone() });
            }
            (b"thinking", Some(text)) => on_event(AgentEvent::Thinking { text, part: Part::Whole }),
            (b"tool_use" | b"server_tool_use" | b"mcp_tool_use", _) => on_event(AgentEvent::ToolUse {
                id: block.id.unwrap_or_else(|| "".into()),
                name: block.name.unwrap_or_else(|| "".into()),
                input: block.input.unwrap_or_else(|| RawJson::from_bytes(b"null")),
            }),
            _ => {}
        }
    }
}

/// Kept only when it changes: it stands in every message.
fn note_model(summary: &mut Summary, model: &[u8]) {
    if summary.model.as_deref().map(str::as_bytes) != Some(model) {
        summary.model = Some(String::from_utf8_lossy(model).into_owned());
    }
}

fn user(message: Message<'_>, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    for block in message.blocks {
        if block.kind == b"tool_result" {
            let id = block.id.unwrap_or_else(|| "".into());
            on_event(AgentEvent::ToolResult { id, output: block.output, is_error: block.is_error });
        }
    }
}

fn stream_event(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let Some(text) = line.delta.text else { return };
    match line.delta.kind {
        Some(b"text_delta") => {
            if line.within.is_none() {
                summary.saw_piece(&text);
            }
            on_event(AgentEvent::Text { text, part: Part::Partial, within: line.within });
        }
        Some(b"thinking_delta") => on_event(AgentEvent::Thinking { text, part: Part::Partial }),
        _ => {}
    }
}

fn system(
    subtype: Option<&[u8]>,
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) {
    match subtype {
        Some(b"init") => init(&map(bytes), summary, on_event),
        Some(b"api_retry") => retry(&map(bytes), summary, on_event),
        Some(b"permission_denied") => {
            let denied = map(bytes);
            let denial = PermissionDenial {
                tool: text_of(&denied, "tool_name").unwrap_or_default(),
                tool_use_id: text_of(&denied, "tool_use_id"),
                detail: text_of(&denied, "message"),
            };
            summary.saw_denial(denial.clone());
            on_event(AgentEvent::PermissionDenied(denial));
        }
        Some(name) if name.ends_with(b"_fallback") => {
            let fallback = map(bytes);
            on_event(AgentEvent::ModelFallback {
                from: text_of(&fallback, "original_model").map(AgentText::from),
                to: text_of(&fallback, "fallback_model").map(AgentText::from),
                reason: text_of(&fallback, "content").unwrap_or_default().into(),
            });
        }
        // Signs of life that say nothing which another event does not say.
        Some(b"status" | b"thinking_tokens") => {}
        subtype => on_event(unknown(subtype, bytes)),
    }
}

fn init(init: &Map<String, Value>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    summary.session_id = text_of(init, "session_id");
    summary.agent_version = text_of(init, "claude_code_version");
    summary.model = text_of(init, "model").or(summary.model.take());
    let list = |key: &str| init.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| AgentText::from(value.as_str().unwrap_or_default().to_owned());
    on_event(AgentEvent::SessionStarted {
        session_id: summary.session_id.clone().unwrap_or_default().into(),
        model: text_of(init, "model").map(AgentText::from),
        tools: list("tools").iter().map(text).collect(),
        mcp_servers: list("mcp_servers")
            .iter()
            .map(|server| McpServerState { name: text(&server["name"]), status: text(&server["status"]) })
            .collect(),
    });
}

fn retry(retry: &Map<String, Value>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let status = number_of(retry, "error_status").and_then(|status| u16::try_from(status).ok());
    let reason = text_of(retry, "error").unwrap_or_default();
    summary.retries = summary.retries.saturating_add(1);
    summary.last_trouble =
        Some(status.map_or_else(|| reason.clone(), |status| format!("{reason} (HTTP {status})")));
    let count = |key: &str| number_of(retry, key).and_then(|count| u32::try_from(count).ok());
    on_event(AgentEvent::Retry {
        attempt: count("attempt"),
        of: count("max_retries"),
        delay: retry
            .get("retry_delay_ms")
            .and_then(Value::as_f64)
            .and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok()),
        status,
        reason: reason.into(),
    });
}

fn rate_limit(event: &Map<String, Value>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let info = &event.get("rate_limit_info").cloned().unwrap_or_default();
    if info["status"] == "rejected" {
        summary.limit_resets_at = info["resetsAt"].as_u64();
    }
    if let Some(status) = info["status"].as_str().filter(|status| *status != "allowed") {
        on_event(AgentEvent::Warning { message: format!("rate limit: {status}").into() });
    }
}

fn result(result: &Map<String, Value>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    if let Some(id) = text_of(result, "session_id") {
        summary.session_id = Some(id);
    }
    summary.turns = number_of(result, "num_turns").and_then(|turns| u32::try_from(turns).ok());
    summary.cost_usd = result.get("total_cost_usd").and_then(Value::as_f64);
    summary.structured_output =
        result.get("structured_output").filter(|value| !value.is_null()).map(Value::to_string);
    summary.usage = usage(result);
    since_last_result(result, summary);
    if let Some(usage) = summary.usage {
        on_event(AgentEvent::Usage(usage));
    }
    denials(result, summary);
    let said = said(result);
    if said == Said::Done
        && let Some(text) = text_of(result, "result")
    {
        summary.saw_text(&text.into());
    }
    on_event(AgentEvent::Finished { how: if said == Said::Done { Finish::Ok } else { Finish::Error } });
    summary.said = Some(said);
}

/// An error of the API comes as `subtype: success` too, so `is_error` is what counts.
fn said(result: &Map<String, Value>) -> Said {
    let subtype = text_of(result, "subtype").unwrap_or_default();
    let is_error = result.get("is_error").and_then(Value::as_bool).unwrap_or(false);
    if !is_error && !subtype.starts_with("error") {
        return Said::Done;
    }
    let code = match subtype.as_str() {
        "error_max_turns" => ComplaintCode::MaxTurns,
        "error_max_budget_usd" => ComplaintCode::MaxBudget,
        "error_max_structured_output_retries" => ComplaintCode::SchemaNotMet,
        _ => ComplaintCode::Other,
    };
    let errors = result.get("errors").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let errors: Vec<&str> = errors.iter().filter_map(Value::as_str).collect();
    let words = text_of(result, "result").filter(|words| !words.is_empty());
    let words = words.or_else(|| (!errors.is_empty()).then(|| errors.join("\n"))).unwrap_or(subtype);
    let http_status = number_of(result, "api_error_status").and_then(|status| u16::try_from(status).ok());
    Said::Failed(Complaint { code, http_status, words })
}

/// Claude counts what came from the cache and what went into it beside `input_tokens`, not within.
fn usage(result: &Map<String, Value>) -> Option<Usage> {
    let usage = result.get("usage")?;
    let count = |key: &str| usage[key].as_u64().unwrap_or(0);
    let cached = count("cache_read_input_tokens");
    let usage = Usage {
        input: count("input_tokens") + count("cache_creation_input_tokens") + cached,
        output: count("output_tokens"),
        cached,
        reasoning: usage["output_tokens_details"]["thinking_tokens"].as_u64().unwrap_or(0),
    };
    // When the budget ends a run, claude leaves zeros here although a model was paid for: not known, then.
    let models = result.get("modelUsage").and_then(Value::as_object);
    let spent = models.is_some_and(|models| !models.is_empty());
    (usage != Usage::default() || !spent).then_some(usage)
}

/// Newer versions also tell what this run alone took, by model: no difference is needed then.
fn since_last_result(result: &Map<String, Value>, summary: &mut Summary) {
    let Some(models) = result.get("model_usage_since_last_result").and_then(Value::as_object) else { return };
    let sum = |key: &str| models.values().map(|model| model[key].as_u64().unwrap_or(0)).sum::<u64>();
    let cached = sum("cacheReadInputTokens");
    summary.usage = Some(Usage {
        input: sum("inputTokens") + sum("cacheCreationInputTokens") + cached,
        output: sum("outputTokens"),
        cached,
        reasoning: sum("thinkingTokens"),
    });
    // Not `sum`, which makes a negative zero of nothing.
    let cost =
        models.values().filter_map(|model| model["costUSD"].as_f64()).fold(0.0, |sum, cost| sum + cost);
    summary.run_cost_usd = Some(cost);
}

fn denials(result: &Map<String, Value>, summary: &mut Summary) {
    let denials = result.get("permission_denials").and_then(Value::as_array);
    for denial in denials.map(Vec::as_slice).unwrap_or_default() {
        summary.saw_denial(PermissionDenial {
            tool: denial["tool_name"].as_str().unwrap_or_default().to_owned(),
            tool_use_id: denial["tool_use_id"].as_str().map(str::to_owned),
            detail: denial.get("tool_input").map(Value::to_string),
        });
    }
}

/// The whole line as a value. It was walked over already, so that only the inside of strings can be wrong: repaired.
fn map(bytes: &[u8]) -> Map<String, Value> {
    serde_json::from_str(&String::from_utf8_lossy(bytes)).unwrap_or_default()
}

fn text_of(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key)?.as_str().map(str::to_owned)
}

fn number_of(map: &Map<String, Value>, key: &str) -> Option<u64> {
    map.get(key)?.as_u64()
}
