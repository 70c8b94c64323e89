//! What of an agent's stderr is weighed in its outcome.

/// How much of its end.
const KEPT: usize = 8 * 1024;

/// The end of what an agent wrote to stderr, however much that was.
#[derive(Debug, Default)]
pub struct StderrTail(Vec<u8>);

impl StderrTail {
    /// It has written more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&bytes[bytes.len().saturating_sub(KEPT)..]);
        self.0.drain(..self.0.len().saturating_sub(KEPT));
    }

    /// As text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept_however_it_comes() {
        let mut tail = StderrTail::default();
        tail.push(&[b'a'; KEPT + 1]);
        tail.push(b"the end");
        assert_eq!(tail.text().len(), KEPT);
        assert!(tail.text().ends_with("athe end"));
    }
}
