//! Everything that talks to the daemon: finding it, starting it when there is none, and asking it.
//!
//! Blocking, and without a runtime: a front-end does one thing at a time, and the bridge has to be small.

mod connect;
mod control;
mod drift;
mod inside;
mod start;

pub use connect::ConnectError;
pub use control::{ask, ask_once, daemon_problem, hear_out, serve_in_background, status, stop};
pub use drift::ConfigDrift;
pub use inside::{belongs_to_a_run, is_supervisor, may_gain_privileges, parent};
pub use start::{FrontError, Starter};
