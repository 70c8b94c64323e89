//! Claude's background tasks: shell commands and subagents that go on after their tool call returned.
//!
//! 2.1.325 announces the full list of live tasks (`background_tasks_changed`) beside the start and the end of each one;
//! 2.1.197 only the latter. Every line is read, so that a missing one does no harm.

use model::{AgentEvent, AgentText, RawJson};

use crate::parse::background::TaskEnd;
use crate::parse::json::{Read, Reader};
use crate::parse::summary::{self, Summary};

/// The tools with which the model itself stops a task.
const STOP_TOOLS: [&str; 3] = ["TaskStop", "KillShell", "KillBash"];

#[derive(Default)]
struct TaskLine {
    id: String,
    description: String,
    /// What the CLI does for itself, such as a plugin refresh: nothing waits for it.
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
        // 2.1.197 does not say whether a subagent runs in the foreground; a command that does is no task.
        if line.is_command {
            summary.background.started_by(&line.id, &line.tool_use_id);
        }
    }
    Ok(())
}

/// `{"task_id":…,"patch":{"status":"killed"}}`.
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

/// Notes when the model asks to stop a task.
pub(super) fn note_tool(tool: &AgentText<'_>, input: &RawJson<'_>, summary: &mut Summary) {
    if STOP_TOOLS.iter().any(|name| *tool == **name) {
        summary.background.stop_requested(input.text().as_bytes());
    }
}

/// Changes the tasks, and reports those that run now if they are others than before.
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
            // Work that goes on elsewhere does not need this process either.
            b"ambient" | b"skip_transcript" | b"off_host" => line.is_housekeeping |= value.is_true()?,
            b"is_backgrounded" => line.in_background = value.flag()?,
            b"tool_use_id" => line.tool_use_id = name(value)?,
            b"task_type" => line.is_command = value.word()? == Some(b"local_bash"),
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

/// The end that a status means; none of one that goes on.
fn end_of(status: &str) -> Option<TaskEnd> {
    Some(match status {
        "pending" | "running" | "paused" => return None,
        "completed" => TaskEnd::Completed,
        "failed" => TaskEnd::Failed,
        "stopped" | "killed" => TaskEnd::Stopped,
        _ => TaskEnd::Unknown,
    })
}
