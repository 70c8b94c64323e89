//! The Gemini CLI's stream (`--output-format stream-json`, seen with 0.61.0).

use model::{AgentEvent, AgentText, Finish, Part, PermissionDenial, RawJson, ToolOutput, Usage};
use serde_json::Value;

use super::json::{Read, Reader};
use super::summary::{Complaint, ComplaintCode, Said, Summary};
use super::unknown;

/// Tools that change something. Without leave to use one, the CLI does not even register it, and answers the model that
/// there is no such tool; of any other name that answer only means that the model made it up.
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
    let line = walk(bytes)?;
    match line.kind {
        Some(b"init") => init(line, summary, on_event),
        Some(b"message") => message(line, summary, on_event),
        Some(b"tool_use") => {
            summary.end_text();
            on_event(AgentEvent::ToolUse {
                id: line.tool_id.unwrap_or_else(|| "".into()),
                name: line.tool_name.unwrap_or_else(|| "".into()),
                input: line.parameters.unwrap_or_else(|| RawJson::from_bytes(b"null")),
            });
        }
        Some(b"tool_result") => tool_result(line, summary, on_event),
        Some(b"error") => {
            let message = line.message.or(line.error.message).unwrap_or_else(|| "".into());
            if line.severity == Some(b"error") {
                summary.last_trouble = Some(message.to_string());
            }
            on_event(AgentEvent::Warning { message });
        }
        Some(b"result") => result(line, bytes, summary, on_event),
        kind => on_event(unknown(kind, bytes)),
    }
    Ok(())
}

fn walk(bytes: &[u8]) -> Read<Line<'_>> {
    let mut line = Line::default();
    let mut reader = Reader::new(bytes);
    reader.object(|key, value| {
        match key {
            b"type" => line.kind = value.word()?,
            b"session_id" => line.session = value.text()?,
            b"model" => line.model = value.text()?,
            b"role" => line.role = value.word()?,
            b"content" => line.content = value.text()?,
            b"delta" => line.is_delta = value.is_true()?,
            b"tool_name" => line.tool_name = value.text()?,
            b"tool_id" => line.tool_id = value.text()?,
            b"parameters" => line.parameters = Some(value.raw_json()?),
            b"status" => line.status = value.word()?,
            b"output" => line.output = Some(value.tool_output()?),
            b"message" => line.message = value.text()?,
            b"severity" => line.severity = value.word()?,
            b"error" => line.error = error(value)?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    reader.end()?;
    Ok(line)
}

fn error<'a>(value: &mut Reader<'a>) -> Read<Error<'a>> {
    let mut error = Error::default();
    value.object_if(|key, value| {
        match key {
            b"type" => error.kind = value.word()?,
            b"message" => error.message = value.text()?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(error)
}

fn init(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let session_id = line.session.unwrap_or_else(|| "".into());
    summary.session_id = Some(session_id.to_string());
    summary.model = line.model.as_ref().map(ToString::to_string);
    let (tools, mcp_servers) = (Vec::new(), Vec::new());
    on_event(AgentEvent::SessionStarted { session_id, model: line.model, tools, mcp_servers });
}

fn message(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let (Some(b"assistant"), Some(text)) = (line.role, line.content) else { return };
    if line.is_delta {
        summary.saw_piece(&text);
    } else {
        summary.saw_text(&text);
    }
    let part = if line.is_delta { Part::Partial } else { Part::Whole };
    on_event(AgentEvent::Text { text, part, within: None });
}

fn tool_result(line: Line<'_>, summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    let id = line.tool_id.unwrap_or_else(|| "".into());
    // The id begins with the tool's name: `run_shell_command__call-0-0`.
    let words = id.to_string();
    let tool = words.split("__").next().unwrap_or_default();
    let unregistered =
        line.error.kind == Some(b"tool_not_registered") && NEEDS_LEAVE.contains(&tool.as_bytes());
    if unregistered || line.error.kind == Some(b"policy_violation") {
        let denial = PermissionDenial {
            tool: tool.to_owned(),
            tool_use_id: Some(words.clone()),
            detail: line.error.message.as_ref().map(ToString::to_string),
        };
        summary.saw_denial(denial.clone());
        on_event(AgentEvent::PermissionDenied(denial));
    }
    let failure = line.error.message.map(ToolOutput::Text);
    on_event(AgentEvent::ToolResult {
        id,
        output: line.output.or(failure).unwrap_or(ToolOutput::Nothing),
        is_error: line.status == Some(b"error"),
    });
}

fn result(line: Line<'_>, bytes: &[u8], summary: &mut Summary, on_event: &mut impl FnMut(AgentEvent<'_>)) {
    summary.usage = usage(bytes);
    summary.usage.into_iter().for_each(|usage| on_event(AgentEvent::Usage(usage)));
    let done = line.status == Some(b"success");
    summary.said = Some(if done {
        Said::Done
    } else {
        let code = match line.error.kind {
            Some(b"FatalTurnLimitedError") => ComplaintCode::MaxTurns,
            _ => ComplaintCode::Other,
        };
        let words = line.error.message.map(|message| message.to_string()).unwrap_or_default();
        Said::Failed(Complaint { code, http_status: None, words })
    });
    on_event(AgentEvent::Finished { how: if done { Finish::Ok } else { Finish::Error } });
}

/// Gemini counts cached input within `input_tokens`, and reasoning only in the total.
fn usage(bytes: &[u8]) -> Option<Usage> {
    let line: Value = serde_json::from_str(&String::from_utf8_lossy(bytes)).ok()?;
    let count = |key: &str| line["stats"][key].as_u64().unwrap_or(0);
    line.get("stats")?;
    let (input, written) = (count("input_tokens"), count("output_tokens"));
    let reasoning = count("total_tokens").saturating_sub(input + written);
    Some(Usage { input, output: written + reasoning, cached: count("cached"), reasoning })
}
