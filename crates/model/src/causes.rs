//! An error in one line, with everything that it came from.

use std::error::Error;

/// What went wrong, and why, down to the first cause.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text
}
