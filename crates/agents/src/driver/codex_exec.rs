//! Parses Codex's stream (`exec --json`, tested with 0.166.0).
//!
//! Everything that Codex does is an item that starts and completes. A top-level `error` reports a retry or precedes
//! `turn.failed`, and an item of type `error` is a warning: only `turn.failed` is the end. A command that has not completed at
//! the end of the turn was left in a background terminal; codex exits immediately and kills it.

use model::{AgentEvent, AgentText, Finish, RawJson, TextPart, ToolOutput, Usage};

use super::background::TaskEnd;
use super::json::{Read, Reader, check_strict};
use super::summary::{self, ReportedError, ReportedErrorCode, ReportedResult, Summary};
use super::{Lost, unknown};

#[derive(Default)]
struct Line<'a> {
    kind: Option<&'a [u8]>,
    thread: Option<AgentText<'a>>,
    message: Option<AgentText<'a>>,
    item: Item<'a>,
    usage: Option<Usage>,
}

/// An item of a turn.
#[derive(Default)]
pub(super) struct Item<'a> {
    pub(super) kind: Option<&'a [u8]>,
    pub(super) id: Option<AgentText<'a>>,
    pub(super) text: Option<AgentText<'a>>,
    /// The arguments of the tool: a command, arguments, a query, changes.
    pub(super) input: Option<&'a [u8]>,
    pub(super) server: Option<AgentText<'a>>,
    pub(super) tool: Option<AgentText<'a>>,
    pub(super) output: Option<ToolOutput<'a>>,
    failure: Option<ToolOutput<'a>>,
    pub(super) exit_code: Option<i32>,
    pub(super) status: Option<&'a [u8]>,
}

impl<'a> Item<'a> {
    /// Sets the error of a tool. Most tools have an empty one.
    pub(super) fn set_failure(&mut self, error: ToolOutput<'a>) {
        self.failure = Some(error).filter(|error| *error != ToolOutput::Nothing);
    }
}

pub(super) fn read(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    let mut line = Line::default();
    walk(bytes, &mut line)?;
    match line.kind {
        Some(b"thread.started") => {
            let session_id = line.thread.unwrap_or_else(|| "".into());
            summary.session_id = Some(summary::name(&session_id));
            on_event(AgentEvent::SessionStarted {
                session_id,
                model: None,
                tools: Vec::new(),
                mcp_servers: Vec::new(),
            });
        }
        // A new turn has its own end and its own answer.
        Some(b"turn.started") => summary.start_turn(),
        Some(b"item.updated") => {}
        Some(kind @ (b"item.started" | b"item.completed")) => {
            if line.item.kind != Some(b"error") {
                // The model has answered, so its API accepts the login.
                summary.login_refusals = 0;
                summary.is_retrying = false;
            }
            match kind {
                b"item.started" => started(line.item, summary, on_event),
                _ => completed(line.item, bytes, summary, on_event),
            }
        }
        Some(b"turn.completed" | b"turn.failed") => {
            check_strict(bytes)?;
            ended(line, summary, on_event);
        }
        Some(b"error") => handle_error(line.message, summary, on_event),
        kind => on_event(unknown(kind, bytes)),
    }
    Ok(())
}

/// Classifies an unreadable line.
pub(super) fn lost(bytes: &[u8]) -> Lost {
    let mut line = Line::default();
    // Parses the readable prefix.
    let _ = walk(bytes, &mut line);
    match (line.kind, line.item.kind) {
        (Some(b"turn.started" | b"turn.completed" | b"turn.failed"), _) => Lost::LastWord,
        (None, _) | (Some(b"item.completed"), None | Some(b"agent_message")) => Lost::PerhapsText,
        _ => Lost::Other,
    }
}

fn walk<'a>(bytes: &'a [u8], line: &mut Line<'a>) -> Read<()> {
    let mut reader = Reader::new(bytes);
    reader.object(|key, value| {
        match key {
            b"type" => line.kind = value.plain_string()?,
            b"thread_id" => line.thread = value.text()?,
            b"message" => line.message = value.text()?,
            b"error" => value.object_if(|key, value| {
                match key {
                    b"message" => line.message = value.text()?,
                    _ => value.skip()?,
                }
                Ok(())
            })?,
            b"item" => item(value, &mut line.item)?,
            b"usage" => line.usage = Some(usage(value)?),
            _ => value.skip()?,
        }
        Ok(())
    })?;
    reader.end()
}

fn item<'a>(value: &mut Reader<'a>, item: &mut Item<'a>) -> Read<()> {
    value.object_if(|key, value| {
        match key {
            b"type" => item.kind = value.plain_string()?,
            b"id" => item.id = value.text()?,
            b"text" | b"message" => item.text = value.text()?,
            b"command" | b"arguments" | b"query" | b"changes" | b"items" => item.input = Some(value.raw()?),
            b"server" => item.server = value.text()?,
            b"tool" => item.tool = value.text()?,
            b"aggregated_output" | b"result" => item.output = Some(value.tool_output()?),
            b"error" => item.set_failure(value.tool_output()?),
            b"exit_code" => item.exit_code = value.integer()?,
            b"status" => item.status = value.plain_string()?,
            _ => value.skip()?,
        }
        Ok(())
    })
}

/// Parses token counts. Codex includes cached input in `input_tokens` and reasoning in `output_tokens`.
fn usage(value: &mut Reader<'_>) -> Read<Usage> {
    let mut usage = Usage::default();
    value.object_if(|key, value| {
        match key {
            b"input_tokens" => usage.input = value.count()?,
            b"output_tokens" => usage.output = value.count()?,
            b"cached_input_tokens" => usage.cached = value.count()?,
            b"reasoning_output_tokens" => usage.reasoning = value.count()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(usage)
}

pub(super) fn started(item: Item<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    if let (Some(b"command_execution"), Some(id)) = (item.kind, &item.id) {
        summary.background.started(&summary::name(id), command(&item), Some(false));
    }
    if let Some(name) = tool_name(&item) {
        on_event(AgentEvent::ToolUse {
            name,
            id: item.id.unwrap_or_else(|| "".into()),
            input: RawJson::from_bytes(item.input.unwrap_or(b"null")),
            within: None,
        });
    }
}

/// Returns the command line of an item, for display.
fn command(item: &Item<'_>) -> String {
    let raw = item.input.unwrap_or_default();
    let inside = raw.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(raw);
    summary::name(&AgentText::from_json_string(inside, true))
}

/// Returns the name of a tool. Codex names its own tools only by the types of their items.
fn tool_name<'a>(item: &Item<'a>) -> Option<AgentText<'a>> {
    match (item.kind?, &item.server, &item.tool) {
        (b"mcp_tool_call", Some(server), Some(tool)) => Some(format!("mcp__{server}__{tool}").into()),
        (b"agent_message" | b"reasoning" | b"error" | b"todo_list", ..) => None,
        (kind, ..) => Some(AgentText::from_bytes(kind)),
    }
}

pub(super) fn completed(
    item: Item<'_>,
    line: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) {
    let text = || item.text.clone().unwrap_or_else(|| "".into());
    match item.kind {
        Some(b"agent_message") => {
            // After the end of a turn it belongs to another turn, whose start was lost and whose end is yet to come.
            if summary.reported.is_some() {
                summary.start_turn();
            }
            match &item.text {
                Some(text) => summary.set_text(text),
                None => summary.mark_text_lost(),
            }
            on_event(AgentEvent::Text { text: text(), part: TextPart::Whole, within: None });
        }
        Some(b"reasoning") => on_event(AgentEvent::Thinking { text: text(), part: TextPart::Whole }),
        Some(b"error") => on_event(AgentEvent::Warning { message: text() }),
        Some(b"todo_list") => {}
        Some(
            b"command_execution" | b"file_change" | b"mcp_tool_call" | b"web_search" | b"collab_tool_call",
        ) => tool_result(item, summary, on_event),
        kind => on_event(unknown(kind, line)),
    }
}

fn tool_result(item: Item<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    if let Some(id) = &item.id {
        summary.background.ended(&summary::name(id), TaskEnd::Completed);
    }
    let declined = item.status == Some(b"declined");
    if declined {
        let input = item.input.map(AgentText::from_bytes);
        let denial = summary::denial(tool_name(&item).as_ref(), item.id.as_ref(), input.as_ref());
        summary.add_denial(denial.clone());
        on_event(AgentEvent::PermissionDenied(denial));
    }
    let failed_exit = item.exit_code.is_some_and(|code| code != 0);
    let is_error = declined || failed_exit || item.failure.is_some() || item.status == Some(b"failed");
    let command = command(&item);
    let output = item.failure.or(item.output).unwrap_or(ToolOutput::Nothing);
    if is_error {
        summary.refused_paths.search(&output);
    } else if item.kind == Some(b"command_execution") {
        // A successful call may contain failed commands.
        summary.refused_paths.search_output_of(&command, &output);
    }
    if is_error && item.kind == Some(b"file_change") {
        // The item has no message, but it lists the files.
        for path in changed_paths(item.input.unwrap_or_default()) {
            summary.refused_paths.failed_to_write(&path);
        }
    }
    let (id, exit_code) = (item.id.unwrap_or_else(|| "".into()), item.exit_code);
    on_event(AgentEvent::ToolResult { id, output, is_error, exit_code, in_background: false });
}

/// Returns the files of a change: `[{"path":"/srv/x","kind":"add"}]`.
fn changed_paths(changes: &[u8]) -> Vec<String> {
    let mut paths = Vec::new();
    // Parses the readable prefix.
    let _ = Reader::new(changes).array_if(|change| {
        change.object_if(|key, value| {
            match key {
                b"path" => paths.extend(value.text()?.as_ref().map(summary::name)),
                _ => value.skip()?,
            }
            Ok(())
        })
    });
    paths
}

/// Records the end of a turn. It succeeded only if the line says so and contains no error.
fn ended(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let is_done = line.kind == Some(b"turn.completed") && line.message.is_none();
    if line.kind == Some(b"turn.completed") {
        summary.usage = line.usage;
        summary.turns = Some(summary.turns.unwrap_or(0).saturating_add(1));
        line.usage.into_iter().for_each(|usage| on_event(AgentEvent::Usage(usage)));
    }
    let message = line.message.map(|text| summary::message(&text.decode())).unwrap_or_default();
    let error = ReportedError { code: ReportedErrorCode::Other, http_status: None, message };
    summary.background.abandoned();
    summary.reported = Some(if is_done { ReportedResult::Done } else { ReportedResult::Failed(error) });
    on_event(AgentEvent::Finished { how: if is_done { Finish::Ok } else { Finish::Error } });
}

/// Handles an error line. `Reconnecting... 2/5` is a retry; `turn.failed` repeats anything else, unless the stream ends here.
pub(super) fn handle_error(
    message: Option<AgentText<'_>>,
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) {
    let message = message.unwrap_or_else(|| "".into());
    let words = message.to_string();
    match reconnecting(&words) {
        Some((attempt, of)) => {
            let status = http_status(&words);
            summary.retries = summary.retries.saturating_add(1);
            summary.is_retrying = true;
            let refusals = attempt.unwrap_or(summary.login_refusals.saturating_add(1));
            summary.login_refusals = if status == Some(401) { refusals } else { 0 };
            on_event(AgentEvent::Retry { attempt, of, delay: None, status, reason: message });
        }
        None => on_event(AgentEvent::Warning { message }),
    }
    summary.last_error = Some(summary::message(retry_reason(&words)));
}

/// Returns `timeout` of `Reconnecting... 1/5 (timeout)`, or the whole message.
fn retry_reason(words: &str) -> &str {
    let reason = words.strip_prefix("Reconnecting").and_then(|rest| rest.split_once(" ("));
    reason.and_then(|(_, reason)| reason.strip_suffix(')')).unwrap_or(words)
}

fn reconnecting(words: &str) -> Option<(Option<u32>, Option<u32>)> {
    let rest = words.strip_prefix("Reconnecting")?.trim_start_matches(['.', '…', ' ']);
    let (attempt, of) = rest.split([' ', '(']).next()?.split_once('/')?;
    Some((attempt.parse().ok(), of.parse().ok()))
}

/// Parses the status of `Reconnecting... 1/5 (unexpected status 401 Unauthorized: …`.
fn http_status(words: &str) -> Option<u16> {
    let (_, rest) = words.split_once("unexpected status ")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{http_status, reconnecting};

    #[test]
    fn codex_http_status_is_parsed_from_message() {
        assert_eq!(http_status("Reconnecting... 1/5 (unexpected status 401 Unauthorized: no)"), Some(401));
        assert_eq!(http_status("Reconnecting... 1/5 (timeout)"), None);
    }

    #[test]
    fn codex_retry_is_recognized_by_message() {
        assert_eq!(reconnecting("Reconnecting... 2/5"), Some((Some(2), Some(5))));
        assert_eq!(reconnecting("Reconnecting… 1/5 (timeout)"), Some((Some(1), Some(5))));
        assert_eq!(reconnecting("exceeded retry limit, last status: 429"), None);
    }
}
