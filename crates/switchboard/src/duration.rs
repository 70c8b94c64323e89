//! The name under which `mcp` uses [`render::duration`].

pub use render::duration::parse as read;
