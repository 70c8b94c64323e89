//! Text for people, shared by the terminal, the MCP server and the web page.
//!
//! Owns sanitizing of agent output, the format of durations and figures, tool-call lines and the merging of text deltas. Has no I/O,
//! no clock but the age of a tool call, and no knowledge of jobs: callers pass plain values.

pub mod duration;
pub mod text;
pub mod text_deltas;
pub mod tool_lines;
