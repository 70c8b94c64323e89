//! The names under which `mcp` and `web` use [`render::text`].

pub use render::text::{
    abbreviate as brief, format_count as counted, format_dollars as dollars, redactions_note,
    sanitize as visible, sanitize_for_terminal as for_terminal, shell_quote as shell_word,
    to_one_line as one_line, truncate as cut,
};
