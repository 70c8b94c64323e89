//! `read`: prints numbered lines of a text file.
//!
//! Omissions are reported: bytes that are not UTF-8, and lines that were left out.

use memchr::{memchr, memchr_iter};
use serde::Serialize;

use crate::beneath::{FinalLink, LookupPurpose};
use crate::contents;
use crate::rejection::FileRejection;
use crate::request::ReadRequest;
use crate::workspace::Workspace;

/// The default number of lines.
const LINES: u64 = 2000;
/// The maximum size of the text if the request sets no number of lines.
const TEXT_UNASKED: usize = 256 * 1024;
/// The maximum size of the text in any case.
const TEXT_AT_MOST: usize = 16 * 1024 * 1024;

/// The reply to `read`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ReadReply {
    /// The file, without links.
    pub path: String,
    /// `number<TAB>line` for each line, with its own line ending. `None` for a binary file.
    pub content: Option<String>,
    /// The number of all lines.
    pub total_lines: u64,
    /// True if lines, or a part of the last one, were omitted.
    pub truncated: bool,
    /// The line at which to continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// The size in bytes.
    pub size: u64,
    /// The encoding of the file.
    pub encoding: Encoding,
    /// The line endings of the file.
    pub line_endings: LineEndings,
    /// True if the last line ends with a newline.
    pub final_newline: bool,
}

/// The encoding of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Encoding {
    /// UTF-8.
    #[serde(rename = "utf-8")]
    Utf8,
    /// Other text: each invalid byte is shown as `\u{fffd}`, and preserved by a patch.
    #[serde(rename = "not utf-8")]
    Other,
    /// Binary: it contains a NUL byte.
    #[serde(rename = "binary")]
    Binary,
}

/// The line endings of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LineEndings {
    /// At most one line.
    None,
    /// `\n`.
    Lf,
    /// `\r\n`.
    Crlf,
    /// Both.
    Mixed,
}

impl LineEndings {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let (mut all, mut with_return) = (0_u64, 0_u64);
        for at in memchr_iter(b'\n', bytes) {
            all += 1;
            with_return += u64::from(at > 0 && bytes[at - 1] == b'\r');
        }
        match (all, with_return) {
            (0, _) => Self::None,
            (_, 0) => Self::Lf,
            (all, some) if all == some => Self::Crlf,
            _ => Self::Mixed,
        }
    }
}

pub(crate) fn read(workspace: &Workspace, request: &ReadRequest) -> Result<ReadReply, FileRejection> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, FinalLink::Follow, LookupPurpose::Look)?;
    let (bytes, _) = contents::load(workspace, &place, &path)?;
    Ok(lines(place.shown(), &bytes, request))
}

fn lines(path: String, bytes: &[u8], request: &ReadRequest) -> ReadReply {
    let newlines = memchr_iter(b'\n', bytes).count() as u64;
    let final_newline = bytes.last() == Some(&b'\n');
    let mut lines = ReadReply {
        path,
        content: None,
        total_lines: newlines + u64::from(!final_newline && !bytes.is_empty()),
        truncated: false,
        next_offset: None,
        size: bytes.len() as u64,
        encoding: Encoding::Binary,
        line_endings: LineEndings::None,
        final_newline,
    };
    if memchr(0, bytes).is_some() {
        return lines;
    }
    lines.line_endings = LineEndings::of(bytes);
    lines.encoding = if std::str::from_utf8(bytes).is_ok() { Encoding::Utf8 } else { Encoding::Other };
    let first = request.offset.unwrap_or(1).max(1);
    let room = if request.limit.is_some() { TEXT_AT_MOST } else { TEXT_UNASKED };
    let shown = number(bytes, first, request.limit.unwrap_or(LINES), room);
    lines.truncated = shown.cut || shown.next <= lines.total_lines;
    lines.next_offset = (shown.next <= lines.total_lines).then_some(shown.next);
    lines.content = Some(
        String::from_utf8(shown.text)
            .unwrap_or_else(|mixed| String::from_utf8_lossy(mixed.as_bytes()).into_owned()),
    );
    lines
}

struct Numbered {
    text: Vec<u8>,
    /// The number of the first omitted line.
    next: u64,
    /// True if the last line is incomplete.
    cut: bool,
}

/// Numbers lines from `first`: at most `limit` lines and `room` bytes of text, but always one line or its start.
fn number(bytes: &[u8], first: u64, limit: u64, room: usize) -> Numbered {
    let skipped = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let start = match skipped {
        0 => Some(0),
        lines => memchr_iter(b'\n', bytes).nth(lines - 1).map(|at| at + 1),
    };
    let mut rest = start.map_or(&bytes[bytes.len()..], |start| &bytes[start..]);
    let mut numbered =
        Numbered { text: Vec::with_capacity(rest.len().min(room) * 9 / 8 + 32), next: first, cut: false };
    let end = first.saturating_add(limit);
    while !rest.is_empty() && numbered.next < end {
        let (line, after) = rest.split_at(memchr(b'\n', rest).map_or(rest.len(), |at| at + 1));
        let left = room.saturating_sub(numbered.text.len());
        if line.len() > left {
            if !numbered.text.is_empty() {
                break;
            }
            numbered.cut = true;
        }
        push_number(&mut numbered.text, numbered.next);
        numbered.text.push(b'\t');
        numbered.text.extend_from_slice(whole_letters(line, left));
        numbered.next += 1;
        rest = after;
    }
    numbered
}

/// Returns the start of a line without splitting a character.
fn whole_letters(line: &[u8], room: usize) -> &[u8] {
    if line.len() <= room {
        return line;
    }
    // A UTF-8 character has at most four bytes, all but the first of the form 10xxxxxx.
    let mut end = room;
    while end > 0 && room - end < 4 && line[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &line[..end]
}

/// Faster than `write!`: a large file has a million lines.
fn push_number(text: &mut Vec<u8>, number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(bytes: &[u8], offset: Option<u64>, limit: Option<u64>) -> ReadReply {
        lines("f".to_owned(), bytes, &ReadRequest { path: "f".to_owned(), offset, limit })
    }

    #[test]
    fn line_numbers_start_at_one() {
        let all = shown(b"a\nb\nc", None, None);
        assert_eq!(all.content.as_deref(), Some("1\ta\n2\tb\n3\tc"));
        assert_eq!((all.total_lines, all.truncated, all.final_newline), (3, false, false));
    }

    #[test]
    fn window_reports_omitted_lines() {
        let some = shown(b"a\nb\nc\nd\n", Some(2), Some(2));
        assert_eq!(some.content.as_deref(), Some("2\tb\n3\tc\n"));
        assert_eq!((some.total_lines, some.truncated, some.next_offset), (4, true, Some(4)));
        let past = shown(b"a\n", Some(9), None);
        assert_eq!((past.content.as_deref(), past.truncated, past.next_offset), (Some(""), false, None));
        let none = shown(b"", None, None);
        assert_eq!(
            (none.content.as_deref(), none.total_lines, none.line_endings),
            (Some(""), 0, LineEndings::None)
        );
    }

    #[test]
    fn line_endings_are_kept_and_reported() {
        let windows = shown(b"a\r\nb\r\n", None, None);
        assert_eq!(
            (windows.content.as_deref(), windows.line_endings),
            (Some("1\ta\r\n2\tb\r\n"), LineEndings::Crlf)
        );
        assert_eq!(shown(b"a\r\nb\n", None, None).line_endings, LineEndings::Mixed);
    }

    #[test]
    fn binary_content_is_not_returned_as_text() {
        let binary = shown(b"\x7fELF\0\n", None, None);
        assert_eq!((binary.content, binary.encoding, binary.size), (None, Encoding::Binary, 6));
        let latin = shown(b"caf\xe9\n", None, None);
        assert_eq!((latin.content.as_deref(), latin.encoding), (Some("1\tcaf\u{fffd}\n"), Encoding::Other));
    }

    #[test]
    fn long_line_is_cut_at_a_char_boundary() {
        let long = "é".repeat(TEXT_UNASKED);
        let cut = shown(long.as_bytes(), None, None);
        assert!(cut.truncated);
        assert_eq!(cut.encoding, Encoding::Utf8);
        assert!(cut.content.unwrap().chars().all(|letter| letter != '\u{fffd}'));
        let whole = shown(long.as_bytes(), None, Some(1));
        assert_eq!((whole.truncated, whole.content.unwrap().len()), (false, long.len() + 2));
    }

    proptest! {
        #[test]
        fn concatenated_windows_equal_the_file(text in "[a\r\n]{0,60}", step in 1_u64..5) {
            let whole = shown(text.as_bytes(), None, None);
            let (mut pieces, mut at) = (String::new(), 1);
            loop {
                let piece = shown(text.as_bytes(), Some(at), Some(step));
                pieces += piece.content.as_deref().unwrap();
                match piece.next_offset { Some(next) => at = next, None => break }
            }
            prop_assert_eq!(Some(pieces), whole.content);
        }
    }
}
