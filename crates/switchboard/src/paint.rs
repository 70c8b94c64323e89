//! How things look on a terminal: colours where they are wanted, spans and sums as a person reads them.
//!
//! A colour never says anything that the word does not.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use calls::JobStatus;

use crate::cli::Colour;
use crate::environment::Environment;

pub use render::duration::format_millis as span;

/// What stands between two columns.
const GAP: &str = "  ";
/// How much of the last column of a table is worth sparing others for.
const ROOM: usize = 30;

static WANTED: OnceLock<Colour> = OnceLock::new();

/// Takes down what the person wants, once, before anything is painted.
pub fn set(colour: Colour) {
    let environment = Environment::of_this_process();
    let plain =
        environment.get("NO_COLOR").is_some() || environment.get("TERM").is_none_or(|term| term == "dumb");
    let wanted = if colour == Colour::Auto && plain { Colour::Never } else { colour };
    // Told once; a second word would change nothing.
    let _ = WANTED.set(wanted);
}

/// Whether a stream is read by a person: a terminal, or something that is said to be as good as one.
pub fn is_for_eyes(stream: &impl IsTerminal) -> bool {
    WANTED.get() == Some(&Colour::Always) || stream.is_terminal()
}

/// Whether a stream is printed in colors.
pub fn paints(stream: &impl IsTerminal) -> bool {
    match WANTED.get() {
        Some(Colour::Always) => true,
        Some(Colour::Never) | None => false,
        Some(Colour::Auto) => stream.is_terminal(),
    }
}

fn painted(code: u8, text: &str, stream: &impl IsTerminal) -> String {
    if paints(stream) { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Where a job stands.
pub fn standing(standing: JobStatus, stream: &impl IsTerminal) -> String {
    let code = match standing {
        JobStatus::Completed => 32,
        JobStatus::Failed | JobStatus::Timeout => 31,
        JobStatus::Cancelled | JobStatus::Paused => 33,
        JobStatus::Running | JobStatus::Queued => 36,
    };
    painted(code, standing.as_str(), stream)
}

/// Paints a text that reports a failure.
pub fn red(text: &str, stream: &impl IsTerminal) -> String {
    painted(31, text, stream)
}

/// A heading.
pub fn heading(text: &str) -> String {
    painted(1, text, &io::stdout())
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn widths(heads: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let widest = |at: usize| rows.iter().map(|row| length(&row[at])).max().unwrap_or(0);
    heads.iter().enumerate().map(|(at, head)| widest(at).max(length(head))).collect()
}

/// The table without the columns that can be spared, in that order, until its last column has some room on the terminal.
pub fn fitting<'a>(
    heads: &[&'a str],
    mut rows: Vec<Vec<String>>,
    spared: &[&str],
    width: Option<usize>,
) -> (Vec<&'a str>, Vec<Vec<String>>) {
    let mut heads = heads.to_vec();
    for spared in spared {
        let widths = widths(&heads, &rows);
        let last = widths.last().copied().unwrap_or_default().min(ROOM);
        let all: usize = widths.iter().rev().skip(1).map(|width| width + GAP.len()).sum();
        if width.is_none_or(|width| all + last <= width) {
            break;
        }
        if let Some(at) = heads.iter().position(|head| head == spared) {
            heads.remove(at);
            for row in &mut rows {
                row.remove(at);
            }
        }
    }
    (heads, rows)
}

/// Rows in columns that are as wide as they must be. The last column is cut where the terminal ends.
pub fn table(heads: &[&str], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let widths = widths(heads, rows);
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        let line = padded.collect::<Vec<_>>().join(GAP);
        let line = line.trim_end();
        match width {
            Some(width) if length(line) > width => {
                line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
            }
            _ => line.to_owned(),
        }
    };
    let head = heading(&line(heads.to_vec()));
    std::iter::once(head)
        .chain(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())))
        .collect()
}

/// How wide the terminal is; none when stdout is none.
pub fn width() -> Option<usize> {
    width_of(io::stdout())
}

/// Returns the width of the terminal on stderr; none when stderr is not a terminal.
pub fn stderr_width() -> Option<usize> {
    width_of(io::stderr())
}

fn width_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_as_wide_as_its_cells_and_no_wider_than_the_terminal() {
        let rows = vec![vec!["a".to_owned(), "long words here".to_owned()]];
        assert_eq!(table(&["ID", "X"], &rows, None), ["ID  X", "a   long words here"]);
        assert_eq!(table(&["ID", "X"], &rows, Some(8))[1], "a   lon…");
    }

    #[test]
    fn columns_that_can_be_spared_make_room_for_the_last_and_only_where_it_is_narrow() {
        let rows = || vec![vec!["1".to_owned(), "haiku".to_owned(), "$1".to_owned(), "words ".repeat(9)]];
        let heads = |width| fitting(&["ID", "MODEL", "COST", "PROMPT"], rows(), &["MODEL", "COST"], width).0;
        assert_eq!(heads(None), ["ID", "MODEL", "COST", "PROMPT"]);
        assert_eq!(heads(Some(47)), ["ID", "MODEL", "COST", "PROMPT"]);
        assert_eq!(heads(Some(46)), ["ID", "COST", "PROMPT"]);
        assert_eq!(heads(Some(20)), ["ID", "PROMPT"]);
    }
}
