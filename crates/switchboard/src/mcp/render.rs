//! Answers as a person or a model reads them, beside the structured form.

use calls::{Answer, JobStatus, Truncated};
use chrono::{DateTime, SecondsFormat};
use model::Timestamp;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;

use crate::text::{counted, dollars};

/// A result with its structured form and its readable one.
pub(crate) fn result(structured: &impl Serialize, text: String) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    // What is passed in here is made of text, numbers and lists; there is nothing in it that JSON cannot hold.
    result.structured_content = serde_json::to_value(structured).ok();
    result
}

/// Adds the next step to the note of an unfinished job.
pub(crate) fn with_next_step(mut answer: Answer) -> Answer {
    if !answer.status.is_final() {
        let note = answer.note.take().unwrap_or_else(|| answer.status.as_str().to_owned());
        answer.note = Some(format!("{note}; wait for it with call_wait, or stop it with call_cancel"));
    }
    answer
}

/// The result of a call. One that came to nothing is an error, so that a host shows it as one.
pub(crate) fn answered(answer: &Answer) -> CallToolResult {
    let mut result = result(answer, answer_text(answer));
    if matches!(answer.status, JobStatus::Failed | JobStatus::Timeout | JobStatus::Cancelled) {
        result.is_error = Some(true);
    }
    result
}

/// An answer in words: the agent's own first, ours about it after.
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
    if let Some(note) = &answer.note {
        parts.push(note.clone());
    }
    parts.extend(answer.truncated.as_ref().and_then(missing));
    parts.push(footer(answer));
    parts.join("\n\n")
}

/// What is missing that the output itself does not tell.
fn missing(truncated: &Truncated) -> Option<String> {
    let Truncated { left_out_bytes, left_out_events, events_before_gap, .. } = truncated;
    let mut missing = Vec::new();
    if *left_out_bytes > 0 {
        missing.push(format!("{left_out_bytes} bytes of the answer were too many to be kept as text"));
    }
    if *left_out_events > 0 {
        let after = events_before_gap.unwrap_or_default();
        missing
            .push(format!("{left_out_events} events are left out of stream_events, after the first {after}"));
    }
    (!missing.is_empty()).then(|| format!("{}; call_output has all that was printed", missing.join("; ")))
}

fn footer(answer: &Answer) -> String {
    let mut facts = vec![answer.status.as_str().to_owned(), format!("job {}", answer.job_id)];
    facts.extend(answer.session_id.as_ref().map(|id| format!("session {id}")));
    facts.extend(answer.model.clone());
    if answer.duration_ms > 0 {
        facts.push(format!("{} ms", answer.duration_ms));
    }
    facts.extend(answer.num_turns.map(|turns| counted(turns, "turn", "turns")));
    facts.extend(answer.cost_usd.filter(|cost| *cost > 0.0).map(dollars));
    format!("[{}]", facts.join(" · "))
}

/// A moment as ISO 8601.
pub(crate) fn moment(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    let moment = DateTime::from_timestamp_millis(millis).unwrap_or_default();
    moment.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_in_words_too() {
        let cut = Truncated { left_out_events: 7, events_before_gap: Some(3), ..Truncated::default() };
        let told =
            "7 events are left out of stream_events, after the first 3; call_output has all that was printed";
        assert_eq!(missing(&cut).as_deref(), Some(told));
        assert_eq!(
            missing(&Truncated { left_out_chars: 9, ..Truncated::default() }),
            None,
            "the output tells it"
        );
    }

    #[test]
    fn a_moment_is_written_in_utc_with_milliseconds() {
        assert_eq!(moment(Timestamp::from_millis(1_700_000_000_123)), "2023-11-14T22:13:20.123Z");
    }
}
