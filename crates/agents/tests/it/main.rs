//! Tests of the public interface.
#![expect(clippy::unwrap_used, reason = "a helper of a test that cannot go on")]

mod conversations;
mod doctor;
mod documentation;
mod driver;
mod launch;
mod outcome;
mod sequence;
mod transcripts;
