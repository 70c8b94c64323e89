//! What the user sees. The one place that writes to the terminal: answers to stdout, everything else to stderr.
//!
//! On a terminal, everything passes [`sanitize_for_terminal`]: text of an agent cannot move the cursor, set the clipboard or reverse
//! a line. In a pipe it stays as it is.
//!
//! A reader that has gone away (`switchboard … | head`) is no failure; nobody is left to be told. Anything else that keeps an
//! answer from being written is remembered here, and told when the command is over ([`written`]).

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use render::text::sanitize_for_terminal;
use rustix::io::Errno;

use crate::failure::Failure;
use crate::{paint, stdio};

/// Why stdout takes nothing any more.
static LOST: OnceLock<Errno> = OnceLock::new();

/// A line of the answer.
pub fn line(text: &str) {
    piece(&format!("{text}\n"));
}

/// A piece of the answer, which goes on.
pub fn piece(text: &str) {
    raw(sanitized(text, &io::stdout()).as_bytes());
}

/// Prints bytes that an agent wrote: on a terminal as text, in a pipe as they are.
///
/// The text of a terminal is cut between characters: returns how many bytes are printed. The rest belongs to the next piece.
pub fn bytes(piece: &[u8]) -> usize {
    if !paint::is_for_eyes(&io::stdout()) {
        raw(piece);
        return piece.len();
    }
    let complete = complete_characters(piece);
    raw(sanitize_for_terminal(&String::from_utf8_lossy(&piece[..complete])).as_bytes());
    complete
}

/// Returns the length of a text without the first bytes of a character at its end.
fn complete_characters(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        // An incomplete character, which more bytes may complete.
        Some(last)
            if (1..4).contains(&last.invalid().len())
                && std::str::from_utf8(last.invalid()).is_err_and(|e| e.error_len().is_none()) =>
        {
            bytes.len() - last.invalid().len()
        }
        _ => bytes.len(),
    }
}

/// Clears the terminal for a view that is drawn anew.
pub fn clear_screen() {
    // To the upper left corner, and everything below it away.
    raw(b"\x1b[H\x1b[J");
}

/// Prints a script or a page that is ours, as it is.
pub fn raw(piece: &[u8]) {
    // What came after a gap would look like the whole answer.
    if is_lost() {
        return;
    }
    let mut stdout = io::stdout().lock();
    remember(|| stdout.write_all(piece).and_then(|()| stdout.flush()));
}

/// Returns what of a text is printed: all of it in a pipe.
fn sanitized<'a>(text: &'a str, stream: &impl IsTerminal) -> Cow<'a, str> {
    if paint::is_for_eyes(stream) { sanitize_for_terminal(text) } else { text.into() }
}

/// The help, the version, or what is wrong with the words of the command line.
pub fn about_the_words(said: &clap::Error) {
    let words = said.render();
    // Whoever wants colors gets them, and of the words nothing else that a terminal obeys.
    if said.use_stderr() {
        let styled = if paint::paints(&io::stderr()) { words.ansi().to_string() } else { words.to_string() };
        aside(styled.trim_end_matches('\n'));
    } else {
        let styled = if paint::paints(&io::stdout()) { words.ansi().to_string() } else { words.to_string() };
        piece(&styled);
    }
}

fn remember(write: impl FnOnce() -> io::Result<()>) {
    let taken = if stdio::had_stdout() { write() } else { Err(Errno::BADF.into()) };
    if let Err(error) = taken {
        let _ = LOST.set(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
}

/// Whether nothing more can be told on stdout, for whatever reason.
pub fn is_lost() -> bool {
    LOST.get().is_some()
}

/// Whether every piece of the answer so far was taken, or nobody was left to take it.
pub fn written() -> io::Result<()> {
    match LOST.get() {
        None | Some(&Errno::PIPE) => Ok(()),
        Some(&errno) => Err(errno.into()),
    }
}

/// A line of a protocol, with its end, as it is. Here a reader that has gone away is the end of everything.
pub fn protocol(line: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(line)?;
    stdout.flush()
}

/// A line beside the answer.
pub fn aside(text: &str) {
    let _ = writeln!(io::stderr(), "{}", sanitized(text, &io::stderr()));
}

/// Says what went wrong, why, and what to do.
pub fn complain(failure: &Failure) {
    let say = |lead: &str, what: &dyn Display| aside(&format!("{lead}: {what}"));
    say("error", failure);
    let mut cause = std::error::Error::source(failure);
    while let Some(deeper) = cause {
        say("  because", &deeper);
        cause = deeper.source();
    }
    if let Some(hint) = failure.hint().filter(|hint| !hint.is_empty()) {
        say("  hint", &hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_not_cut() {
        let text = "aä€👩".as_bytes();
        for (length, complete) in [(0, 0), (1, 1), (2, 1), (3, 3), (5, 3), (6, 6), (9, 6), (10, 10)] {
            assert_eq!(complete_characters(&text[..length]), complete);
        }
        // What can never become a character is printed as a replacement.
        assert_eq!(complete_characters(b"a\xff"), 2);
    }
}
