//! The agent's events in an answer.

use serde_json::Value;

use super::Truncated;

/// The agent's events, with at most one gap.
pub(super) struct StreamEvents {
    pub(super) kept: Vec<Value>,
    left_out: u64,
    before_gap: usize,
}

impl StreamEvents {
    /// Reads the events from the metadata of a job.
    pub(super) fn read(mut metadata: Value) -> Option<Self> {
        let Value::Array(kept) = metadata.get_mut("stream_events")?.take() else { return None };
        let number = |name| metadata.get(name).and_then(Value::as_u64);
        let left_out = number("stream_events_left_out").unwrap_or(0);
        let before_gap = number("stream_events_before_gap").and_then(|count| usize::try_from(count).ok());
        let before_gap = before_gap.unwrap_or(kept.len()).min(kept.len());
        Some(Self { kept, left_out, before_gap })
    }

    pub(super) fn with_gap(kept: Vec<Value>, gap: &Truncated) -> Self {
        let before_gap = gap.events_before_gap.and_then(|count| usize::try_from(count).ok());
        Self { left_out: gap.left_out_events, before_gap: before_gap.unwrap_or(kept.len()), kept }
    }

    pub(super) fn gap(&self) -> Truncated {
        let events_before_gap = (self.left_out > 0).then_some(self.before_gap as u64);
        Truncated { left_out_events: self.left_out, events_before_gap, ..Truncated::default() }
    }

    /// Keeps events of the head and the tail within the limit. An existing gap grows.
    pub(super) fn cut_to(mut self, max_chars: usize) -> Self {
        let sizes: Vec<usize> = self.kept.iter().map(|event| event.to_string().chars().count()).collect();
        if sizes.iter().sum::<usize>() <= max_chars {
            return self;
        }
        let (gap_begins, gap_ends) =
            if self.left_out > 0 { (self.before_gap, self.before_gap) } else { (sizes.len(), 0) };
        let tail = within(max_chars / 3, sizes.iter().skip(gap_ends).rev());
        let head = within(max_chars - max_chars / 3, sizes.iter().take(gap_begins));
        let tail = tail.min(sizes.len() - head);
        self.left_out += (sizes.len() - head - tail) as u64;
        self.kept.drain(head..sizes.len() - tail);
        Self { before_gap: head, ..self }
    }
}

/// Returns how many of the sizes fit into the limit.
fn within<'a>(limit: usize, sizes: impl Iterator<Item = &'a usize>) -> usize {
    let mut sum = 0_usize;
    sizes
        .take_while(|size| {
            sum += **size;
            sum <= limit
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns ten events, with a gap in the middle if some were left out.
    fn events(left_out: u64) -> StreamEvents {
        let kept = (0..10).map(|number| Value::from(100 + number)).collect();
        StreamEvents { kept, left_out, before_gap: 5 }
    }

    #[test]
    fn cut_events_have_one_gap() {
        for already in [0, 7] {
            assert_eq!(events(already).cut_to(30).kept.len(), 10);
            let cut = events(already).cut_to(18);
            assert_eq!(cut.kept, [100, 101, 102, 103, 108, 109]);
            assert_eq!((cut.before_gap, cut.left_out), (4, already + 4));
        }
        let none = events(0).cut_to(2);
        assert_eq!((none.kept.len(), none.before_gap, none.left_out), (0, 0, 10));
    }

    #[test]
    fn existing_gap_grows_in_place() {
        let uneven = StreamEvents { before_gap: 1, ..events(3) };
        let cut = uneven.cut_to(29);
        assert_eq!((cut.kept[0].clone(), cut.before_gap), (Value::from(100), 1));
        assert_eq!(cut.kept.last(), Some(&Value::from(109)));
    }
}
