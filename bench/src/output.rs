//! Output for the person at the terminal: the table to stdout, everything else to stderr.
//!
//! A closed pipe is not an error.

use std::error::Error;
use std::io::{self, Write};

/// Prints the result.
pub fn table(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Prints the current step.
pub fn progress(what: &str) {
    let _ = writeln!(io::stderr(), "bench: {what}");
}

/// Says why there is no result.
pub fn complain(failure: &(dyn Error + Send + Sync)) {
    let mut stderr = io::stderr();
    let _ = writeln!(stderr, "error: {failure}");
    let mut cause = failure.source();
    while let Some(deeper) = cause {
        let _ = writeln!(stderr, "  because: {deeper}");
        cause = deeper.source();
    }
}
