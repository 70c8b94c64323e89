//! The daemon and its front-ends as real processes, and the bridge against a daemon that a test plays.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

mod agreeing;
mod bed;
mod bridge;
mod calling;
mod configuring;
mod disk;
mod greeting;
mod hosts;
mod killing;
mod known_holes;
mod manual;
mod nested;
mod pieces;
mod played;
mod pressure;
mod promises;
mod real_agents;
mod recovering;
mod refusing;
mod restricted;
mod service;
mod starting;
mod stopping;
mod terminal;
mod unconfined;
mod unwritten;
mod whose;
