//! Parses paths from text and formats them as text.
//!
//! File names are bytes, replies are Unicode. Does not access the file system; `beneath` resolves paths.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;

use crate::rejection::FileRejection;

/// The maximum length of a path. Bounds the work of one request.
const LONGEST_PATH: usize = 16 * 1024;
/// The maximum depth of a path.
const DEEPEST_PATH: usize = 2048;
/// The delimiters of an escaped path, in shell syntax.
const OPENING: &str = "$'";
const CLOSING: char = '\'';

/// A parsed path below the workspace. It can still contain `..`, because only the file system knows the parent of a link's
/// target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkPath {
    /// The path as the caller wrote it, for messages.
    said: String,
    parts: VecDeque<Vec<u8>>,
    /// True if it has a trailing slash and therefore must be a directory.
    directory: bool,
}

impl WorkPath {
    /// Parses a path that is relative to the workspace, or absolute and textually below it.
    ///
    /// `workspace` is the absolute path of the workspace.
    pub fn parse(said: &str, workspace: &[u8]) -> Result<Self, FileRejection> {
        let bytes = decode(said)?;
        if bytes.contains(&0) {
            return Err(FileRejection::invalid(
                "a path with a NUL byte in it names nothing",
                "write the path without it",
            ));
        }
        if bytes.len() > LONGEST_PATH {
            return Err(FileRejection::invalid(
                format!("a path of {} bytes is too long", bytes.len()),
                format!("a path has {LONGEST_PATH} bytes at most"),
            ));
        }
        let relative = below(&bytes, workspace).ok_or_else(|| FileRejection::outside(said))?;
        let parts: VecDeque<Vec<u8>> = split(relative).map(<[u8]>::to_vec).collect();
        if parts.len() > DEEPEST_PATH {
            return Err(FileRejection::invalid(
                format!("a path of {} parts is too deep", parts.len()),
                format!("a path has {DEEPEST_PATH} parts at most"),
            ));
        }
        let directory = relative.ends_with(b"/") || relative.ends_with(b"/.") || relative == b".";
        Ok(Self { said: said.to_owned(), parts, directory })
    }

    /// Returns the path as the caller wrote it.
    pub fn said(&self) -> &str {
        &self.said
    }

    pub(crate) fn parts(&self) -> VecDeque<Vec<u8>> {
        self.parts.clone()
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.directory
    }
}

/// Splits a path into its parts, without empty ones and `.`.
pub(crate) fn split(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Strips the workspace from an absolute path, part by part: `/ws-other` is not below `/ws`.
fn below<'a>(path: &'a [u8], workspace: &[u8]) -> Option<&'a [u8]> {
    if !path.starts_with(b"/") {
        return Some(path);
    }
    let workspace = workspace.strip_suffix(b"/").unwrap_or(workspace);
    let rest = path.strip_prefix(workspace)?;
    match rest {
        [] => Some(b"."),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Formats the bytes of a name: text unchanged, otherwise as `$'…'` with `\xHH` for each invalid byte.
pub fn show(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with(OPENING) => Cow::Borrowed(text),
        _ => Cow::Owned(escape(bytes)),
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = OPENING.to_owned();
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if matches!(letter, '\\' | CLOSING) {
                text.push('\\');
            }
            text.push(letter);
        }
        for byte in chunk.invalid() {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.push(CLOSING);
    text
}

/// Decodes the output of [`show`].
fn decode(said: &str) -> Result<Vec<u8>, FileRejection> {
    let Some(inner) = said.strip_prefix(OPENING) else { return Ok(said.as_bytes().to_vec()) };
    let mistake = || {
        FileRejection::invalid(
            format!("`{said}` starts like an escaped path but is not one"),
            r"between `$'` and `'` write `\\`, `\'` and `\xHH`, as in `$'caf\xe9.txt'`",
        )
    };
    let inner = inner.strip_suffix(CLOSING).ok_or_else(mistake)?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        match (first, rest) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |letter: u8| char::from(letter).to_digit(16).ok_or_else(mistake);
                let byte = digit(*high)? * 16 + digit(*low)?;
                bytes.push(u8::try_from(byte).map_err(|_| mistake())?);
                rest = after;
            }
            (b'\\', [byte @ (b'\\' | b'\''), after @ ..]) => {
                bytes.push(*byte);
                rest = after;
            }
            (b'\\' | b'\'', _) => return Err(mistake()),
            (byte, _) => bytes.push(*byte),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::RejectionCode;
    use proptest::prelude::*;

    fn parts(said: &str) -> Vec<String> {
        let path = WorkPath::parse(said, b"/ws").unwrap();
        path.parts.iter().map(|part| show(part).into_owned()).collect()
    }

    #[test]
    fn path_is_split_into_components() {
        assert_eq!(parts("a/./b//c"), ["a", "b", "c"]);
        assert_eq!(parts(""), Vec::<String>::new());
        assert_eq!(parts("a/../b"), ["a", "..", "b"]);
    }

    #[test]
    fn absolute_path_must_be_within_the_workspace() {
        assert_eq!(parts("/ws/a"), ["a"]);
        assert_eq!(parts("/ws"), Vec::<String>::new());
        for outside in ["/etc/passwd", "/ws-other/a", "/w", "//ws/a", "/"] {
            assert_eq!(
                WorkPath::parse(outside, b"/ws").unwrap_err().code(),
                RejectionCode::PathOutsideWorkspace
            );
        }
        assert!(WorkPath::parse("/etc/passwd", b"/").is_ok(), "everything is below the root");
    }

    #[test]
    fn nul_length_and_depth_are_rejected() {
        for said in ["a\0b", r"$'a\x00b'", &"x/".repeat(3000), &"x".repeat(20_000)] {
            assert_eq!(WorkPath::parse(said, b"/ws").unwrap_err().code(), RejectionCode::InvalidInput);
        }
    }

    #[test]
    fn non_utf8_name_is_shell_escaped() {
        assert_eq!(show(b"caf\xe9.txt"), r"$'caf\xe9.txt'");
        assert_eq!(show("café.txt".as_bytes()), "café.txt");
        assert_eq!(show(br"back\slash"), r"back\slash");
        assert_eq!(show(b"$'x'"), r"$'$\'x\''");
    }

    #[test]
    fn malformed_escape_is_rejected() {
        for said in ["$'a", r"$'a\'", r"$'a\q'", r"$'\xg1'", r"$'\x+1'", "$'a'b'"] {
            assert!(WorkPath::parse(said, b"/ws").is_err(), "{said}");
        }
    }

    proptest! {
        #[test]
        fn displayed_path_parses_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(decode(&show(&bytes)).unwrap(), bytes);
        }
    }
}
