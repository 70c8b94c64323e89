//! What is kept with the end of a job beside its outcome: the supervisor's report, and the agent's events when they are wanted.

use model::{AgentEvent, RunReport, TreeEnd};

/// How much of the agent's events is kept.
const STREAM_EVENTS_BYTES: usize = 1 << 20;

/// What is kept with the end beside the outcome.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub(super) report: Option<RunReport>,
    events: Vec<Box<serde_json::value::RawValue>>,
    bytes: usize,
    left_out: u64,
}

impl Reported {
    pub(super) fn keep(&mut self, event: &AgentEvent<'_>) {
        let raw = serde_json::to_string(event).and_then(serde_json::value::RawValue::from_string);
        match raw {
            Ok(raw) if self.bytes + raw.get().len() <= STREAM_EVENTS_BYTES => {
                self.bytes += raw.get().len();
                self.events.push(raw);
            }
            _ => self.left_out += 1,
        }
    }

    pub(super) fn metadata(&self, exposes_stream: bool, tree: Option<TreeEnd>) -> Option<String> {
        let mut metadata = serde_json::Map::new();
        if let Some(tree) = tree {
            metadata.insert("tree".to_owned(), serde_json::to_value(tree).ok()?);
        }
        if let Some(report) = &self.report {
            metadata.insert("report".to_owned(), serde_json::to_value(report).ok()?);
        }
        if exposes_stream {
            metadata.insert("stream_events".to_owned(), serde_json::to_value(&self.events).ok()?);
            metadata.insert("stream_events_left_out".to_owned(), self.left_out.into());
        }
        serde_json::to_string(&metadata).ok()
    }
}
