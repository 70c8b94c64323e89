//! Splits chunks of bytes into lines of limited length.
//!
//! Owns the only buffer, for a line that spans several chunks.

use memchr::memchr;

/// The length of the stored head of a line over the limit.
const HEAD_BYTES: usize = 512;

/// A line without its newline.
#[derive(Clone, Copy)]
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    Oversized { head: &'a [u8], bytes: u64 },
}

#[derive(Debug)]
pub(super) struct Lines {
    cap: usize,
    /// The line so far, or the head of a line over the limit.
    pending: Vec<u8>,
    /// The length so far of a line over the limit.
    oversized: Option<u64>,
}

impl Lines {
    pub(super) fn new(cap: usize) -> Self {
        Self { cap, pending: Vec::new(), oversized: None }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.pending.capacity()
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], on_line: &mut impl FnMut(Line<'_>)) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.pending.is_empty() && self.oversized.is_none() && line.len() <= self.cap {
                on_line(Line::Whole(line));
            } else {
                self.hold(line);
                self.release(on_line);
            }
        }
        if !bytes.is_empty() {
            self.hold(bytes);
        }
    }

    pub(super) fn finish(&mut self, on_line: &mut impl FnMut(Line<'_>)) {
        if !self.pending.is_empty() || self.oversized.is_some() {
            self.release(on_line);
        }
    }

    /// Removes the incomplete line. Returns its head and its length.
    pub(super) fn take_incomplete(&mut self) -> Option<(Vec<u8>, usize)> {
        let head = std::mem::take(&mut self.pending);
        let length =
            self.oversized.take().map_or(head.len(), |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        (length > 0).then_some((head, length))
    }

    fn hold(&mut self, part: &[u8]) {
        if let Some(bytes) = &mut self.oversized {
            *bytes += part.len() as u64;
            return;
        }
        let total = self.pending.len() + part.len();
        if total <= self.cap {
            self.reserve(total);
            self.pending.extend_from_slice(part);
            return;
        }
        self.oversized = Some(total as u64);
        let head = HEAD_BYTES.min(self.cap);
        if self.pending.len() < head {
            self.reserve(head);
            self.pending.extend_from_slice(&part[..(head - self.pending.len()).min(part.len())]);
        }
        // Free the memory: the next line may be short.
        self.pending.truncate(head);
        self.pending.shrink_to(head);
    }

    /// Doubles the capacity like `Vec`, up to the limit.
    fn reserve(&mut self, total: usize) {
        if total > self.pending.capacity() {
            let target = total.max(self.pending.capacity() * 2).max(4096).min(self.cap);
            self.pending.reserve_exact(target - self.pending.len());
        }
    }

    fn release(&mut self, on_line: &mut impl FnMut(Line<'_>)) {
        match self.oversized.take() {
            Some(bytes) => on_line(Line::Oversized { head: &self.pending, bytes }),
            None => on_line(Line::Whole(&self.pending)),
        }
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(pieces: &[&[u8]], cap: usize) -> Vec<String> {
        let mut seen = Vec::new();
        let mut keep = |line: Line<'_>| {
            seen.push(match line {
                Line::Whole(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Line::Oversized { head, bytes } => format!("{}…{bytes}", String::from_utf8_lossy(head)),
            });
        };
        let mut lines = Lines::new(cap);
        for piece in pieces {
            lines.feed(piece, &mut keep);
        }
        lines.finish(&mut keep);
        seen
    }

    #[test]
    fn lines_are_independent_of_chunking() {
        assert_eq!(lines_of(&[b"one\ntwo\n", b"th", b"ree"], 100), ["one", "two", "three"]);
        assert_eq!(lines_of(&[b"one\n", b"t", b"wo", b"\nthree"], 100), ["one", "two", "three"]);
    }

    #[test]
    fn oversized_line_is_reported_once() {
        assert_eq!(lines_of(&[b"123456789\nok\n"], 4), ["1234…9", "ok"]);
        assert_eq!(lines_of(&[b"12", b"345", b"6789\no", b"k"], 4), ["1234…9", "ok"]);
        assert_eq!(lines_of(&[b"1234\n", b"12345"], 4), ["1234", "1234…5"]);
    }

    #[test]
    fn endless_line_stays_within_memory_limit() {
        let mut lines = Lines::new(1 << 20);
        let piece = vec![b'x'; 1 << 16];
        for _ in 0..1600 {
            lines.feed(&piece, &mut |_| panic!("there is no line yet"));
            assert!(lines.held_bytes() <= 1 << 20);
        }
    }
}
