//! Errors of a rehearsal itself, as opposed to scripted faults.

use std::fmt::{self, Display};
use std::io;

/// An invalid flag or step: reported before anything is played, exit code 2.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) what: String,
    pub(crate) hint: String,
}

impl Mistake {
    pub(crate) fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\nhint: {}", self.what, self.hint)
    }
}

/// A valid step that could not be played.
#[derive(Debug)]
pub(crate) enum Mishap {
    /// The reader of our output is gone. A shell program would be killed by SIGPIPE without a message.
    NobodyListens,
    /// Another error of the system.
    Refused { what: String, source: io::Error },
}

impl Mishap {
    /// The exit code that a shell reports for a program killed by SIGPIPE.
    pub(crate) const NOBODY_LISTENS: u8 = 141;
    /// `EX_SOFTWARE`: far from what the vendors use, so that a test can distinguish it from a scripted fault.
    pub(crate) const REFUSED: u8 = 70;

    pub(crate) fn refused(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::BrokenPipe => Self::NobodyListens,
            _ => Self::Refused { what: what.into(), source },
        }
    }
}
