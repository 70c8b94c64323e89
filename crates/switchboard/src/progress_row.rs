//! The styles of progress rows.
//!
//! indicatif fills the last row to the right margin and leaves the cursor there, so the `^C` echo of a terminal would wrap to a new row and
//! shift the next redraw by one row. The last row therefore returns the cursor to its first column, where a redraw overwrites the echo.
//! The settings of the terminal are not changed: they would outlive a killed program.

use indicatif::ProgressStyle;

/// Moves the cursor to the first column (CHA). indicatif does not count it as text.
const FIRST_COLUMN: &str = "\x1b[G";

/// Returns the style of a row above others.
pub fn upper(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Returns the style of the last row. Its template contains `{wide_msg}`, so that the row has no text after the cursor has moved.
pub fn last(template: &str) -> ProgressStyle {
    upper(&format!("{template}{FIRST_COLUMN}"))
}
