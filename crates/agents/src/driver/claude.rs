//! Parses Claude Code's stream (`--output-format stream-json`, tested with 2.1.197 and 2.1.325).
//!
//! Messages with texts and tool results, nearly all of a stream, are parsed in one pass. Lines that occur once per run are parsed
//! a second time for their own fields, leniently: a field of the wrong type counts as missing. [`result`] parses the result,
//! strictly; [`tasks`] the background tasks.

mod result;
mod tasks;

use std::time::Duration;

use model::{AgentEvent, AgentText, McpServerState, RawJson, TextPart, ToolOutput};

use super::json::{Malformed, Read, Reader};
use super::refused_paths::RefusedErrno;
use super::summary::{self, PendingCall, Summary};
use super::{Lost, UNREACHABLE, exit_code_after, parameter, unknown};

/// The model name of errors that the CLI reports in place of the model.
const SYNTHETIC: &str = "<synthetic>";

/// The name prefix of Switchboard's file tools, in a call without a shell.
const FILE_TOOLS: &str = "mcp__files__";
/// The read-only ones.
const READING_FILE_TOOLS: [&str; 4] = ["read", "list", "search", "stat"];

/// Claude's tool for commands. A successful call may contain failed commands.
const SHELL: &str = "Bash";

/// Claude's tools that open one file.
const OWN_FILE_TOOLS: [&str; 4] = ["Read", "Edit", "Write", "NotebookEdit"];

/// The longest parsed error of a file tool: paths have at most 4 KiB.
const MAX_REFUSAL_CHARS: usize = 16 << 10;

/// The limit of reported tools and servers. Dozens are usual; a line full of them would take a multiple of its size in memory.
const MAX_LISTED: usize = 1000;

/// The limit of blocks in a message, for the same reason.
const MAX_BLOCKS: usize = 10_000;

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
    let mut line = Line::default();
    walk(bytes, &mut line)?;
    match line.kind {
        Some(b"assistant") => assistant(line, summary, on_event),
        Some(b"user") => user(line.message, summary, on_event),
        Some(b"stream_event") => stream_event(line, summary, on_event),
        Some(b"system") => system(line.subtype, bytes, summary, on_event)?,
        Some(b"result") => result::read(bytes, summary, on_event)?,
        Some(b"rate_limit_event") => rate_limit(bytes, summary, on_event)?,
        kind => on_event(unknown(kind, bytes)),
    }
    Ok(())
}

/// Classifies an unreadable line.
pub(super) fn lost(bytes: &[u8]) -> Lost {
    let mut line = Line::default();
    // Parses the readable prefix.
    let _ = walk(bytes, &mut line);
    match (line.kind, line.subtype) {
        // Only a result may have its type at the end, where a truncated line does not show it.
        (Some(b"result"), _) | (None, Some(_)) => Lost::LastWord,
        (None | Some(b"assistant" | b"stream_event"), _) => Lost::PerhapsText,
        (Some(_), _) => Lost::Other,
    }
}

fn walk<'a>(bytes: &'a [u8], line: &mut Line<'a>) -> Read<()> {
    let mut reader = Reader::new(bytes);
    reader.object(|key, value| {
        match key {
            // The message of a tool result is followed by a copy in another form: half of a long stream.
            _ if line.kind == Some(b"user") && !line.message.blocks.is_empty() => value.skip_rest()?,
            b"type" => line.kind = value.plain_string()?,
            b"subtype" => line.subtype = value.plain_string()?,
            b"message" => line.message = message(value)?,
            b"event" => line.delta = delta(value)?,
            b"parent_tool_use_id" => line.within = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    reader.end()
}

fn message<'a>(value: &mut Reader<'a>) -> Read<Message<'a>> {
    let mut message = Message::default();
    value.object_if(|key, value| {
        match key {
            b"model" => message.model = value.plain_string()?,
            b"content" => value.array_if(|item| {
                message.blocks.extend(block(item)?);
                if message.blocks.len() <= MAX_BLOCKS { Ok(()) } else { Err(Malformed) }
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
            b"type" => kind = value.plain_string()?,
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
                b"type" => delta.kind = value.plain_string()?,
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
    if main && !synthetic {
        summary.start_further_turn();
        summary.login_refusals = 0;
        summary.is_retrying = false;
        if let Some(model) = line.message.model {
            note_model(summary, model);
        }
    }
    for block in line.message.blocks {
        match (block.kind, block.text) {
            // An error of the CLI, repeated with its status in the result: not an answer.
            (b"text", Some(message)) if synthetic => on_event(AgentEvent::Warning { message }),
            (b"text", Some(text)) => {
                if main {
                    summary.set_text(&text);
                }
                on_event(AgentEvent::Text { text, part: TextPart::Whole, within: line.within.clone() });
            }
            (b"thinking", Some(text)) => on_event(AgentEvent::Thinking { text, part: TextPart::Whole }),
            (b"tool_use" | b"server_tool_use" | b"mcp_tool_use", _) => {
                let id = block.id.unwrap_or_else(|| "".into());
                let name = block.name.unwrap_or_else(|| "".into());
                let input = block.input.unwrap_or_else(|| RawJson::from_bytes(b"null"));
                tasks::note_tool(&name, &input, summary);
                if name.decode().starts_with(FILE_TOOLS) {
                    summary.add_call(&id, &name, None);
                } else if OWN_FILE_TOOLS.contains(&&*name.decode()) {
                    let target = parameter(&input, &[b"file_path", b"notebook_path"]);
                    summary.add_call(&id, &name, target);
                } else if name == *SHELL {
                    summary.add_call(&id, &name, parameter(&input, &[b"command"]));
                }
                on_event(AgentEvent::ToolUse { id, name, input, within: line.within.clone() });
            }
            _ => {}
        }
    }
}

/// Stores the model if it has changed; every message contains it.
fn note_model(summary: &mut Summary, model: &[u8]) {
    if summary.model.as_deref().map(str::as_bytes) != Some(model) {
        summary.model = Some(summary::name(&AgentText::from_bytes(model)));
    }
}

fn user(message: Message<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    for block in message.blocks {
        if block.kind == b"tool_result" {
            let id = block.id.unwrap_or_else(|| "".into());
            let Block { output, is_error, .. } = block;
            let call = summary.take_call(&id);
            match &call {
                Some(PendingCall { tool, target: Some(command), .. }) if tool == SHELL && !is_error => {
                    summary.refused_paths.search_output_of(command, &output);
                }
                Some(PendingCall { tool, target: Some(target), .. }) if tool != SHELL && is_error => {
                    summary.refused_paths.search_file_tool(target, tool == "Read", &output);
                }
                _ if is_error => summary.refused_paths.search(&output),
                _ => {}
            }
            if is_error {
                let denial = disabled_tool(&output).or_else(|| refused_file(&call?.tool, &output, summary));
                if let Some((tool, detail)) = denial {
                    let denial =
                        summary::denial(Some(&tool.into()), Some(&id), Some(&detail.as_str().into()));
                    summary.add_denial(denial.clone());
                    on_event(AgentEvent::PermissionDenied(denial));
                }
            }
            let exit_code = is_error.then(|| exit_code_after("Exit code ", &output)).flatten();
            let in_background = summary.background.is_command_running(&summary::name(&id));
            on_event(AgentEvent::ToolResult { id, output, is_error, exit_code, in_background });
        }
    }
}

/// Returns a disabled tool that the model used nevertheless, and the CLI's message. For an unknown tool the message only says
/// that it does not exist.
fn disabled_tool(output: &ToolOutput<'_>) -> Option<(String, String)> {
    let ToolOutput::Text(text) = output else { return None };
    let text = text.preview(1000);
    let text = text.strip_prefix("<tool_use_error>")?.strip_suffix("</tool_use_error>")?;
    let message = text.strip_prefix("Error: ").unwrap_or(text);
    let (tool, why) = message.strip_prefix("No such tool available: ")?.split_once(". ")?;
    let why = why.strip_prefix(tool)?;
    // 2.1.325 and 2.1.197.
    let is_disabled = why.starts_with(" is disabled") || why.starts_with(" exists but is not enabled");
    is_disabled.then(|| (tool.to_owned(), message.to_owned()))
}

/// Returns a file tool that may not read a path, and its message. Records a path that may not be written as a refused write.
fn refused_file(tool: &str, output: &ToolOutput<'_>, summary: &mut Summary) -> Option<(String, String)> {
    #[derive(serde::Deserialize)]
    struct Answer {
        error: Refused,
    }
    #[derive(serde::Deserialize)]
    struct Refused {
        code: String,
        message: String,
    }
    let ToolOutput::Text(text) = output else { return None };
    let Answer { error } = serde_json::from_str(&text.preview(MAX_REFUSAL_CHARS)).ok()?;
    if !["path_outside_workspace", "protected_path"].contains(&error.code.as_str()) {
        return None;
    }
    if READING_FILE_TOOLS.iter().any(|verb| tool.strip_prefix(FILE_TOOLS) == Some(verb)) {
        return Some((tool.to_owned(), error.message));
    }
    summary.refused_paths.refused_by_file_tool(&error.message, RefusedErrno::ReadOnly);
    None
}

fn stream_event(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let Some(text) = line.delta.text else { return };
    match line.delta.kind {
        Some(b"text_delta") => {
            if line.within.is_none() {
                summary.start_further_turn();
                summary.add_delta(&text);
            }
            on_event(AgentEvent::Text { text, part: TextPart::Partial, within: line.within });
        }
        Some(b"thinking_delta") => on_event(AgentEvent::Thinking { text, part: TextPart::Partial }),
        _ => {}
    }
}

fn system(
    subtype: Option<&[u8]>,
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    match subtype {
        Some(b"init") => init(bytes, summary, on_event)?,
        Some(b"api_retry") => retry(bytes, summary, on_event)?,
        Some(b"permission_denied") => denied(bytes, summary, on_event)?,
        Some(b"task_started") => tasks::started(bytes, summary, on_event)?,
        Some(b"task_updated") => tasks::updated(bytes, summary, on_event)?,
        Some(b"task_notification") => tasks::notified(bytes, summary, on_event)?,
        Some(b"background_tasks_changed") => tasks::changed(bytes, summary, on_event)?,
        Some(name) if name.ends_with(b"_fallback") => fallback(bytes, on_event)?,
        // Keep-alive messages without information.
        Some(b"status" | b"thinking_tokens") => {}
        subtype => on_event(unknown(subtype, bytes)),
    }
    Ok(())
}

fn init(bytes: &[u8], summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) -> Read<()> {
    let (mut session_id, mut version, mut model) = (None, None, None);
    let (mut tools, mut mcp_servers) = (Vec::new(), Vec::new());
    Reader::new(bytes).object(|key, value| {
        match key {
            b"session_id" => session_id = value.text()?,
            b"claude_code_version" => version = value.text()?,
            b"model" => model = value.text()?,
            b"tools" => value.array_if(|item| {
                listed(&mut tools, item.text()?);
                Ok(())
            })?,
            b"mcp_servers" => value.array_if(|item| {
                let state = server(item)?;
                listed(&mut mcp_servers, Some(state));
                Ok(())
            })?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    let session = session_id.as_ref().map(summary::name);
    // Each turn starts with this line; only the first is relevant.
    let is_further = session.is_some() && session == summary.session_id;
    summary.start_further_turn();
    summary.session_id = session;
    summary.agent_version = version.as_ref().map(summary::name);
    summary.model = model.as_ref().map(summary::name).or(summary.model.take());
    if !is_further {
        let session_id = session_id.unwrap_or_else(|| "".into());
        on_event(AgentEvent::SessionStarted { session_id, model, tools, mcp_servers });
    }
    Ok(())
}

fn listed<T>(list: &mut Vec<T>, item: Option<T>) {
    list.extend(item.filter(|_| list.len() < MAX_LISTED));
}

fn server<'a>(item: &mut Reader<'a>) -> Read<McpServerState<'a>> {
    let mut state = McpServerState { name: "".into(), status: "".into() };
    item.object_if(|key, value| {
        match key {
            b"name" => state.name = value.text()?.unwrap_or_else(|| "".into()),
            b"status" => state.status = value.text()?.unwrap_or_else(|| "".into()),
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(state)
}

fn retry(bytes: &[u8], summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) -> Read<()> {
    let (mut attempt, mut of, mut delay_ms, mut status, mut error) = (None, None, None, None, None);
    Reader::new(bytes).object(|key, value| {
        match key {
            b"attempt" => attempt = value.integer()?,
            b"max_retries" => of = value.integer()?,
            b"retry_delay_ms" => delay_ms = value.amount()?,
            b"error_status" => status = value.integer::<u16>()?,
            b"error" => error = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    let reason = error.as_ref().map(|error| summary::message(&error.decode())).unwrap_or_default();
    summary.retries = summary.retries.saturating_add(1);
    summary.is_retrying = true;
    let is_refused_login = status == Some(401) || reason == "authentication_failed";
    // Counted per request: the first notices of two subagents are not a second refusal.
    let refusals = attempt.unwrap_or(summary.login_refusals.saturating_add(1));
    summary.login_refusals = if is_refused_login { refusals } else { 0 };
    summary.last_error = Some(match status {
        Some(status) => format!("{reason} (HTTP {status})"),
        // No reply at all.
        None if reason == "unknown" => UNREACHABLE.to_owned(),
        None => reason.clone(),
    });
    on_event(AgentEvent::Retry {
        attempt,
        of,
        delay: delay_ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok()),
        status,
        reason: reason.into(),
    });
    Ok(())
}

fn denied(bytes: &[u8], summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) -> Read<()> {
    let (mut tool, mut id, mut detail) = (None, None, None);
    Reader::new(bytes).object(|key, value| {
        match key {
            b"tool_name" => tool = value.text()?,
            b"tool_use_id" => id = value.text()?,
            b"message" => detail = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    let denial = summary::denial(tool.as_ref(), id.as_ref(), detail.as_ref());
    summary.add_denial(denial.clone());
    on_event(AgentEvent::PermissionDenied(denial));
    Ok(())
}

fn fallback(bytes: &[u8], on_event: &mut impl FnMut(AgentEvent<'_>)) -> Read<()> {
    let (mut from, mut to, mut reason) = (None, None, None);
    Reader::new(bytes).object(|key, value| {
        match key {
            b"original_model" => from = value.text()?,
            b"fallback_model" => to = value.text()?,
            b"content" => reason = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    on_event(AgentEvent::ModelFallback { from, to, reason: reason.unwrap_or_else(|| "".into()) });
    Ok(())
}

fn rate_limit(bytes: &[u8], summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) -> Read<()> {
    let (mut status, mut resets_at) = (None, None);
    Reader::new(bytes).object(|key, value| match key {
        b"rate_limit_info" => value.object_if(|key, value| {
            match key {
                b"status" => status = value.text()?,
                b"resetsAt" => resets_at = value.integer()?,
                _ => value.skip()?,
            }
            Ok(())
        }),
        _ => value.skip(),
    })?;
    let Some(status) = status.as_ref().map(summary::name) else { return Ok(()) };
    if status == "rejected" {
        summary.limit_resets_at = resets_at;
    }
    if status != "allowed" {
        on_event(AgentEvent::Warning { message: format!("rate limit: {status}").into() });
    }
    Ok(())
}
