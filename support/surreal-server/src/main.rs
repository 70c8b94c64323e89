//! The `surreal` program, built from the published library, as the other end of the store's tests.
//!
//! Adds nothing to it and is never shipped: a product talks to a server that somebody runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    surrealdb_server::init(surrealdb_server::core::CommunityComposer())
}
