//! What the user sees. The one place that writes to the terminal: answers to stdout, everything else to stderr.
//!
//! A reader that has gone away (`switchboard … | head`) is no failure; nobody is left to be told. Anything else that keeps an
//! answer from being written is remembered here, and told when the command is over ([`written`]).

use std::io::{self, Write};
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::failure::Failure;
use crate::stdio;

/// Why stdout takes nothing any more.
static LOST: OnceLock<Errno> = OnceLock::new();

/// A line of the answer.
pub fn line(text: &str) {
    bytes(format!("{text}\n").as_bytes());
}

/// A piece of the answer, which goes on.
pub fn piece(text: &str) {
    bytes(text.as_bytes());
}

/// A piece of the answer that may be no text.
pub fn bytes(piece: &[u8]) {
    // What came after a gap would look like the whole answer.
    if is_lost() {
        return;
    }
    let mut stdout = io::stdout().lock();
    remember(|| stdout.write_all(piece).and_then(|()| stdout.flush()));
}

/// The help, the version, or what is wrong with the words of the command line.
pub fn about_the_words(said: &clap::Error) {
    if said.use_stderr() {
        let _ = said.print();
    } else {
        remember(|| said.print().and_then(|()| io::stdout().flush()));
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
    let _ = writeln!(io::stderr(), "{text}");
}

/// Says what went wrong, why, and what to do.
pub fn complain(failure: &Failure) {
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "error: {failure}");
    let mut cause = std::error::Error::source(failure);
    while let Some(deeper) = cause {
        let _ = writeln!(stderr, "  because: {deeper}");
        cause = deeper.source();
    }
    if let Some(hint) = failure.hint().filter(|hint| !hint.is_empty()) {
        let _ = writeln!(stderr, "  hint: {hint}");
    }
}
