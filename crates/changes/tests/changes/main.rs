//! Records and undoes changes in real git repositories.
//!
//! Every step of every test runs under a guard: recording must not change any file outside of the record, and restoring
//! must not change any git directory. Both compare contents, modes and modification times.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may")]

mod checkout;
mod conflicts;
mod destination;
mod file_tree;
mod fixture;
mod hostile;
mod hostile_checkout;
mod jobs;
mod kinds;
mod names;
mod protection;
mod pruned_history;
mod repositories;
mod special_files;
mod start_states;
mod steps;
mod undo;
