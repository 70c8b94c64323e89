//! Parses Claude's background tasks: shell commands and subagents that outlive their tool call.
//!
//! 2.1.325 reports the list of live tasks (`background_tasks_changed`) besides the start and the exit of each; 2.1.197 only the
//! latter. All are parsed, so that a missing line does no harm.

use model::{AgentEvent, AgentText, RawJson};

use crate::driver::background::TaskEnd;
use crate::driver::json::{Read, Reader};
use crate::driver::summary::{self, Summary};

/// The tools with which the model stops a task.
const STOP_TOOLS: [&str; 3] = ["TaskStop", "KillShell", "KillBash"];

#[derive(Default)]
struct TaskLine {
    id: String,
    description: String,
    /// Internal work of the CLI, such as a plugin refresh, that needs no waiting.
    is_housekeeping: bool,
    in_background: Option<bool>,
    tool_use_id: String,
    is_command: bool,
    status: Option<String>,
}

pub(super) fn started(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    let line = read(&mut Reader::new(bytes))?;
    if !line.is_housekeeping {
        report_change(summary, on_event, |summary| {
            summary.background.started(&line.id, line.description, line.in_background);
        });
        // 2.1.197 does not report whether a subagent runs in the foreground; a foreground command is not a task.
        if line.is_command {
            summary.background.started_by(&line.id, &line.tool_use_id);
        }
    }
    Ok(())
}

/// Parses `{"task_id":…,"patch":{"status":"killed"}}`.
pub(super) fn updated(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    let (mut id, mut patch) = (String::new(), TaskLine::default());
    Reader::new(bytes).object(|key, value| {
        match key {
            b"task_id" => id = name(value)?,
            b"patch" => patch = read(value)?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    report_change(summary, on_event, |summary| {
        if patch.in_background == Some(true) {
            summary.background.moved_to_background(&id);
        }
        if let Some(end) = patch.status.as_deref().and_then(end_of) {
            summary.background.ended(&id, end);
        }
    });
    Ok(())
}

pub(super) fn notified(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    let line = read(&mut Reader::new(bytes))?;
    report_change(summary, on_event, |summary| {
        if let Some(end) = line.status.as_deref().and_then(end_of) {
            summary.background.ended(&line.id, end);
        }
    });
    Ok(())
}

pub(super) fn changed(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    let mut live = Vec::new();
    Reader::new(bytes).object(|key, value| match key {
        b"tasks" => value.array_if(|item| {
            let task = read(item)?;
            if !task.is_housekeeping && live.len() < super::MAX_LISTED {
                live.push((task.id, task.description));
            }
            Ok(())
        }),
        _ => value.skip(),
    })?;
    report_change(summary, on_event, |summary| summary.background.listed(&live));
    Ok(())
}

/// Records a request of the model to stop a task.
pub(super) fn note_tool(tool: &AgentText<'_>, input: &RawJson<'_>, summary: &mut Summary) {
    if STOP_TOOLS.iter().any(|name| *tool == **name) {
        summary.background.stop_requested(input.text().as_bytes());
    }
}

/// Applies a change, and emits the running tasks if they have changed.
fn report_change(
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
    change: impl FnOnce(&mut Summary),
) {
    let running = |summary: &Summary| summary.background.running().map(str::to_owned).collect::<Vec<_>>();
    let before = running(summary);
    change(summary);
    let now = running(summary);
    if now != before {
        on_event(AgentEvent::BackgroundTasks { running: now.into_iter().map(AgentText::from).collect() });
    }
}

fn read(value: &mut Reader<'_>) -> Read<TaskLine> {
    let mut line = TaskLine::default();
    value.object_if(|key, value| {
        match key {
            b"task_id" => line.id = name(value)?,
            b"description" => line.description = name(value)?,
            // Remote work does not need this process either.
            b"ambient" | b"skip_transcript" | b"off_host" => line.is_housekeeping |= value.is_true()?,
            b"is_backgrounded" => line.in_background = value.boolean()?,
            b"tool_use_id" => line.tool_use_id = name(value)?,
            b"task_type" => line.is_command = value.plain_string()? == Some(b"local_bash"),
            b"status" => line.status = Some(name(value)?),
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(line)
}

fn name(value: &mut Reader<'_>) -> Read<String> {
    Ok(value.text()?.as_ref().map(summary::name).unwrap_or_default())
}

/// Returns the exit status for a task status. `None` if the task still runs.
fn end_of(status: &str) -> Option<TaskEnd> {
    Some(match status {
        "pending" | "running" | "paused" => return None,
        "completed" => TaskEnd::Completed,
        "failed" => TaskEnd::Failed,
        "stopped" | "killed" => TaskEnd::Stopped,
        _ => TaskEnd::Unknown,
    })
}
