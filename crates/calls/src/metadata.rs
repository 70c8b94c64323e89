//! The metadata stored with the end of a job: the supervisor's report and, on request, the agent's events.

use std::collections::VecDeque;
use std::io;

use model::{AgentEvent, AgentKind, Job, RunReport, TreeEnd};
use serde_json::Value;
use serde_json::value::RawValue;
use supervisor::Spool;

use crate::job_changes::{Changes, JobChanges};
use crate::verification::Verification;

/// The limit on events from the start, in bytes.
const HEAD_BYTES: usize = 700 << 10;
/// The limit on events from the end, in bytes.
const TAIL_BYTES: usize = 324 << 10;

/// The key that marks a job without an answer whose model said or did something.
pub(crate) const MODEL_SPOKE: &str = "model_spoke";

/// The key of the changes in the git worktree.
pub(crate) const CHANGES: &str = "changes";
/// The key of the reason for which they are not recorded.
pub(crate) const CHANGES_NOT_RECORDED: &str = "changes_not_recorded";

/// The key of the verification of the agent's work.
pub(crate) const VERIFIED: &str = "verified";

/// Facts about a job's runs that are stored beside its outcome.
#[derive(Debug, Default)]
pub(crate) struct JobMetadata {
    pub model_spoke: bool,
    pub tree: Option<TreeEnd>,
    pub report: Option<RunReport>,
    pub changes: Option<JobChanges>,
    pub verification: Option<Verification>,
}

/// Returns the reason for which the changes of a job are not recorded.
pub(crate) fn missing_changes(job: &Job) -> Option<String> {
    let metadata: Value = serde_json::from_str(job.metadata.as_deref()?).ok()?;
    Some(metadata.get(CHANGES_NOT_RECORDED)?.as_str()?.to_owned())
}

/// Returns the stored verification of a job.
pub(crate) fn read_verification(job: &Job) -> Option<Verification> {
    let mut metadata: Value = serde_json::from_str(job.metadata.as_deref()?).ok()?;
    serde_json::from_value(metadata.get_mut(VERIFIED)?.take()).ok()
}

impl JobMetadata {
    /// Serializes the metadata, with the events of the runs if they are wanted.
    pub fn to_json(&self, events: Option<&EventLog>) -> Option<String> {
        let mut metadata = serde_json::Map::new();
        if self.model_spoke {
            metadata.insert(MODEL_SPOKE.to_owned(), true.into());
        }
        if let Some(tree) = self.tree {
            metadata.insert("tree".to_owned(), serde_json::to_value(tree).ok()?);
        }
        if let Some(report) = &self.report {
            metadata.insert("report".to_owned(), serde_json::to_value(report).ok()?);
        }
        match &self.changes {
            None => {}
            Some(JobChanges::Recorded(changes, checkout)) => {
                let changes = Changes { checkout: checkout.clone(), ..Changes::from(&**changes) };
                metadata.insert(CHANGES.to_owned(), serde_json::to_value(changes).ok()?);
            }
            Some(JobChanges::NotRecorded { reason }) => {
                metadata.insert(CHANGES_NOT_RECORDED.to_owned(), reason.as_str().into());
            }
        }
        if let Some(verification) = &self.verification {
            metadata.insert(VERIFIED.to_owned(), serde_json::to_value(verification).ok()?);
        }
        if let Some(EventLog { head, tail, dropped, .. }) = events {
            let events: Vec<&RawValue> = head.iter().chain(tail).map(AsRef::as_ref).collect();
            metadata.insert("stream_events".to_owned(), serde_json::to_value(events).ok()?);
            metadata.insert("stream_events_left_out".to_owned(), (*dropped).into());
            metadata.insert("stream_events_before_gap".to_owned(), head.len().into());
        }
        serde_json::to_string(&metadata).ok()
    }
}

/// The first and the last events of a job, with one gap between them if there were too many.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    head: Vec<Box<RawValue>>,
    head_bytes: usize,
    is_head_full: bool,
    tail: VecDeque<Box<RawValue>>,
    tail_bytes: usize,
    dropped: u64,
}

impl EventLog {
    pub fn push(&mut self, event: &AgentEvent<'_>) {
        match serde_json::to_string(event).and_then(RawValue::from_string) {
            Ok(raw) => self.push_raw(raw),
            // Cannot happen: an event consists of text and numbers.
            Err(_) => self.dropped += 1,
        }
    }

    /// Appends the events of a run that was followed by an earlier daemon.
    pub fn push_output(&mut self, spool: &Spool, agent: AgentKind) -> io::Result<()> {
        agent_run::replay_output(spool, agent, &mut |event| self.push(&event))
    }

    fn push_raw(&mut self, event: Box<RawValue>) {
        let bytes = event.get().len();
        // The first event that does not fit closes the head, so that the head has no gap.
        self.is_head_full |= self.head_bytes + bytes > HEAD_BYTES;
        if !self.is_head_full {
            self.head_bytes += bytes;
            self.head.push(event);
            return;
        }
        self.tail_bytes += bytes;
        self.tail.push_back(event);
        while self.tail_bytes > TAIL_BYTES
            && let Some(oldest) = self.tail.pop_front()
        {
            self.tail_bytes -= oldest.get().len();
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: usize, bytes: usize) -> Box<RawValue> {
        RawValue::from_string(format!("\"{}{number:04}\"", "0".repeat(bytes))).unwrap()
    }

    #[test]
    fn dropped_events_are_one_gap_between_head_and_tail() {
        let mut log = EventLog::default();
        for number in 0..3_000 {
            // One event exceeds both limits.
            log.push_raw(event(number, if number == 1_000 { 2 << 20 } else { 1_000 }));
        }
        let number = |event: &RawValue| event.get().trim_matches('"').parse::<usize>().unwrap();
        let head: Vec<usize> = log.head.iter().map(|event| number(event)).collect();
        let tail: Vec<usize> = log.tail.iter().map(|event| number(event)).collect();
        assert!(head.iter().copied().eq(0..head.len()), "the head has no gap");
        assert!(tail.iter().copied().eq(3_000 - tail.len()..3_000), "nor has the tail");
        assert_eq!(log.dropped + (head.len() + tail.len()) as u64, 3_000);
        assert!(log.head_bytes <= HEAD_BYTES && log.tail_bytes <= TAIL_BYTES);
    }

    #[test]
    fn few_events_are_all_kept() {
        let mut log = EventLog::default();
        (0..1_000).for_each(|number| log.push_raw(event(number, 1_000)));
        assert_eq!((log.dropped, log.head.len() + log.tail.len()), (0, 1_000));
    }
}
