//! What the person at the terminal sees. The one place that writes to it: the table to stdout, everything else to stderr.
//!
//! A reader that has gone away is no failure; nobody is left to be told.

use std::error::Error;
use std::io::{self, Write};

/// Prints the result.
pub fn table(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Says what is being done.
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
