//! What the executables of Switchboard are made of and what their tests reach.

pub mod duration;
pub mod listener;
pub mod mcp;
pub mod text;
