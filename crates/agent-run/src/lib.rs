//! One run of one agent: start, follow, judge.
//!
//! Owns the only loop that reads a run: it parses the output, decides when to stop an agent that lingers, and judges the end. Knows no
//! job and no store, starts no second run, and reports to nobody but its caller:
//!
//! ```text
//! Launch ──start──► supervisor::Run ──RunFollower──► events … ──► RunEnd ──judge──► Outcome
//! ```
//!
//! Callers differ in what they do meanwhile (a stop request, a signal, a stream that is dropped) and after an error. So
//! [`RunFollower::next`] is one step, which is cancel safe and can be repeated after an error.

mod replay;
mod run;

pub use replay::{replay_output, reported_session};
pub use run::{Expectation, RunEnd, RunFollower, RunStep, prepare, start};
