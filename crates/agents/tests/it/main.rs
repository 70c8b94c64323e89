//! What the crate promises, seen from outside.
#![expect(clippy::unwrap_used, reason = "a helper of a test that cannot go on")]

mod doctor;
mod launch;
mod outcome;
mod parser;
mod sequence;
mod transcripts;
