//! Lines of bytes, whatever is in them.

use std::io::{self, BufRead};

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A line with its end; the last may have had none, and gets one.
    Line(Vec<u8>),
    /// A line that is longer than anybody takes; it was read to its end and thrown away.
    TooLong,
    /// There are no more.
    End,
}

/// Reads the next line.
pub fn next(reader: &mut impl BufRead, longest: usize) -> io::Result<Next> {
    let mut line = Vec::new();
    io::Read::take(&mut *reader, longest as u64).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(Next::End),
        Some(b'\n') => Ok(Next::Line(line)),
        Some(_) if line.len() < longest => {
            line.push(b'\n');
            Ok(Next::Line(line))
        }
        Some(_) => {
            drop(line);
            reader.skip_until(b'\n')?;
            Ok(Next::TooLong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bytes_and_too_long_ones_cost_only_themselves() {
        let mut input = &b"one\n\xff\xfe\n\nfar too long\nok\nlast"[..];
        let mut read = || next(&mut input, 8).unwrap();
        assert_eq!(read(), Next::Line(b"one\n".to_vec()));
        assert_eq!(read(), Next::Line(b"\xff\xfe\n".to_vec()));
        assert_eq!(read(), Next::Line(b"\n".to_vec()));
        assert_eq!(read(), Next::TooLong);
        assert_eq!(read(), Next::Line(b"ok\n".to_vec()));
        assert_eq!(read(), Next::Line(b"last\n".to_vec()));
        assert_eq!(read(), Next::End);
    }
}
