//! `read`: numbered lines of a text file.
//!
//! Never passes off what it could not show: bytes that are no text are named, and so is whatever is left out.

use memchr::{memchr, memchr_iter};
use serde::Serialize;

use crate::beneath::{Last, Purpose};
use crate::contents;
use crate::refusal::Refusal;
use crate::request::Read;
use crate::workspace::Workspace;

/// How many lines when nobody said.
const LINES: u64 = 2000;
/// How much text when nobody said how many lines: what a model can take in.
const TEXT_UNASKED: usize = 256 * 1024;
/// How much text in any case.
const TEXT_AT_MOST: usize = 16 * 1024 * 1024;

/// Lines of a file.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// The file, without links.
    pub path: String,
    /// `number<TAB>line` for each, with the line's own ending. None of a file that is no text.
    pub content: Option<String>,
    /// How many lines there are in all.
    pub total_lines: u64,
    /// Whether some are left out after the last one shown, or a part of that one.
    pub truncated: bool,
    /// Where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// Bytes in the file.
    pub size: u64,
    /// What the bytes are.
    pub encoding: Encoding,
    /// What its lines end with.
    pub line_endings: Endings,
    /// Whether the last line ends at all.
    pub final_newline: bool,
}

/// What bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Encoding {
    /// Text.
    #[serde(rename = "utf-8")]
    Utf8,
    /// Some other text: each byte that is none in UTF-8 is shown as `\u{fffd}`, and stays as it is in a patch.
    #[serde(rename = "not utf-8")]
    Other,
    /// Not text: there is a NUL in it.
    #[serde(rename = "binary")]
    Binary,
}

/// What lines end with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Endings {
    /// There is one line at most.
    None,
    /// As on Unix.
    Lf,
    /// As on Windows.
    Crlf,
    /// Some so, some so.
    Mixed,
}

impl Endings {
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

pub(crate) fn read(workspace: &Workspace, request: &Read) -> Result<Lines, Refusal> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, Last::Follow, Purpose::Look)?;
    let (bytes, _) = contents::load(workspace, &place, &path)?;
    Ok(lines(place.shown(), &bytes, request))
}

fn lines(path: String, bytes: &[u8], request: &Read) -> Lines {
    let newlines = memchr_iter(b'\n', bytes).count() as u64;
    let final_newline = bytes.last() == Some(&b'\n');
    let mut lines = Lines {
        path,
        content: None,
        total_lines: newlines + u64::from(!final_newline && !bytes.is_empty()),
        truncated: false,
        next_offset: None,
        size: bytes.len() as u64,
        encoding: Encoding::Binary,
        line_endings: Endings::None,
        final_newline,
    };
    if memchr(0, bytes).is_some() {
        return lines;
    }
    lines.line_endings = Endings::of(bytes);
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
    /// The number of the line after the last one in it.
    next: u64,
    /// Whether that last one is not whole.
    cut: bool,
}

/// Numbers lines from `first` on: at most `limit`, and at most `room` bytes of text, but always one line, or its beginning.
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

/// The beginning of a line, not cut within a letter.
fn whole_letters(line: &[u8], room: usize) -> &[u8] {
    if line.len() <= room {
        return line;
    }
    // A letter has four bytes at most, all but the first of the form 10xxxxxx.
    let mut end = room;
    while end > 0 && room - end < 4 && line[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    &line[..end]
}

/// As `write!` does, at a fraction of its price: a large file has a million of them.
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

    fn shown(bytes: &[u8], offset: Option<u64>, limit: Option<u64>) -> Lines {
        lines("f".to_owned(), bytes, &Read { path: "f".to_owned(), offset, limit })
    }

    #[test]
    fn lines_are_numbered_from_one() {
        let all = shown(b"a\nb\nc", None, None);
        assert_eq!(all.content.as_deref(), Some("1\ta\n2\tb\n3\tc"));
        assert_eq!((all.total_lines, all.truncated, all.final_newline), (3, false, false));
    }

    #[test]
    fn a_window_says_what_is_left_out() {
        let some = shown(b"a\nb\nc\nd\n", Some(2), Some(2));
        assert_eq!(some.content.as_deref(), Some("2\tb\n3\tc\n"));
        assert_eq!((some.total_lines, some.truncated, some.next_offset), (4, true, Some(4)));
        let past = shown(b"a\n", Some(9), None);
        assert_eq!((past.content.as_deref(), past.truncated, past.next_offset), (Some(""), false, None));
        let none = shown(b"", None, None);
        assert_eq!(
            (none.content.as_deref(), none.total_lines, none.line_endings),
            (Some(""), 0, Endings::None)
        );
    }

    #[test]
    fn endings_are_kept_and_named() {
        let windows = shown(b"a\r\nb\r\n", None, None);
        assert_eq!(
            (windows.content.as_deref(), windows.line_endings),
            (Some("1\ta\r\n2\tb\r\n"), Endings::Crlf)
        );
        assert_eq!(shown(b"a\r\nb\n", None, None).line_endings, Endings::Mixed);
    }

    #[test]
    fn what_is_no_text_is_named_and_not_shown_as_text() {
        let binary = shown(b"\x7fELF\0\n", None, None);
        assert_eq!((binary.content, binary.encoding, binary.size), (None, Encoding::Binary, 6));
        let latin = shown(b"caf\xe9\n", None, None);
        assert_eq!((latin.content.as_deref(), latin.encoding), (Some("1\tcaf\u{fffd}\n"), Encoding::Other));
    }

    #[test]
    fn a_line_too_long_for_an_answer_is_cut_between_letters() {
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
        fn windows_put_together_are_the_whole(text in "[a\r\n]{0,60}", step in 1_u64..5) {
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
