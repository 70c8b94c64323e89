//! Parses the Gemini CLI's stream (`--output-format stream-json`, tested with 0.61.0).

use model::{AgentEvent, AgentText, Finish, RawJson, TextPart, ToolOutput, Usage};

use super::background::TaskEnd;
use super::json::{Read, Reader, check_strict};
use super::refused_paths::RefusedErrno;
use super::summary::{self, ReportedError, ReportedErrorCode, ReportedResult, Summary};
use super::{Lost, exit_code_after, parameter, unknown};

/// The tool for commands, and the prefix of its result if the command continues in the background.
const SHELL: &str = "run_shell_command";
const MOVED: &str = "Command moved to background";

/// The complete output of a command that was never started.
const BLOCKED: &str = "Blocked: command substitution detected in shell command.";
/// The syntax that is blocked. A command without it has printed the message itself.
const SUBSTITUTIONS: [&str; 4] = ["$(", "`", "<(", ">("];
/// The complete output of a silent command that gemini stopped, without the number of minutes.
const CANCELED: (&str, &str) =
    ("Command was automatically cancelled because it exceeded the timeout of ", " minutes without output.");

/// The prefix of a file tool's error for a path outside of its directories.
const OUTSIDE: &str = "Path not in workspace";
/// The file tools that write.
const WRITING_FILE_TOOLS: [&str; 2] = ["write_file", "replace"];
/// The longest parsed error of a file tool.
const MAX_REFUSAL_CHARS: usize = 4 << 10;

/// Tools with side effects. Without permission the CLI does not register them and replies that there is no such tool; for any
/// other name that reply means that the model made it up.
const NEEDS_LEAVE: [&[u8]; 4] = [b"run_shell_command", b"write_file", b"replace", b"web_fetch"];

#[derive(Default)]
struct Line<'a> {
    kind: Option<&'a [u8]>,
    session: Option<AgentText<'a>>,
    model: Option<AgentText<'a>>,
    role: Option<&'a [u8]>,
    content: Option<AgentText<'a>>,
    is_delta: bool,
    tool_name: Option<AgentText<'a>>,
    tool_id: Option<AgentText<'a>>,
    parameters: Option<RawJson<'a>>,
    status: Option<&'a [u8]>,
    output: Option<ToolOutput<'a>>,
    message: Option<AgentText<'a>>,
    severity: Option<&'a [u8]>,
    error: Error<'a>,
    stats: Option<Stats<'a>>,
}

#[derive(Default)]
struct Stats<'a> {
    total: u64,
    input: u64,
    output: u64,
    cached: u64,
    /// The model that wrote most. Others route requests or compress the conversation.
    model: Option<&'a [u8]>,
}

#[derive(Default)]
struct Error<'a> {
    kind: Option<&'a [u8]>,
    message: Option<AgentText<'a>>,
}

pub(super) fn read(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    let mut line = Line::default();
    walk(bytes, &mut line)?;
    match line.kind {
        Some(b"init") => init(line, summary, on_event),
        Some(b"message") => message(line, summary, on_event),
        Some(b"tool_use") => {
            summary.end_text();
            note_tool(&line, summary);
            on_event(AgentEvent::ToolUse {
                id: line.tool_id.unwrap_or_else(|| "".into()),
                name: line.tool_name.unwrap_or_else(|| "".into()),
                input: line.parameters.unwrap_or_else(|| RawJson::from_bytes(b"null")),
                within: None,
            });
        }
        Some(b"tool_result") => tool_result(line, summary, on_event),
        Some(b"error") => {
            let message = line.message.or(line.error.message).unwrap_or_else(|| "".into());
            if line.severity == Some(b"error") {
                summary.last_error = Some(summary::message(&message.decode()));
            }
            on_event(AgentEvent::Warning { message });
        }
        Some(b"result") => {
            check_strict(bytes)?;
            result(&line, summary, on_event);
        }
        kind => on_event(unknown(kind, bytes)),
    }
    Ok(())
}

/// Classifies an unreadable line.
pub(super) fn lost(bytes: &[u8]) -> Lost {
    let mut line = Line::default();
    // Parses the readable prefix.
    let _ = walk(bytes, &mut line);
    match (line.kind, line.role) {
        (Some(b"result"), _) => Lost::LastWord,
        (None, _) | (Some(b"message"), None | Some(b"assistant")) => Lost::PerhapsText,
        _ => Lost::Other,
    }
}

fn walk<'a>(bytes: &'a [u8], line: &mut Line<'a>) -> Read<()> {
    let mut reader = Reader::new(bytes);
    reader.object(|key, value| {
        match key {
            b"type" => line.kind = value.plain_string()?,
            b"session_id" => line.session = value.text()?,
            b"model" => line.model = value.text()?,
            b"role" => line.role = value.plain_string()?,
            b"content" => line.content = value.text()?,
            b"delta" => line.is_delta = value.is_true()?,
            b"tool_name" => line.tool_name = value.text()?,
            b"tool_id" => line.tool_id = value.text()?,
            b"parameters" => line.parameters = Some(value.raw_json()?),
            b"status" => line.status = value.plain_string()?,
            b"output" => line.output = Some(value.tool_output()?),
            b"message" => line.message = value.text()?,
            b"severity" => line.severity = value.plain_string()?,
            b"error" => line.error = error(value)?,
            b"stats" => line.stats = Some(stats(value)?),
            _ => value.skip()?,
        }
        Ok(())
    })?;
    reader.end()
}

fn stats<'a>(value: &mut Reader<'a>) -> Read<Stats<'a>> {
    let mut stats = Stats::default();
    value.object_if(|key, value| {
        match key {
            b"total_tokens" => stats.total = value.count()?,
            b"input_tokens" => stats.input = value.count()?,
            b"output_tokens" => stats.output = value.count()?,
            b"cached" => stats.cached = value.count()?,
            b"models" => stats.model = main_model(value)?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(stats)
}

fn main_model<'a>(value: &mut Reader<'a>) -> Read<Option<&'a [u8]>> {
    let (mut model, mut most) = (None, 0);
    value.object_if(|name, value| {
        let mut written = 0;
        value.object_if(|key, value| {
            match key {
                b"output_tokens" => written = value.count()?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        // The router comes first and may write as much as the model that answers.
        if model.is_none() || written >= most {
            (model, most) = (Some(name), written);
        }
        Ok(())
    })?;
    Ok(model)
}

fn error<'a>(value: &mut Reader<'a>) -> Read<Error<'a>> {
    let mut error = Error::default();
    value.object_if(|key, value| {
        match key {
            b"type" => error.kind = value.plain_string()?,
            b"message" => error.message = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(error)
}

fn init(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let session_id = line.session.unwrap_or_else(|| "".into());
    summary.session_id = Some(summary::name(&session_id));
    // `auto` is not a model.
    summary.model = line.model.as_ref().map(summary::name).filter(|model| model != "auto");
    let (tools, mcp_servers) = (Vec::new(), Vec::new());
    on_event(AgentEvent::SessionStarted { session_id, model: line.model, tools, mcp_servers });
}

fn message(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let (Some(b"assistant"), Some(text)) = (line.role, line.content) else { return };
    if line.is_delta {
        summary.add_delta(&text);
    } else {
        summary.set_text(&text);
    }
    let part = if line.is_delta { TextPart::Partial } else { TextPart::Whole };
    on_event(AgentEvent::Text { text, part, within: None });
}

/// Stores the command or the path of a tool call, because the result may contain neither.
fn note_tool(line: &Line<'_>, summary: &mut Summary) {
    let (Some(name), Some(id), Some(parameters)) = (&line.tool_name, &line.tool_id, &line.parameters) else {
        return;
    };
    if *name == *SHELL {
        let command = parameter(parameters, &[b"command"]).unwrap_or_default();
        summary.background.started(&summary::name(id), command, Some(false));
    } else if let Some(target) = parameter(parameters, &[b"file_path"]) {
        summary.add_call(id, name, Some(target));
    }
}

fn tool_result(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    // The tool call ended the text already, but that line may have been lost.
    summary.end_text();
    let id = line.tool_id.unwrap_or_else(|| "".into());
    // The id starts with the tool's name: `run_shell_command__call-0-0`.
    let words = summary::name(&id);
    let tool = words.split("__").next().unwrap_or_default();
    let unregistered =
        line.error.kind == Some(b"tool_not_registered") && NEEDS_LEAVE.contains(&tool.as_bytes());
    if unregistered || line.error.kind == Some(b"policy_violation") {
        let denial = summary::denial(Some(&tool.into()), Some(&id), line.error.message.as_ref());
        summary.add_denial(denial.clone());
        on_event(AgentEvent::PermissionDenied(denial));
    }
    let failure = line.error.message.map(ToolOutput::Text);
    let output = line.output.or(failure).unwrap_or(ToolOutput::Nothing);
    // Gemini reports both as success.
    let blocked = blocked_command(summary.background.open_description(&words), &output);
    if let Some(message) = &blocked {
        let denial = summary::denial(Some(&SHELL.into()), Some(&id), Some(&message.as_str().into()));
        summary.add_denial(denial.clone());
        on_event(AgentEvent::PermissionDenied(denial));
    }
    let is_canceled = is_canceled_command(tool, &output);
    // Gemini reports a failed command as a successful tool. Only one without output is reported with its exit code.
    let exit_code = exit_code_after("Command exited with code: ", &output);
    let is_error = line.status == Some(b"error") || exit_code.is_some() || blocked.is_some() || is_canceled;
    let file_tool = summary.take_call(&id).and_then(|call| call.target);
    let writes = WRITING_FILE_TOOLS.contains(&tool);
    if is_error && let Some(message) = outside_workspace(&output) {
        summary.refused_paths.refused_by_file_tool(&message, RefusedErrno::AgentRule { writes });
    } else if let (true, Some(target)) = (is_error, file_tool) {
        summary.refused_paths.search_file_tool(&target, !writes, &output);
    } else if is_error {
        summary.refused_paths.search(&output);
    } else if let Some(command) = summary.background.open_description(&words) {
        summary.refused_paths.search_output_of(command, &output);
    }
    let went_on = matches!(&output, ToolOutput::Text(text) if text.preview(MOVED.len()) == MOVED);
    if went_on {
        summary.background.moved_to_background(&words);
    } else {
        summary.background.ended(&words, TaskEnd::Completed);
    }
    on_event(AgentEvent::ToolResult { id, output, is_error, exit_code, in_background: went_on });
}

/// Returns a file tool's error for a path outside of its directories.
fn outside_workspace(output: &ToolOutput<'_>) -> Option<String> {
    let ToolOutput::Text(text) = output else { return None };
    Some(text.preview(MAX_REFUSAL_CHARS)).filter(|text| text.starts_with(OUTSIDE))
}

/// Returns the message of a command that gemini refused to start.
fn blocked_command(command: Option<&str>, output: &ToolOutput<'_>) -> Option<String> {
    let ToolOutput::Text(message) = output else { return None };
    let command = command?;
    let is_cut = command.len() + 4 > summary::NAME_BYTES;
    let has_substitution = is_cut || SUBSTITUTIONS.iter().any(|syntax| command.contains(syntax));
    (has_substitution && *message == *BLOCKED).then(|| format!("`{command}` rejected: {BLOCKED}"))
}

fn is_canceled_command(tool: &str, output: &ToolOutput<'_>) -> bool {
    let ToolOutput::Text(text) = output else { return false };
    let (start, end) = CANCELED;
    // A little longer than the message; the output may be megabytes.
    let text = text.preview(start.len() + end.len() + 20);
    let minutes = text.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
    tool == SHELL && minutes.is_some_and(|minutes| minutes.parse::<f64>().is_ok())
}

/// Records the result. It is a success only if the line says so and contains no error.
fn result(line: &Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    summary.withdraw_result();
    summary.usage = line.stats.as_ref().map(usage);
    summary.usage.into_iter().for_each(|usage| on_event(AgentEvent::Usage(usage)));
    // The first line contains the requested model, such as `auto`.
    if let Some(model) = line.stats.as_ref().and_then(|stats| stats.model) {
        summary.model = Some(summary::name(&AgentText::from_bytes(model)));
    }
    let is_error = line.error.kind.is_some() || line.error.message.is_some();
    let reported = match line.status {
        Some(b"success") if !is_error => ReportedResult::Done,
        Some(b"success" | b"error") => {
            let code = match line.error.kind {
                Some(b"FatalTurnLimitedError") => ReportedErrorCode::MaxTurns,
                _ => ReportedErrorCode::Other,
            };
            let message = line.error.message.as_ref().map(AgentText::decode).unwrap_or_default();
            ReportedResult::Failed(ReportedError {
                code,
                http_status: None,
                message: summary::message(&message),
            })
        }
        _ => ReportedResult::Unreadable("unknown status".to_owned()),
    };
    summary.background.abandoned();
    on_event(AgentEvent::Finished {
        how: if reported == ReportedResult::Done { Finish::Ok } else { Finish::Error },
    });
    summary.reported = Some(reported);
}

/// Returns token counts. Gemini includes cached input in `input_tokens` and reasoning only in the total.
fn usage(stats: &Stats<'_>) -> Usage {
    let &Stats { total, input, output: written, cached, .. } = stats;
    let reasoning = total.saturating_sub(input.saturating_add(written));
    Usage { input, output: written.saturating_add(reasoning), cached, reasoning }
}
