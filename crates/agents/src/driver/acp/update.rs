//! The updates of a session: text, reasoning, tool calls and their results.

use model::{AgentEvent, AgentText, RawJson, TextPart, ToolOutput};

use super::terminals::{TerminalOutput, terminal_in};
use super::turn::OpenTool;
use super::{Acp, Step, text_field};
use crate::driver::json::{Read, Reader};
use crate::driver::json_rpc::RpcMessage;
use crate::driver::summary::{self, Summary};
use crate::driver::{Lost, parameter, unknown};

/// The limit of tool calls without a result, whose arguments are kept.
const MAX_OPEN_TOOLS: usize = 100;

/// The limit of the arguments that are kept for a pending call.
const MAX_PENDING_INPUT: usize = 16 * 1024;

#[derive(Default)]
struct Update<'a> {
    session: Option<AgentText<'a>>,
    kind: Option<&'a [u8]>,
    content: Option<&'a [u8]>,
    message: Option<AgentText<'a>>,
    tool: Option<AgentText<'a>>,
    title: Option<AgentText<'a>>,
    tool_kind: Option<&'a [u8]>,
    status: Option<&'a [u8]>,
    input: Option<&'a [u8]>,
    output: Option<&'a [u8]>,
    cost: Option<&'a [u8]>,
    meta: Option<&'a [u8]>,
}

/// Classifies an unreadable update.
pub(super) fn lost(line: &[u8]) -> Lost {
    let mut update = Update::default();
    let _ = read_line(line, &mut update);
    match update.kind {
        None | Some(b"agent_message_chunk") => Lost::PerhapsText,
        Some(_) => Lost::Other,
    }
}

/// Parses the readable start of a line.
fn read_line<'a>(line: &'a [u8], update: &mut Update<'a>) -> Read<()> {
    Reader::new(line).object(|key, value| match key {
        b"params" => read_params(value, update),
        _ => value.skip(),
    })
}

fn read_params<'a>(value: &mut Reader<'a>, update: &mut Update<'a>) -> Read<()> {
    value.object_if(|key, value| match key {
        b"update" => read_update(value, update),
        b"sessionId" => {
            update.session = value.text()?;
            Ok(())
        }
        _ => value.skip(),
    })
}

fn read_update<'a>(value: &mut Reader<'a>, update: &mut Update<'a>) -> Read<()> {
    value.object_if(|key, value| {
        match key {
            b"sessionUpdate" => update.kind = value.plain_string()?,
            b"content" => update.content = Some(value.raw()?),
            b"messageId" => update.message = value.text()?,
            b"toolCallId" => update.tool = value.text()?,
            b"title" => update.title = value.text()?,
            b"kind" => update.tool_kind = value.plain_string()?,
            b"status" => update.status = value.plain_string()?,
            b"rawInput" => update.input = Some(value.raw()?),
            b"rawOutput" => update.output = Some(value.raw()?),
            b"cost" => update.cost = Some(value.raw()?),
            b"_meta" => update.meta = Some(value.raw()?),
            _ => value.skip()?,
        }
        Ok(())
    })
}

impl Acp {
    pub(super) fn update(
        &mut self,
        message: &RpcMessage<'_>,
        line: &[u8],
        summary: &mut Summary,
        on_event: &mut impl FnMut(AgentEvent<'_>),
    ) -> Read<()> {
        let mut update = Update::default();
        read_params(&mut Reader::new(message.params.unwrap_or(b"{}")), &mut update)?;
        // Others replay an earlier conversation.
        if self.step != Step::Prompting {
            return Ok(());
        }
        // That of a session within this one, for example.
        if update.session.as_ref().is_some_and(|session| session.decode() != self.session) {
            on_event(unknown(update.kind, line));
            return Ok(());
        }
        match update.kind {
            Some(b"agent_message_chunk") => self.text(&update, line, summary, on_event),
            Some(b"agent_thought_chunk") => {
                if let Some(text) = update.content.and_then(|content| text_field(content, b"text")) {
                    on_event(AgentEvent::Thinking { text, part: TextPart::Partial });
                }
            }
            Some(b"tool_call" | b"tool_call_update") => self.tool(&update, summary, on_event),
            Some(b"usage_update") => note_usage(&update, summary),
            // The state of the agent's user interface.
            Some(
                b"user_message_chunk"
                | b"available_commands_update"
                | b"current_mode_update"
                | b"config_option_update"
                | b"session_info_update",
            ) => {}
            kind => on_event(unknown(kind, line)),
        }
        Ok(())
    }

    fn text(
        &mut self,
        update: &Update<'_>,
        line: &[u8],
        summary: &mut Summary,
        on_event: &mut impl FnMut(AgentEvent<'_>),
    ) {
        if let Some(counts) = update.meta.and_then(usage_of_meta) {
            self.turn.count(counts);
        }
        let Some(text) = update.content.and_then(|content| text_field(content, b"text")) else {
            return on_event(unknown(update.kind, line));
        };
        if text.is_empty() {
            return;
        }
        let message = update.message.as_ref().map(summary::name);
        if message.is_some() && message != self.turn.message {
            if summary.end_text() {
                let text = AgentText::from("\n\n");
                on_event(AgentEvent::Text { text, part: TextPart::Partial, within: None });
            }
            self.turn.message = message;
        }
        summary.login_refusals = 0;
        summary.is_retrying = false;
        self.turn.note_text(&text);
        summary.add_delta(&text);
        on_event(AgentEvent::Text { text, part: TextPart::Partial, within: None });
    }

    fn tool(
        &mut self,
        update: &Update<'_>,
        summary: &mut Summary,
        on_event: &mut impl FnMut(AgentEvent<'_>),
    ) {
        summary.end_text();
        self.turn.note_tool();
        let Some(id) = &update.tool else { return };
        let key = summary::name(id);
        if !self.turn.tools.contains_key(&key) && self.turn.tools.len() >= MAX_OPEN_TOOLS {
            return;
        }
        let is_new = !self.turn.tools.contains_key(&key);
        let is_ended = matches!(update.status, Some(b"completed" | b"failed"));
        // An update about a call that has ended already, such as its final title.
        if is_new && update.kind == Some(b"tool_call_update") && !is_ended && update.input.is_none() {
            return;
        }
        let tool = self.turn.tools.entry(key.clone()).or_default();
        tool.note(update);
        let input = update.input.filter(|input| !matches!(*input, b"{}" | b"null"));
        if !tool.is_emitted && (is_ended || update.status == Some(b"in_progress") || tool.is_known(input)) {
            tool.is_emitted = true;
            let earlier = tool.input.take();
            let input = input.or(earlier.as_deref()).unwrap_or(b"{}");
            on_event(AgentEvent::ToolUse {
                id: id.clone(),
                name: AgentText::from(tool.name.clone()),
                input: RawJson::from_bytes(input),
                within: None,
            });
        }
        if is_ended {
            let tool = self.turn.tools.remove(&key).unwrap_or_default();
            let terminal = tool.terminal.as_deref().and_then(|id| self.turn.terminals.remove(id));
            end_tool(id.clone(), &tool, terminal, update, summary, on_event);
        }
    }
}

impl OpenTool {
    /// Returns whether the arguments of a pending call are all there. Some agents announce a call with a part of them.
    fn is_known(&mut self, input: Option<&[u8]>) -> bool {
        let Some(input) = input else { return false };
        if self.command.is_some() || input.len() > MAX_PENDING_INPUT {
            return true;
        }
        self.input = Some(input.to_vec());
        false
    }

    /// Adds what an update tells about the call.
    fn note(&mut self, update: &Update<'_>) {
        if self.name.is_empty() {
            let title = || update.title.as_ref().map(summary::name);
            let kind = update.tool_kind.filter(|kind| *kind != b"other");
            let kind = kind.map(|kind| String::from_utf8_lossy(kind).into_owned());
            self.name = kind.or_else(title).unwrap_or_default();
        }
        self.is_read |= matches!(update.tool_kind, Some(b"read" | b"search"));
        let input = update.input.map(RawJson::from_bytes);
        let target = input.and_then(|input| {
            parameter(&input, &[b"command", b"file_path", b"filePath", b"path", b"absolute_path"])
        });
        self.command = target.or_else(|| self.command.take());
        let terminal = update.content.and_then(terminal_in).as_ref().map(summary::name);
        self.terminal = terminal.or_else(|| self.terminal.take());
    }
}

fn end_tool(
    id: AgentText<'_>,
    tool: &OpenTool,
    terminal: Option<TerminalOutput>,
    update: &Update<'_>,
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) {
    let terminal_code = terminal.as_ref().and_then(|terminal| terminal.exit_code);
    let exit_code =
        update.output.and_then(exit_code).or_else(|| update.meta.and_then(exit_code)).or(terminal_code);
    let output = match (output_of(update), terminal) {
        (ToolOutput::Nothing | ToolOutput::Json(_), Some(terminal)) => ToolOutput::Text(terminal.text.into()),
        (output, _) => output,
    };
    let is_error = update.status == Some(b"failed") || exit_code.is_some_and(|code| code != 0);
    match &tool.command {
        Some(target) if is_error && target.starts_with('/') => {
            summary.refused_paths.search_file_tool(target, tool.is_read, &output);
        }
        _ if is_error => summary.refused_paths.search(&output),
        Some(command) => summary.refused_paths.search_output_of(command, &output),
        None => {}
    }
    on_event(AgentEvent::ToolResult { id, output, is_error, exit_code, in_background: false });
}

/// Returns the output of a tool: the text in its content, or else its raw output.
fn output_of<'a>(update: &Update<'a>) -> ToolOutput<'a> {
    let raw = update.output.and_then(|raw| Reader::new(raw).tool_output().ok());
    match raw {
        Some(ToolOutput::Text(text)) => return ToolOutput::Text(text),
        Some(ToolOutput::Nothing) | None => {}
        Some(ToolOutput::Json(json)) => {
            let text = update.output.and_then(|raw| {
                [b"output".as_slice(), b"text", b"stdout", b"content"]
                    .iter()
                    .find_map(|name| text_field(raw, name))
            });
            let text = text.or_else(|| update.content.and_then(first_text));
            return text.map_or(ToolOutput::Json(json), ToolOutput::Text);
        }
    }
    update.content.and_then(first_text).map_or(ToolOutput::Nothing, ToolOutput::Text)
}

/// Returns the first text of a list of contents.
fn first_text(content: &[u8]) -> Option<AgentText<'_>> {
    let mut found = None;
    let read = Reader::new(content).array_if(|item| {
        item.object_if(|key, value| match key {
            b"content" if found.is_none() => {
                found = text_field(value.raw()?, b"text");
                Ok(())
            }
            _ => value.skip(),
        })
    });
    read.ok().and(found)
}

/// Returns the exit code in a raw output or in its metadata, at the top or one level below.
fn exit_code(raw: &[u8]) -> Option<i32> {
    fn is_code(key: &[u8]) -> bool {
        matches!(key, b"exitCode" | b"exit_code" | b"exit")
    }
    let mut code = None;
    let read = Reader::new(raw).object_if(|key, value| match key {
        key if is_code(key) => {
            code = value.integer()?.or(code);
            Ok(())
        }
        b"metadata" | b"terminal_exit" => value.object_if(|key, value| {
            if is_code(key) {
                code = value.integer()?.or(code);
                return Ok(());
            }
            value.skip()
        }),
        _ => value.skip(),
    });
    read.ok().and(code)
}

fn usage_of_meta(meta: &[u8]) -> Option<&[u8]> {
    let mut usage = None;
    let read = Reader::new(meta).object_if(|key, value| {
        match key {
            b"usage" => usage = Some(value.raw()?),
            _ => value.skip()?,
        }
        Ok(())
    });
    read.ok().and(usage)
}

/// Notes the cost of the session so far, and the model.
fn note_usage(update: &Update<'_>, summary: &mut Summary) {
    let mut cost = (None, None);
    let _ = Reader::new(update.cost.unwrap_or(b"null")).object_if(|key, value| {
        match key {
            b"amount" => cost.0 = value.amount()?,
            b"currency" => cost.1 = value.plain_string()?,
            _ => value.skip()?,
        }
        Ok(())
    });
    if let (Some(amount), Some(b"USD")) = cost {
        summary.cost_usd = Some(amount);
    }
    if let Some(model) = update.meta.and_then(|meta| text_field(meta, b"_claude/model")) {
        summary.model = Some(summary::name(&model));
    }
}
