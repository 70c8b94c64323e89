//! Puts a policy on a process, proves that it holds, and says what held.
//!
//! Owns everything between a [`model::Confinement`] and the kernel: namespaces (through bubblewrap), Landlock, seccomp,
//! limits, closed files. Knows no vendor and no plan; whoever starts a process ([`prepare`]) is `supervisor`.
//!
//! ```text
//! supervisor ─► bwrap ─► inside (pid 1 of its namespace: mounts, rules on itself, then starts) ─► agent ─► its tools …
//! supervisor ─► inside (rules on itself, then becomes) agent ─► its tools …               without namespaces
//! ```
//! `inside` is the supervisor's own executable, started again with another first argument: rules are never put on a
//! process between fork and exec, where a lock that another thread held would hang it, and where a large process pays for
//! its size. What it is to do comes through an open file, not by arguments that every process can read.

mod aliases;
mod beneath;
mod bubblewrap;
mod caches;
mod cgroup;
mod commits;
mod description;
mod door;
mod git_commands;
mod git_includes;
mod git_index;
mod home;
mod home_files;
mod inside;
mod landlock;
mod layout;
mod limits;
mod link_targets;
mod machine;
mod mount_plan;
mod mountinfo;
mod mounts;
mod needed;
mod nested;
mod new_repository;
mod overlap;
mod prepare;
mod probe;
mod proof;
mod proxy;
mod quarantine;
mod real;
mod rebase;
mod remove_tree;
mod report;
mod repositories;
mod repository_watch;
mod request;
mod root_secrets;
mod seccomp;
mod sockets;
mod state;
mod worktree;

pub use caches::{CacheSweep, lease_caches, sweep_caches};
pub use cgroup::{Cgroup, Delegated};
pub use commits::{CommitWatch, CountedCommits};
pub use description::{Applied, Step, Word};
pub use inside::INSIDE;
pub use machine::{Machine, Tier, find_bubblewrap};
pub use nested::NestedRepositories;
pub use prepare::{Job, Prepared, Refusal, prepare};
pub use probe::PROBE;
pub use proof::{Settled, prove, settle};
pub use proxy::Proxy;
pub use quarantine::{HeldRoots, QUARANTINE_DIRECTORY, Quarantine, QuarantineStore, QuarantineTime};
pub use remove_tree::remove_tree;

use std::process::ExitCode;

/// Carries out the part that a process was started for by this crate; none when it is an ordinary one.
///
/// Call it first in `main`, before anything opens a file or starts a thread, and return the code when there is one.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let first = args.next()?;
    if first == INSIDE {
        Some(inside::main(args))
    } else if first == PROBE {
        Some(probe::main(args))
    } else {
        None
    }
}
