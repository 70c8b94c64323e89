//! The only writer to stdout and stderr: results to stdout, everything else to stderr.
//!
//! On a terminal, all text passes [`sanitize_for_terminal`], so that agent output cannot move the cursor, set the clipboard or reverse
//! a line. In a pipe it is unchanged.
//!
//! EPIPE (`switchboard … | head`) is not a failure. Any other write error is stored here and reported when the command returns
//! ([`check_written`]).

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

use render::text::sanitize_for_terminal;
use rustix::io::Errno;

use crate::{stdio, style};

/// The first write error of stdout.
static STDOUT_ERROR: OnceLock<Errno> = OnceLock::new();

/// Prints a line to stdout.
pub fn line(text: &str) {
    print(&format!("{text}\n"));
}

/// Prints text to stdout without a line feed.
pub fn print(text: &str) {
    raw(sanitize_if_terminal(text, &io::stdout()).as_bytes());
}

/// Prints output of an agent: sanitized on a terminal, unchanged in a pipe.
///
/// On a terminal, an incomplete UTF-8 sequence at the end is held back. Returns the number of printed bytes; the rest belongs to the
/// next chunk.
pub fn agent_bytes(chunk: &[u8]) -> usize {
    if !style::is_interactive(&io::stdout()) {
        raw(chunk);
        return chunk.len();
    }
    let complete = complete_chars_len(chunk);
    raw(sanitize_for_terminal(&String::from_utf8_lossy(&chunk[..complete])).as_bytes());
    complete
}

/// Returns the length of a text without an incomplete UTF-8 sequence at its end.
fn complete_chars_len(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        Some(last)
            if (1..4).contains(&last.invalid().len())
                && std::str::from_utf8(last.invalid()).is_err_and(|e| e.error_len().is_none()) =>
        {
            bytes.len() - last.invalid().len()
        }
        _ => bytes.len(),
    }
}

/// Clears the terminal before a redraw.
pub fn clear_screen() {
    // Cursor home (CUP), then erase below (ED).
    raw(b"\x1b[H\x1b[J");
}

/// Prints bytes unchanged.
pub fn raw(bytes: &[u8]) {
    // Output after a gap would look complete.
    if is_stdout_lost() {
        return;
    }
    let mut stdout = io::stdout().lock();
    record_error(|| stdout.write_all(bytes).and_then(|()| stdout.flush()));
}

fn sanitize_if_terminal<'a>(text: &'a str, stream: &impl IsTerminal) -> Cow<'a, str> {
    if style::is_interactive(stream) { sanitize_for_terminal(text) } else { text.into() }
}

/// Prints the help, the version or a usage error of clap.
pub fn clap_message(error: &clap::Error) {
    let message = error.render();
    if error.use_stderr() {
        let styled =
            if style::is_colored(&io::stderr()) { message.ansi().to_string() } else { message.to_string() };
        aside(styled.trim_end_matches('\n'));
    } else {
        let styled =
            if style::is_colored(&io::stdout()) { message.ansi().to_string() } else { message.to_string() };
        print(&styled);
    }
}

fn record_error(write: impl FnOnce() -> io::Result<()>) {
    let written = if stdio::had_stdout() { write() } else { Err(Errno::BADF.into()) };
    if let Err(error) = written {
        let _ = STDOUT_ERROR.set(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
}

/// Returns whether stdout has failed, for any reason including EPIPE.
pub fn is_stdout_lost() -> bool {
    STDOUT_ERROR.get().is_some()
}

/// Returns the first write error of stdout. EPIPE is not an error: the reader has gone away. `copy` is the place of the result.
pub fn check_written(copy: ResultCopy) -> Result<(), UnwrittenError> {
    match STDOUT_ERROR.get() {
        None | Some(&Errno::PIPE) => Ok(()),
        Some(&errno) => Err(UnwrittenError { copy, source: errno.into() }),
    }
}

/// Prints a protocol message, including its line feed. Here EPIPE is an error: the session is over.
pub fn protocol_message(line: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(line)?;
    stdout.flush()
}

/// Prints a line to stderr.
pub fn aside(text: &str) {
    let _ = writeln!(io::stderr(), "{}", sanitize_if_terminal(text, &io::stderr()));
}

/// Prints a question to stderr; the answer follows it in the same line.
pub fn question(text: &str) {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "{}", sanitize_if_terminal(text, &stderr)).and_then(|()| stderr.flush());
}

/// Prints an error with its causes and its hint to stderr.
pub fn error(error: &dyn Error, hint: Option<&str>) {
    let print = |label: &str, text: &dyn Display| aside(&format!("{label}: {text}"));
    print("error", &error);
    let mut cause = error.source();
    while let Some(deeper) = cause {
        print("  because", &deeper);
        cause = deeper.source();
    }
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        print("  hint", &hint);
    }
}

/// The place of a result that could not be printed.
#[derive(Debug)]
pub enum ResultCopy {
    /// There is none: the command has to be repeated.
    None,
    /// A job of the daemon.
    Job(String),
    /// The directory of a call without the daemon.
    Directory(PathBuf),
}

/// A result could not be written to stdout.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to stdout")]
pub struct UnwrittenError {
    copy: ResultCopy,
    source: io::Error,
}

impl UnwrittenError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match &self.copy {
            ResultCopy::None => "redirect stdout to a writable file and retry".to_owned(),
            ResultCopy::Job(job) => {
                format!("the result is stored with the job; print it with `switchboard logs {job}`")
            }
            ResultCopy::Directory(directory) => {
                format!("the agent's output is in `{}`", directory.join("output").display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_utf8_is_held_back() {
        let text = "aä€👩".as_bytes();
        for (length, complete) in [(0, 0), (1, 1), (2, 1), (3, 3), (5, 3), (6, 6), (9, 6), (10, 10)] {
            assert_eq!(complete_chars_len(&text[..length]), complete);
        }
        // An invalid byte is printed as a replacement character.
        assert_eq!(complete_chars_len(b"a\xff"), 2);
    }
}
