//! Tests of the public interface.
#![expect(clippy::unwrap_used, reason = "a helper of a test that cannot go on")]

mod doctor;
mod launch;
mod outcome;
mod parser;
mod sequence;
mod transcripts;
