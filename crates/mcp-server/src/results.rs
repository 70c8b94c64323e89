//! Tool results: structured content with its readable text.

use calls::{Answer, Changes, JobStatus, Truncated, Verification, VerificationState};
use chrono::{DateTime, SecondsFormat};
use model::Timestamp;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

use render::text::{format_count, format_dollars};

/// Returns a result with structured content and text.
pub(crate) fn tool_result(structured: &impl Serialize, text: String) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    // Never fails: the results consist of strings, numbers and lists.
    result.structured_content = serde_json::to_value(structured).ok();
    result
}

/// Returns the result of a call. An unsuccessful call is an error, so that hosts show it as one.
pub(crate) fn call_result(answer: &Answer) -> CallToolResult {
    let mut result = tool_result(answer, answer_text(answer));
    if matches!(answer.status, JobStatus::Failed | JobStatus::Timeout | JobStatus::Cancelled) {
        result.is_error = Some(true);
    }
    result
}

/// Minimum number of characters per answer, when several share the limit.
const MIN_CHARS: usize = 1_000;

/// Returns the limit on the characters of each answer, if so many share it.
pub(crate) fn share_chars(max_chars: usize, answers: usize) -> usize {
    // A smaller limit of the caller counts.
    (max_chars / answers.max(1)).max(MIN_CHARS.min(max_chars))
}

/// Appends notes to a note.
pub(crate) fn join_notes(note: Option<String>, more: Vec<String>) -> Option<String> {
    let notes: Vec<String> = note.into_iter().chain(more).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// Returns an answer as text: the agent's output first, then the facts about the call.
pub(crate) fn answer_text(answer: &Answer) -> String {
    let mut parts = Vec::new();
    if let Some(error) = &answer.error {
        let deadline = error.deadline.as_ref().map(|which| format!(", {which}")).unwrap_or_default();
        parts.push(format!(
            "{} ({}{deadline}): {}\nhint: {}",
            answer.status.as_str(),
            error.kind,
            error.message,
            error.hint
        ));
    }
    if !answer.output.is_empty() {
        parts.push(answer.output.clone());
    }
    if let Some(stderr) = &answer.stderr {
        parts.push(format!("stderr ends with:\n{stderr}"));
    }
    parts.extend(answer.verified.as_ref().map(describe_verification));
    if let Some(note) = &answer.note {
        parts.push(note.clone());
    }
    parts.extend(answer.truncated.as_ref().and_then(describe_gaps));
    parts.push(footer(answer));
    parts.join("\n\n")
}

/// Describes a verification, with the end of its output if it failed.
fn describe_verification(verification: &Verification) -> String {
    let Verification { state, command, reason, output, repairs, restored, .. } = verification;
    let reason = reason.as_deref().unwrap_or_default();
    let repaired = match repairs {
        0 => String::new(),
        repairs => format!(" after {}", format_count(*repairs, "repair", "repairs")),
    };
    let mut text = match state {
        VerificationState::Passed => format!("verified: `{command}` passed{repaired}"),
        VerificationState::Failed => format!("not verified: `{command}` {reason}{repaired}"),
        VerificationState::NotRun => format!("not verified: {reason}"),
    };
    if !restored.is_empty() {
        text += &["\nrestored before the verification: ", &restored.join(", ")].concat();
    }
    if let Some(output) = output.as_ref().filter(|_| *state == VerificationState::Failed) {
        text += &["\nits output ends with:\n", output].concat();
    }
    text
}

/// Describes the missing parts that the output itself does not mention.
fn describe_gaps(truncated: &Truncated) -> Option<String> {
    let Truncated { left_out_bytes, left_out_events, events_before_gap, .. } = truncated;
    let mut missing = Vec::new();
    if *left_out_bytes > 0 {
        missing.push(format!("{left_out_bytes} bytes of the answer were too long to store as text"));
    }
    if *left_out_events > 0 {
        let after = events_before_gap.unwrap_or_default();
        missing
            .push(format!("{left_out_events} events are left out of stream_events, after the first {after}"));
    }
    (!missing.is_empty()).then(|| format!("{}; call_output returns the complete output", missing.join("; ")))
}

fn footer(answer: &Answer) -> String {
    let mut facts = vec![answer.status.as_str().to_owned(), format!("job {}", answer.job_id)];
    facts.extend(answer.session_id.as_ref().map(|id| format!("session {id}")));
    facts.extend(answer.model.clone());
    if answer.duration_ms > 0 {
        facts.push(format!("{} ms", answer.duration_ms));
    }
    facts.extend(answer.num_turns.map(|turns| format_count(turns, "turn", "turns")));
    if let Some(changes) = answer.changes.as_ref().filter(|changes| changes.files_changed > 0) {
        facts.push(format!("{} (see call_changes)", describe_changes(changes)));
    }
    facts.extend(answer.cost_usd.filter(|cost| *cost > 0.0).map(format_dollars));
    format!("[{}]", facts.join(" · "))
}

/// Describes changes in a few words: `changed 3 files (+20 -4)`.
pub(crate) fn describe_changes(changes: &Changes) -> String {
    let Changes { files_changed, lines_added, lines_removed, .. } = changes;
    let noun = if *files_changed == 1 { "file" } else { "files" };
    format!("changed {files_changed} {noun} (+{lines_added} -{lines_removed})")
}

/// Formats a timestamp as ISO 8601.
pub(crate) fn format_timestamp(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    let time = DateTime::from_timestamp_millis(millis).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_events_are_described_in_text() {
        let cut = Truncated { left_out_events: 7, events_before_gap: Some(3), ..Truncated::default() };
        let text = "7 events are left out of stream_events, after the first 3; call_output returns the complete output";
        assert_eq!(describe_gaps(&cut).as_deref(), Some(text));
        assert_eq!(
            describe_gaps(&Truncated { left_out_chars: 9, ..Truncated::default() }),
            None,
            "the output mentions it"
        );
    }

    #[test]
    fn timestamp_is_formatted_in_utc_with_milliseconds() {
        assert_eq!(format_timestamp(Timestamp::from_millis(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
    }
}
