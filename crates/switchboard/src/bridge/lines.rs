//! Reads lines of bytes with a maximum length.

use std::io::{self, BufRead};

/// The result of [`read_line`].
#[derive(Debug, PartialEq, Eq)]
pub enum ReadLine {
    /// A line with its line feed, which is added to an unterminated last line.
    Line(Vec<u8>),
    /// A line that exceeds the maximum. It was discarded up to its end.
    TooLong,
    /// The end of the input.
    End,
}

/// Reads the next line of at most `max_bytes`.
pub fn read_line(reader: &mut impl BufRead, max_bytes: usize) -> io::Result<ReadLine> {
    let mut line = Vec::new();
    io::Read::take(&mut *reader, max_bytes as u64).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(ReadLine::End),
        Some(b'\n') => Ok(ReadLine::Line(line)),
        Some(_) if line.len() < max_bytes => {
            line.push(b'\n');
            Ok(ReadLine::Line(line))
        }
        Some(_) => {
            drop(line);
            reader.skip_until(b'\n')?;
            Ok(ReadLine::TooLong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_line_is_skipped_without_losing_others() {
        let mut input = &b"one\n\xff\xfe\n\nfar too long\nok\nlast"[..];
        let mut read = || read_line(&mut input, 8).unwrap();
        assert_eq!(read(), ReadLine::Line(b"one\n".to_vec()));
        assert_eq!(read(), ReadLine::Line(b"\xff\xfe\n".to_vec()));
        assert_eq!(read(), ReadLine::Line(b"\n".to_vec()));
        assert_eq!(read(), ReadLine::TooLong);
        assert_eq!(read(), ReadLine::Line(b"ok\n".to_vec()));
        assert_eq!(read(), ReadLine::Line(b"last\n".to_vec()));
        assert_eq!(read(), ReadLine::End);
    }
}
