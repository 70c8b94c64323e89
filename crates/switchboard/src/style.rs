//! Colors, tables and the width of the terminal.
//!
//! A color never carries information that the text does not.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use calls::JobStatus;
use protocol::ProcessEnvironment;

use crate::cli::ColorChoice;

/// The separator of columns.
const GAP: &str = "  ";
/// The minimum width of the last column; other columns are dropped for it.
const MIN_LAST_COLUMN: usize = 30;

static COLOR_CHOICE: OnceLock<ColorChoice> = OnceLock::new();

/// Sets the color choice. Called once, before the first output.
pub fn set_color_choice(choice: ColorChoice) {
    let environment = ProcessEnvironment::current();
    let plain =
        environment.get("NO_COLOR").is_some() || environment.get("TERM").is_none_or(|term| term == "dumb");
    let choice = if choice == ColorChoice::Auto && plain { ColorChoice::Never } else { choice };
    let _ = COLOR_CHOICE.set(choice);
}

/// Returns whether a stream is a terminal, or is treated as one by `--color always`.
pub fn is_interactive(stream: &impl IsTerminal) -> bool {
    COLOR_CHOICE.get() == Some(&ColorChoice::Always) || stream.is_terminal()
}

/// Returns whether a stream is printed in colors.
pub fn is_colored(stream: &impl IsTerminal) -> bool {
    match COLOR_CHOICE.get() {
        Some(ColorChoice::Always) => true,
        Some(ColorChoice::Never) | None => false,
        Some(ColorChoice::Auto) => stream.is_terminal(),
    }
}

fn colorize(code: u8, text: &str, stream: &impl IsTerminal) -> String {
    if is_colored(stream) { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Colors the status of a job.
pub fn job_status(status: JobStatus, stream: &impl IsTerminal) -> String {
    let code = match status {
        JobStatus::Completed => 32,
        JobStatus::Failed | JobStatus::Timeout => 31,
        JobStatus::Cancelled | JobStatus::Paused => 33,
        JobStatus::Running | JobStatus::Queued => 36,
    };
    colorize(code, status.as_str(), stream)
}

/// Colors a text that reports a failure.
pub fn red(text: &str, stream: &impl IsTerminal) -> String {
    colorize(31, text, stream)
}

/// Colors a line of a patch.
pub fn patch_line(line: &str) -> String {
    let code = match line.as_bytes() {
        [b'd' | b'i', ..] | [b'-', b'-', b'-', b' ', ..] | [b'+', b'+', b'+', b' ', ..] => 1,
        [b'+', ..] => 32,
        [b'-', ..] => 31,
        [b'@', ..] => 36,
        _ => return line.to_owned(),
    };
    colorize(code, line, &io::stdout())
}

/// Formats a heading in bold.
pub fn heading(text: &str) -> String {
    colorize(1, text, &io::stdout())
}

fn char_count(text: &str) -> usize {
    text.chars().count()
}

fn widths(heads: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let widest = |at: usize| rows.iter().map(|row| char_count(&row[at])).max().unwrap_or(0);
    heads.iter().enumerate().map(|(at, head)| widest(at).max(char_count(head))).collect()
}

/// Drops optional columns, in the given order, until the last column has enough room on the terminal.
pub fn drop_columns<'a>(
    heads: &[&'a str],
    mut rows: Vec<Vec<String>>,
    optional: &[&str],
    width: Option<usize>,
) -> (Vec<&'a str>, Vec<Vec<String>>) {
    let mut heads = heads.to_vec();
    for optional in optional {
        let widths = widths(&heads, &rows);
        let last = widths.last().copied().unwrap_or_default().min(MIN_LAST_COLUMN);
        let all: usize = widths.iter().rev().skip(1).map(|width| width + GAP.len()).sum();
        if width.is_none_or(|width| all + last <= width) {
            break;
        }
        if let Some(at) = heads.iter().position(|head| head == optional) {
            heads.remove(at);
            for row in &mut rows {
                row.remove(at);
            }
        }
    }
    (heads, rows)
}

/// Formats a table. Lines are truncated at the width of the terminal.
pub fn table(heads: &[&str], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let widths = widths(heads, rows);
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        let line = padded.collect::<Vec<_>>().join(GAP);
        let line = line.trim_end();
        match width {
            Some(width) if char_count(line) > width => {
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

/// Returns the width of the terminal on stdout; `None` if stdout is not a terminal.
pub fn stdout_width() -> Option<usize> {
    terminal_width(io::stdout())
}

/// Returns the width of the terminal on stderr; `None` if stderr is not a terminal.
pub fn stderr_width() -> Option<usize> {
    terminal_width(io::stderr())
}

fn terminal_width(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_fits_its_cells_and_the_terminal() {
        let rows = vec![vec!["a".to_owned(), "long words here".to_owned()]];
        assert_eq!(table(&["ID", "X"], &rows, None), ["ID  X", "a   long words here"]);
        assert_eq!(table(&["ID", "X"], &rows, Some(8))[1], "a   lon…");
    }

    #[test]
    fn optional_columns_are_dropped_on_narrow_terminals() {
        let rows = || vec![vec!["1".to_owned(), "haiku".to_owned(), "$1".to_owned(), "words ".repeat(9)]];
        let heads =
            |width| drop_columns(&["ID", "MODEL", "COST", "PROMPT"], rows(), &["MODEL", "COST"], width).0;
        assert_eq!(heads(None), ["ID", "MODEL", "COST", "PROMPT"]);
        assert_eq!(heads(Some(47)), ["ID", "MODEL", "COST", "PROMPT"]);
        assert_eq!(heads(Some(46)), ["ID", "COST", "PROMPT"]);
        assert_eq!(heads(Some(20)), ["ID", "PROMPT"]);
    }
}
