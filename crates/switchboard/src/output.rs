//! What the user sees. The one place that writes to the terminal: answers to stdout, everything else to stderr.
//!
//! A reader that has gone away (`switchboard … | head`) is no failure; nobody is left to be told.

use std::io::{self, Write};

use model::{RunReport, TreeEnd};

use crate::failure::Failure;

/// Passes on what the agent printed.
pub fn answer(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

/// Passes on what the agent complained about.
pub fn aside(bytes: &[u8]) {
    let _ = io::stderr().write_all(bytes);
}

/// Says how a run ended, and what is left of it.
pub fn summary(report: &RunReport, spool: &supervisor::Spool) {
    let exit = report.exit.map(|exit| format!(" ({exit})")).unwrap_or_default();
    let ended = match report.descendants_ended {
        0 => String::new(),
        1 => "1 process that it left behind was ended, ".to_owned(),
        number => format!("{number} processes that it left behind were ended, "),
    };
    let left = match report.tree {
        TreeEnd::ProvenEmpty | TreeEnd::SweptByIdentity => "nothing is left running".to_owned(),
        TreeEnd::LeftAlive { processes } => format!("{processes} could not be ended"),
    };
    let _ = writeln!(io::stderr(), "\n{}{exit} after {} ms; {ended}{left}", report.end, report.duration_ms);
    let _ = writeln!(io::stderr(), "files: {}", spool.folder().display());
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
    if let Some(hint) = failure.hint() {
        let _ = writeln!(stderr, "  hint: {hint}");
    }
}
