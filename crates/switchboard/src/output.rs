//! What the user sees. The one place that writes to the terminal: answers to stdout, everything else to stderr.
//!
//! A reader that has gone away (`switchboard … | head`) is no failure; nobody is left to be told.

use std::io::{self, Write};

use calls::Sandbox;
use model::{Outcome, RunReport, TreeEnd};

use crate::failure::Failure;

/// A line of the answer.
pub fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// A piece of the answer, which goes on.
pub fn piece(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
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

/// Says how a call went, and what is left of it.
pub fn summary(outcome: &Outcome, report: &RunReport, spool: &supervisor::Spool) {
    let mut stderr = io::stderr().lock();
    let _ = match outcome.failure() {
        None => writeln!(stderr, "\ncompleted after {} ms; {}", report.duration_ms, left_over(report)),
        Some(failure) => writeln!(
            stderr,
            "\nfailed ({}) after {} ms; {}\n  because: {}\n  hint: {}",
            failure.kind,
            report.duration_ms,
            left_over(report),
            failure.message,
            outcome.hint().unwrap_or_default()
        ),
    };
    let confined = report.sandbox.as_ref().map(|report| Sandbox::from(report).told());
    let _ = writeln!(stderr, "{}", confined.unwrap_or_else(|| "policy: nothing was started".to_owned()));
    if let Some(session) = &outcome.session {
        let _ = writeln!(stderr, "session: {session}");
    }
    let _ = writeln!(stderr, "files: {}", spool.folder().display());
}

fn left_over(report: &RunReport) -> String {
    let ended = match report.descendants_ended {
        0 => String::new(),
        1 => "1 process that it left behind was ended, ".to_owned(),
        number => format!("{number} processes that it left behind were ended, "),
    };
    match report.tree {
        TreeEnd::ProvenEmpty | TreeEnd::SweptByIdentity => format!("{ended}nothing is left running"),
        TreeEnd::LeftAlive { processes } => format!("{ended}{processes} could not be ended"),
    }
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
