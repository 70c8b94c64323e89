//! What is kept with the end of a job beside its outcome: the supervisor's report, and the agent's events when they are wanted.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;

use agents::{ParseLimits, Parser};
use model::{AgentEvent, AgentKind, RunReport, TreeEnd};
use serde_json::value::RawValue;

/// How much of the agent's events is kept from the beginning, in bytes.
const HEAD_BYTES: usize = 700 << 10;
/// How much from the end.
const TAIL_BYTES: usize = 324 << 10;
/// How much of a file is read at once.
const CHUNK: usize = 64 << 10;

/// Under which name it is kept that the model spoke, in a job whose outcome has no answer.
pub(crate) const MODEL_SPOKE: &str = "model_spoke";

/// What is kept with the end beside the outcome.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub(super) report: Option<RunReport>,
    events: HeadAndTail,
}

impl Reported {
    pub(super) fn keep(&mut self, event: &AgentEvent<'_>) {
        match serde_json::to_string(event).and_then(RawValue::from_string) {
            Ok(raw) => self.events.push(raw),
            // An event is made of text and numbers: there is none that cannot be written.
            Err(_) => self.events.left_out += 1,
        }
    }

    /// Keeps the events of a run that was followed by nobody who is here now.
    pub(super) fn keep_all_of(&mut self, output: &Path, agent: AgentKind) -> io::Result<()> {
        let mut file = match supervisor::open_regular(output) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let mut parser = Parser::new(agent, ParseLimits::default());
        let mut chunk = vec![0; CHUNK];
        loop {
            match file.read(&mut chunk)? {
                0 => break,
                count => parser.feed(&chunk[..count], &mut |event| self.keep(&event)),
            }
        }
        parser.finish(&mut |event| self.keep(&event));
        Ok(())
    }

    pub(super) fn metadata(
        &self,
        exposes_stream: bool,
        tree: Option<TreeEnd>,
        report: Option<RunReport>,
        model_spoke: bool,
    ) -> Option<String> {
        let mut metadata = serde_json::Map::new();
        if model_spoke {
            metadata.insert(MODEL_SPOKE.to_owned(), true.into());
        }
        if let Some(tree) = tree {
            metadata.insert("tree".to_owned(), serde_json::to_value(tree).ok()?);
        }
        if let Some(report) = report {
            metadata.insert("report".to_owned(), serde_json::to_value(report).ok()?);
        }
        if exposes_stream {
            let HeadAndTail { head, tail, left_out, .. } = &self.events;
            let events: Vec<&RawValue> = head.iter().chain(tail).map(AsRef::as_ref).collect();
            metadata.insert("stream_events".to_owned(), serde_json::to_value(events).ok()?);
            metadata.insert("stream_events_left_out".to_owned(), (*left_out).into());
            metadata.insert("stream_events_before_gap".to_owned(), head.len().into());
        }
        serde_json::to_string(&metadata).ok()
    }
}

/// The first and the last events, with one gap between them when there were more.
#[derive(Debug, Default)]
struct HeadAndTail {
    head: Vec<Box<RawValue>>,
    head_bytes: usize,
    head_is_full: bool,
    tail: VecDeque<Box<RawValue>>,
    tail_bytes: usize,
    left_out: u64,
}

impl HeadAndTail {
    fn push(&mut self, event: Box<RawValue>) {
        let bytes = event.get().len();
        // The first that does not fit closes the head, so that nothing is missing within it.
        self.head_is_full |= self.head_bytes + bytes > HEAD_BYTES;
        if !self.head_is_full {
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
            self.left_out += 1;
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
    fn what_is_missing_is_one_gap_between_the_first_and_the_last() {
        let mut kept = HeadAndTail::default();
        for number in 0..3_000 {
            // One is longer than all that is kept.
            kept.push(event(number, if number == 1_000 { 2 << 20 } else { 1_000 }));
        }
        let number = |event: &RawValue| event.get().trim_matches('"').parse::<usize>().unwrap();
        let head: Vec<usize> = kept.head.iter().map(|event| number(event)).collect();
        let tail: Vec<usize> = kept.tail.iter().map(|event| number(event)).collect();
        assert!(head.iter().copied().eq(0..head.len()), "nothing is missing at the beginning");
        assert!(tail.iter().copied().eq(3_000 - tail.len()..3_000), "nor at the end");
        assert_eq!(kept.left_out + (head.len() + tail.len()) as u64, 3_000);
        assert!(kept.head_bytes <= HEAD_BYTES && kept.tail_bytes <= TAIL_BYTES);
    }

    #[test]
    fn nothing_is_missing_of_what_fits() {
        let mut kept = HeadAndTail::default();
        (0..1_000).for_each(|number| kept.push(event(number, 1_000)));
        assert_eq!((kept.left_out, kept.head.len() + kept.tail.len()), (0, 1_000));
    }
}
