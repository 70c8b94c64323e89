//! Merges the text deltas of an agent with the full messages that follow them.
//!
//! Agents stream deltas, full messages, or both, and restart an interrupted message with different text. A reader of the merged
//! stream sees every character once.

/// The deltas received since the last full message.
#[derive(Debug, Default)]
pub struct DeltaMerger {
    pending: String,
}

/// The part of a full message that its deltas did not contain.
#[derive(Debug, PartialEq, Eq)]
pub enum MergedText<'a> {
    /// The message continues its deltas with this text, which may be empty.
    Continues(&'a str),
    /// The whole message: it had no deltas, or the deltas belong to another message.
    New(&'a str),
}

impl DeltaMerger {
    /// Records a delta that was shown.
    pub fn add(&mut self, delta: &str) {
        self.pending.push_str(delta);
    }

    /// Returns whether deltas are pending that no full message has confirmed.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Drops the pending deltas: their full message will not arrive.
    pub fn clear(&mut self) {
        self.pending.clear();
    }

    /// Compares a full message with the pending deltas and removes those that it confirms.
    pub fn merge<'a>(&mut self, message: &'a str) -> MergedText<'a> {
        if self.pending.is_empty() {
            return MergedText::New(message);
        }
        // All deltas of a message with several texts may arrive before the first of its full texts.
        if let Some(later) = self.pending.strip_prefix(message) {
            self.pending = later.to_owned();
            return MergedText::Continues("");
        }
        let pending = std::mem::take(&mut self.pending);
        message.strip_prefix(pending.as_str()).map_or(MergedText::New(message), MergedText::Continues)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merger_with(deltas: &[&str]) -> DeltaMerger {
        let mut merger = DeltaMerger::default();
        for delta in deltas {
            merger.add(delta);
        }
        merger
    }

    #[test]
    fn message_without_deltas_is_new() {
        assert_eq!(merger_with(&[]).merge("a b"), MergedText::New("a b"));
    }

    #[test]
    fn message_adds_text_missing_from_its_deltas() {
        let mut merger = merger_with(&["a ", "b"]);
        assert_eq!(merger.merge("a b c"), MergedText::Continues(" c"));
        assert!(!merger.is_pending());
        assert_eq!(merger.merge("d"), MergedText::New("d"));
    }

    #[test]
    fn deltas_of_two_messages_are_confirmed_in_order() {
        let mut merger = merger_with(&["one", "two"]);
        assert_eq!(merger.merge("one"), MergedText::Continues(""));
        assert!(merger.is_pending());
        assert_eq!(merger.merge("two"), MergedText::Continues(""));
    }

    #[test]
    fn restarted_message_is_shown_in_full() {
        assert_eq!(merger_with(&["Half an ans"]).merge("Another answer"), MergedText::New("Another answer"));
    }
}
