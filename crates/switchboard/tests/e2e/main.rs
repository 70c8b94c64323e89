//! The daemon and its clients as real processes, and the bridge against a fake daemon.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

mod bridge;
mod bubblewrap_lookup;
mod calls;
mod checkouts;
mod client_environment;
mod configuration;
mod disk;
mod fake_daemon;
mod greeting;
mod harness;
mod hosts;
mod kills;
mod manual;
mod nested;
mod ownership;
mod parameters;
mod planted;
mod pressure;
mod promises;
mod race_kills;
mod races;
mod real_agents;
mod real_races;
mod recorded_changes;
mod recovery;
mod replaced_files;
mod restricted;
mod sandbox_escapes;
mod service;
mod shop;
mod shutdown;
mod startup;
mod stdout_errors;
mod terminal;
mod text_deltas;
