//! The names under which `web` uses [`render::tool_lines`].

pub use render::tool_lines::{argument, label};
