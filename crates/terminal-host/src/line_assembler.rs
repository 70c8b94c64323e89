//! Splits a stream into lines, within bounded memory.

/// The longest line that is read as a whole. A longer one is no request for a terminal.
const MAX_LINE_BYTES: usize = 1024 * 1024;
/// The buffer that is kept for the next line.
const KEPT_BYTES: usize = 64 * 1024;

/// A part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinePart<'a> {
    /// A line with its line feed.
    Line(&'a [u8]),
    /// A piece of a line that is too long.
    Piece(&'a [u8]),
}

/// The incomplete line of a stream.
#[derive(Debug, Default)]
pub(crate) struct LineAssembler {
    buffer: Vec<u8>,
    /// The start of the line was returned as a piece.
    is_streaming: bool,
}

impl LineAssembler {
    /// Adds bytes, and passes on the lines and pieces that are complete.
    pub(crate) fn push(&mut self, bytes: &[u8], on_part: &mut impl FnMut(LinePart<'_>)) {
        for segment in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_complete = segment.ends_with(b"\n");
            if self.is_streaming {
                self.is_streaming = !is_complete;
                on_part(LinePart::Piece(segment));
            } else if is_complete && self.buffer.is_empty() && segment.len() <= MAX_LINE_BYTES {
                on_part(LinePart::Line(segment));
            } else {
                self.buffer.extend_from_slice(segment);
                if self.buffer.len() > MAX_LINE_BYTES {
                    self.is_streaming = !is_complete;
                    on_part(LinePart::Piece(&self.buffer));
                    self.buffer.clear();
                } else if is_complete {
                    on_part(LinePart::Line(&self.buffer));
                    self.buffer.clear();
                }
                if self.buffer.is_empty() {
                    self.buffer.shrink_to(KEPT_BYTES);
                }
            }
        }
    }

    /// Returns the last line of a stream that ended without a line feed.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(chunks: &[&[u8]]) -> Vec<(bool, Vec<u8>)> {
        let (mut lines, mut parts) = (LineAssembler::default(), Vec::new());
        for chunk in chunks {
            lines.push(chunk, &mut |part| match part {
                LinePart::Line(line) => parts.push((true, line.to_vec())),
                LinePart::Piece(piece) => parts.push((false, piece.to_vec())),
            });
        }
        parts
    }

    #[test]
    fn lines_are_found_in_any_chunks() {
        let expected = [(true, b"ab\n".to_vec()), (true, b"\n".to_vec()), (true, b"c\n".to_vec())];
        assert_eq!(parts(&[b"ab\n\nc\nd"]), expected);
        assert_eq!(parts(&[b"a", b"b", b"\n\nc", b"\nd"]), expected);
    }

    #[test]
    fn long_line_is_passed_on_in_pieces() {
        let long = vec![b'x'; MAX_LINE_BYTES];
        let parts = parts(&[&long, b"yy", b"zz", b"z\nline\n"]);
        let kinds: Vec<(bool, usize)> = parts.iter().map(|(line, bytes)| (*line, bytes.len())).collect();
        assert_eq!(kinds, [(false, MAX_LINE_BYTES + 2), (false, 2), (false, 2), (true, 5)]);
    }

    #[test]
    fn end_without_line_feed_is_the_rest() {
        let mut lines = LineAssembler::default();
        lines.push(b"a\nend", &mut |_| {});
        assert_eq!(lines.rest(), b"end");
    }
}
