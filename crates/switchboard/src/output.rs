//! What the user sees. The one place that writes to the terminal: answers to stdout, everything else to stderr.
//!
//! A reader that has gone away (`switchboard … | head`) is no failure; nobody is left to be told.

use std::io::{self, Write};

use model::{Hold, Outcome, RunReport, SandboxReport, TreeEnd};

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
    let _ = writeln!(stderr, "{}", confinement(report));
    if let Some(session) = &outcome.session {
        let _ = writeln!(stderr, "session: {session}");
    }
    let _ = writeln!(stderr, "files: {}", spool.folder().display());
}

/// What confined it; that nothing did is said every time.
fn confinement(report: &RunReport) -> String {
    match &report.sandbox {
        None => "policy: nothing was started".to_owned(),
        Some(SandboxReport::Off) => NO_POLICY.to_owned(),
        Some(SandboxReport::Confined(confined)) => {
            let open: Vec<_> = confined
                .gaps()
                .filter(|gap| gap.hold == Hold::Open)
                .map(|gap| gap.name.to_string())
                .collect();
            let tried = confined.proof.as_ref().map_or(0, |proof| proof.escapes.len());
            policy(&confined.policy.preset.to_string(), &open, tried)
        }
    }
}

/// What is said of a call that nothing confined.
pub const NO_POLICY: &str = "policy: OFF, the agent had all of your rights";

/// What is said of a call that was confined: what was open all the same, and how many ways out were tried.
pub fn policy(preset: &str, open: &[String], tried: usize) -> String {
    let held =
        if open.is_empty() { "all of it held".to_owned() } else { format!("NOT held: {}", open.join(", ")) };
    format!("policy: {preset}, {held}; {tried} ways out were tried and stopped")
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
    if let Some(hint) = failure.hint() {
        let _ = writeln!(stderr, "  hint: {hint}");
    }
}
