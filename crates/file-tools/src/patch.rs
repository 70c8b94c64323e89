//! `patch`: replaces parts of a file, all or none.
//!
//! Works on bytes, so unmatched bytes are preserved even if they are not text. All edits are located in the original file, so
//! their order does not matter and line numbers are those that `read` prints.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr_iter, memmem};
use serde::Serialize;

use crate::beneath::{FinalLink, LookupPurpose};
use crate::contents::{self, FILE_LIMIT};
use crate::read::LineEndings;
use crate::rejection::{FileRejection, RejectionCode};
use crate::request::{Edit, PatchRequest};
use crate::workspace::Workspace;
use crate::write::{self, Rule};

/// The number of locations that a rejection lists.
const PLACES_NAMED: usize = 5;

/// The reply to `patch`.
#[derive(Debug, Serialize)]
pub struct PatchReply {
    /// The file, without links.
    pub path: String,
    /// The original line of each edit, in request order.
    pub lines: Vec<u64>,
    /// The new size in bytes.
    pub size: u64,
}

pub(crate) fn patch(workspace: &Workspace, request: &PatchRequest) -> Result<PatchReply, FileRejection> {
    let path = workspace.root.parse(&request.path)?;
    let _turn = write::turn(workspace, &path)?;
    let place = workspace.root.find(&path, FinalLink::Follow, LookupPurpose::Change)?;
    let (before, stat) = contents::load(workspace, &place, &path)?;
    let (after, lines) = apply(&before, &request.edits)?;
    if after.len() as u64 > FILE_LIMIT {
        return Err(FileRejection::too_large("the patched file", FILE_LIMIT));
    }
    write::replace_file(&place, &path, &after, Some(&stat), Rule::ReplaceSame)?;
    Ok(PatchReply { path: place.shown(), lines, size: after.len() as u64 })
}

/// An edit and its location.
struct Found<'a> {
    at: usize,
    find: Cow<'a, [u8]>,
    replace: Cow<'a, [u8]>,
}

/// Returns the patched bytes, and the line of each edit.
///
/// # Errors
/// If an edit does not match exactly once (or once on its line), or if two edits overlap.
pub fn apply(bytes: &[u8], edits: &[Edit]) -> Result<(Vec<u8>, Vec<u64>), FileRejection> {
    if edits.is_empty() {
        return Err(FileRejection::invalid(
            "a patch without edits changes nothing",
            "pass at least one `find` with its `replace`",
        ));
    }
    let crlf = LineEndings::of(bytes) == LineEndings::Crlf;
    let mut found = Vec::with_capacity(edits.len());
    for (number, edit) in edits.iter().enumerate() {
        found.push(locate(bytes, edit, number + 1, crlf)?);
    }
    let lines = found.iter().map(|found| line_of(bytes, found.at)).collect();
    found.sort_by_key(|found| found.at);
    if let Some(pair) = found.windows(2).find(|pair| pair[0].at + pair[0].find.len() > pair[1].at) {
        return Err(FileRejection::invalid(
            format!("two edits overlap on line {}", line_of(bytes, pair[1].at)),
            "combine them into one edit",
        ));
    }
    Ok((replace(bytes, &found), lines))
}

fn replace(bytes: &[u8], found: &[Found<'_>]) -> Vec<u8> {
    let added: usize = found.iter().map(|found| found.replace.len()).sum();
    let mut result = Vec::with_capacity(bytes.len() + added);
    let mut taken = 0;
    for Found { at, find, replace } in found {
        result.extend_from_slice(&bytes[taken..*at]);
        result.extend_from_slice(replace);
        taken = at + find.len();
    }
    result.extend_from_slice(&bytes[taken..]);
    result
}

fn locate<'a>(bytes: &[u8], edit: &'a Edit, number: usize, crlf: bool) -> Result<Found<'a>, FileRejection> {
    if edit.find.is_empty() {
        return Err(FileRejection::invalid(
            format!("edit {number} has an empty `find`"),
            "to add text, replace an adjacent line by itself and the new text; to fill an empty file, use `write`",
        ));
    }
    let (find, replace) = (with_endings(&edit.find, crlf), with_endings(&edit.replace, crlf));
    let within = edit.start_line.map_or(Some(0..bytes.len()), |line| span_of(bytes, line));
    let mut all = within.into_iter().flat_map(|within| places(bytes, &find, within));
    let Some(at) = all.next() else { return Err(not_found(bytes, edit, &find, number)) };
    if all.next().is_some() {
        return Err(not_unique(bytes, edit, &find, number));
    }
    drop(all);
    Ok(Found { at, find, replace })
}

/// Converts `\n` to the file's line ending: callers that read `\r\n` lines often write `\n`.
fn with_endings(text: &str, crlf: bool) -> Cow<'_, [u8]> {
    if !crlf || !text.contains('\n') {
        return Cow::Borrowed(text.as_bytes());
    }
    Cow::Owned(text.replace("\r\n", "\n").replace('\n', "\r\n").into_bytes())
}

/// Returns all matches that start within a range, including overlapping ones: `aa` matches twice in `aaa`.
fn places<'a>(bytes: &'a [u8], find: &'a [u8], within: Range<usize>) -> impl Iterator<Item = usize> + 'a {
    let finder = memmem::Finder::new(find);
    // A match that starts within the range may end behind it.
    let bytes = &bytes[..bytes.len().min(within.end.saturating_add(find.len()).saturating_sub(1))];
    let mut from = within.start;
    std::iter::from_fn(move || {
        let at = from + finder.find(bytes.get(from..)?)?;
        from = at + 1;
        Some(at)
    })
}

/// Returns the byte range of a line.
fn span_of(bytes: &[u8], line: u64) -> Option<Range<usize>> {
    let before = usize::try_from(line.checked_sub(1)?).ok()?;
    let mut ends = memchr_iter(b'\n', bytes).map(|at| at + 1);
    let start = if before == 0 { 0 } else { ends.nth(before - 1)? };
    Some(start..ends.next().unwrap_or(bytes.len()))
}

/// Returns the line number of a byte.
fn line_of(bytes: &[u8], at: usize) -> u64 {
    memchr_iter(b'\n', &bytes[..at]).count() as u64 + 1
}

fn not_found(bytes: &[u8], edit: &Edit, find: &[u8], number: usize) -> FileRejection {
    let hint = match (edit.start_line, named(bytes, find)) {
        (Some(_), lines) if !lines.is_empty() => format!("it occurs on line {lines}"),
        _ => "read the file again; spaces, tabs and letters must match exactly, without the line numbers"
            .to_owned(),
    };
    let on = edit.start_line.map(|line| format!(" on line {line}")).unwrap_or_default();
    FileRejection::new(
        RejectionCode::FindNotFound,
        format!("edit {number} does not occur in the file{on}"),
        hint,
    )
}

fn not_unique(bytes: &[u8], edit: &Edit, find: &[u8], number: usize) -> FileRejection {
    let hint = match edit.start_line {
        None => format!(
            "it occurs on line {}; choose one with `start_line`, or pass a longer `find`",
            named(bytes, find)
        ),
        Some(_) => "find more of the line".to_owned(),
    };
    let on = edit.start_line.map(|line| format!(" on line {line}")).unwrap_or_default();
    FileRejection::new(
        RejectionCode::FindNotUnique,
        format!("edit {number} occurs more than once in the file{on}"),
        hint,
    )
}

/// Lists the first lines that match.
fn named(bytes: &[u8], find: &[u8]) -> String {
    let mut lines: Vec<_> = places(bytes, find, 0..bytes.len())
        .take(PLACES_NAMED + 1)
        .map(|at| line_of(bytes, at).to_string())
        .collect();
    if lines.len() > PLACES_NAMED {
        lines.truncate(PLACES_NAMED);
        lines.push("…".to_owned());
    }
    lines.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edit(find: &str, replace: &str, start_line: Option<u64>) -> Edit {
        Edit { find: find.to_owned(), replace: replace.to_owned(), start_line }
    }

    fn patched(text: &str, edits: &[Edit]) -> Result<String, RejectionCode> {
        apply(text.as_bytes(), edits)
            .map(|(bytes, _)| String::from_utf8(bytes).unwrap())
            .map_err(|refusal| refusal.code())
    }

    #[test]
    fn find_text_must_be_unique() {
        assert_eq!(patched("one two", &[edit("two", "2", None)]).as_deref(), Ok("one 2"));
        assert_eq!(patched("one two", &[edit("three", "3", None)]), Err(RejectionCode::FindNotFound));
        assert_eq!(patched("a a", &[edit("a", "b", None)]), Err(RejectionCode::FindNotUnique));
        assert_eq!(patched("aaa", &[edit("aa", "b", None)]), Err(RejectionCode::FindNotUnique));
        assert_eq!(patched("abc", &[edit("", "b", None)]), Err(RejectionCode::InvalidInput));
        assert_eq!(patched("abc", &[]), Err(RejectionCode::InvalidInput));
    }

    #[test]
    fn start_line_selects_among_equal_matches() {
        let text = "x\nx\nx x\n";
        assert_eq!(patched(text, &[edit("x", "y", Some(2))]).as_deref(), Ok("x\ny\nx x\n"));
        assert_eq!(patched(text, &[edit("x", "y", Some(3))]), Err(RejectionCode::FindNotUnique));
        assert_eq!(patched(text, &[edit("x", "y", Some(4))]), Err(RejectionCode::FindNotFound));
        assert_eq!(patched("a\nb\n", &[edit("a", "y", Some(2))]), Err(RejectionCode::FindNotFound));
    }

    #[test]
    fn edits_match_the_original_file() {
        let edits = [edit("b", "a", None), edit("a", "b", None)];
        assert_eq!(patched("a b", &edits).as_deref(), Ok("b a"));
        assert_eq!(
            patched("abc", &[edit("ab", "x", None), edit("bc", "y", None)]),
            Err(RejectionCode::InvalidInput)
        );
    }

    #[test]
    fn crlf_is_preserved() {
        let text = "a\r\nb\r\nc\r\n";
        assert_eq!(patched(text, &[edit("a\nb", "1\n2\n3", None)]).as_deref(), Ok("1\r\n2\r\n3\r\nc\r\n"));
        assert_eq!(patched(text, &[edit("b", "2\n3", None)]).as_deref(), Ok("a\r\n2\r\n3\r\nc\r\n"));
        assert_eq!(
            patched("a\r\nb\n", &[edit("b", "2\n3", None)]).as_deref(),
            Ok("a\r\n2\n3\n"),
            "mixed: as written"
        );
    }

    #[test]
    fn non_utf8_bytes_are_preserved() {
        let (after, _) = apply(b"caf\xe9 = 1\n\0", &[edit("1", "2", None)]).unwrap();
        assert_eq!(after, b"caf\xe9 = 2\n\0");
    }

    #[test]
    fn rejection_reports_the_match_lines() {
        let refusal = apply(b"x\ny\nx\n", &[edit("x", "z", None)]).unwrap_err();
        assert_eq!(
            refusal.hint(),
            "it occurs on line 1, 3; choose one with `start_line`, or pass a longer `find`"
        );
        let refusal = apply(b"x\ny\n", &[edit("y", "z", Some(1))]).unwrap_err();
        assert_eq!(refusal.hint(), "it occurs on line 2");
    }

    /// A slow and simple implementation of `apply`, to compare with.
    fn plainly(text: &str, find: &str, replace: &str) -> Option<String> {
        let places: Vec<usize> = (0..text.len()).filter(|&at| text[at..].starts_with(find)).collect();
        match places[..] {
            [at] => Some(format!("{}{replace}{}", &text[..at], &text[at + find.len()..])),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn single_edit_equals_plain_replacement(text in "[ab\n]{0,12}", find in "[ab\n]{1,3}", replace in "[xy\n]{0,3}") {
            prop_assert_eq!(patched(&text, &[edit(&find, &replace, None)]).ok(), plainly(&text, &find, &replace));
        }

        #[test]
        fn edit_order_is_irrelevant(text in "[a-h\n]{0,16}", finds in proptest::collection::vec("[a-h\n]{1,2}", 1..4)) {
            let edits: Vec<_> = finds.iter().enumerate().map(|(at, find)| edit(find, &at.to_string(), None)).collect();
            let backwards: Vec<_> = edits.iter().rev().cloned().collect();
            prop_assert_eq!(patched(&text, &edits).ok(), patched(&text, &backwards).ok());
        }

        #[test]
        fn inverse_patch_restores_the_bytes(
            head in proptest::collection::vec(any::<u8>(), 0..40),
            tail in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let bytes = [head.as_slice(), b"<<needle>>", tail.as_slice()].concat();
            let (there, _) = apply(&bytes, &[edit("<<needle>>", "{{thread}}", None)]).unwrap();
            let (back, _) = apply(&there, &[edit("{{thread}}", "<<needle>>", None)]).unwrap();
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn crlf_file_stays_crlf(lines in proptest::collection::vec("[a-c]{0,3}", 2..6), replace in "[x\n]{0,4}") {
            let text = lines.join("\r\n") + "\r\nneedle\r\n";
            let after = patched(&text, &[edit("needle", &replace, None)]).unwrap();
            prop_assert_eq!(LineEndings::of(after.as_bytes()), LineEndings::Crlf);
        }

        #[test]
        fn failed_edit_leaves_the_file_unchanged(text in "[a-d\n]{0,12}", finds in proptest::collection::vec("[a-d\n]{1,2}", 2..4)) {
            let edits: Vec<_> = finds.iter().map(|find| edit(find, "", None)).collect();
            let each_alone = edits.iter().all(|one| patched(&text, std::slice::from_ref(one)).is_ok());
            if !each_alone {
                prop_assert!(patched(&text, &edits).is_err());
            }
        }
    }
}
