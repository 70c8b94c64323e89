//! The end of a command's output, within a limit.

use std::collections::VecDeque;

/// The limit of a terminal without one.
pub(crate) const DEFAULT_LIMIT: usize = 1024 * 1024;
/// The upper bound of all limits.
pub(crate) const MAX_LIMIT: usize = 4 * 1024 * 1024;

/// The last bytes of an output.
#[derive(Debug)]
pub(crate) struct OutputTail {
    bytes: VecDeque<u8>,
    limit: usize,
    is_truncated: bool,
}

impl OutputTail {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        let limit = limit.map_or(DEFAULT_LIMIT, |limit| usize::try_from(limit).unwrap_or(MAX_LIMIT));
        Self { bytes: VecDeque::new(), limit: limit.min(MAX_LIMIT), is_truncated: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(self.limit);
        self.is_truncated |= excess > 0;
        self.bytes.drain(..excess);
    }

    /// Returns the text, cut at the start at a character boundary, and whether it is cut. An incomplete character at the
    /// end of an output that continues is left out.
    pub(crate) fn text(&mut self, limit: usize, is_complete: bool) -> (String, bool) {
        let limit = limit.min(self.limit);
        let mut bytes: &[u8] = self.bytes.make_contiguous();
        let excess = bytes.len().saturating_sub(limit);
        bytes = &bytes[excess..];
        let is_truncated = self.is_truncated || excess > 0;
        if is_truncated {
            let cut = bytes.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
            bytes = &bytes[cut..];
        }
        if !is_complete {
            bytes = &bytes[..bytes.len() - incomplete_bytes(bytes)];
        }
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        // A replacement character is longer than the byte in its place.
        let excess = text.len().saturating_sub(limit);
        let start = text.ceil_char_boundary(excess);
        text.drain(..start);
        (text, is_truncated || start > 0)
    }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Returns the length of an incomplete character at the end.
fn incomplete_bytes(bytes: &[u8]) -> usize {
    let longest = bytes.len().min(3);
    let is_incomplete = |length: &usize| {
        let end = &bytes[bytes.len() - length..];
        str::from_utf8(end).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=longest).find(is_incomplete).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(limit: u64, pieces: &[&[u8]]) -> OutputTail {
        let mut tail = OutputTail::new(Some(limit));
        for piece in pieces {
            tail.push(piece);
        }
        tail
    }

    #[test]
    fn output_is_cut_at_its_start_between_characters() {
        for (limit, expected) in [(0, ""), (1, ""), (2, "ß"), (3, "aß"), (4, "aß"), (5, "éaß"), (6, "xéaß")]
        {
            let mut tail = tail(limit, &["xé".as_bytes(), "aß".as_bytes()]);
            assert_eq!(tail.text(MAX_LIMIT, true), (expected.to_owned(), limit < 6), "{limit}");
        }
    }

    #[test]
    fn text_has_a_limit_of_its_own() {
        assert_eq!(tail(100, &["xéaß".as_bytes()]).text(3, true), ("aß".to_owned(), true));
    }

    #[test]
    fn character_that_is_still_incomplete_is_left_out() {
        let mut tail = tail(100, &[b"a\xe2\x82"]);
        assert_eq!(tail.text(MAX_LIMIT, false).0, "a");
        assert_eq!(tail.text(MAX_LIMIT, true).0, "a\u{fffd}");
        tail.push(b"\xac");
        assert_eq!(tail.text(MAX_LIMIT, false).0, "a€");
    }

    #[test]
    fn output_that_is_no_text_stays_within_the_limit() {
        let (text, is_truncated) = tail(10, &[&[0xff; 10]]).text(MAX_LIMIT, true);
        assert_eq!((text.as_str(), is_truncated), ("\u{fffd}\u{fffd}\u{fffd}", true));
    }

    #[test]
    fn limit_has_an_upper_bound() {
        assert_eq!(OutputTail::new(None).limit, DEFAULT_LIMIT);
        assert_eq!(OutputTail::new(Some(u64::MAX)).limit, MAX_LIMIT);
    }
}
