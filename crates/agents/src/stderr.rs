//! The tail of an agent's stderr, an input of its outcome.

/// The size of the tail.
const KEPT: usize = 8 * 1024;

/// The last bytes of an agent's stderr.
#[derive(Debug, Default)]
pub struct StderrTail(Vec<u8>);

impl StderrTail {
    /// Appends output.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&bytes[bytes.len().saturating_sub(KEPT)..]);
        self.0.drain(..self.0.len().saturating_sub(KEPT));
    }

    /// Returns the tail as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_tail_is_independent_of_chunking() {
        let mut tail = StderrTail::default();
        tail.push(&[b'a'; KEPT + 1]);
        tail.push(b"the end");
        assert_eq!(tail.text().len(), KEPT);
        assert!(tail.text().ends_with("athe end"));
    }
}
