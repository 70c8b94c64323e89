//! Applies a policy to a process, tests that the policy holds and reports which safeguards are enforced.
//!
//! Owns everything between a [`model::Confinement`] and the kernel: namespaces (through bubblewrap), Landlock, seccomp, resource limits,
//! inherited descriptors. Knows no vendor and no run plan; the `supervisor` spawns the process that [`prepare`] returns.
//!
//! ```text
//! supervisor ─► bwrap ─► launcher (pid 1 of its namespace: creates mounts, applies rules to itself, spawns) ─► agent ─► tools …
//! supervisor ─► launcher (applies rules to itself, calls exec) agent ─► tools …                without namespaces
//! ```
//! The launcher is the supervisor's own executable, started again with another first argument. Rules are never applied between fork and
//! exec: a lock held by another thread would deadlock there, and a fork costs time in proportion to the size of the process. The launcher
//! reads its spec from a descriptor, since arguments are visible to every process.

mod aliases;
mod beneath;
mod bubblewrap;
mod caches;
mod cgroup;
mod change_time;
mod commits;
mod git_commands;
mod git_includes;
mod git_index;
mod home;
mod home_files;
mod inert_repository;
mod landlock;
mod launcher;
mod launcher_protocol;
mod layout;
mod layout_builder;
mod limits;
mod link_targets;
mod mechanisms;
mod mount_plan;
mod mountinfo;
mod mounts;
mod needed_paths;
mod nested_repositories;
mod prepare;
mod probe;
mod proxy;
mod proxy_listener;
mod proxy_request;
mod quarantine;
mod real_path;
mod rebase;
mod rejection;
mod remove_tree;
mod report;
mod repository_walk;
mod repository_watch;
mod root_secrets;
mod seccomp;
mod self_test;
mod sockets;
mod state_view;
mod unlock;
mod untrusted_paths;
mod worktree;
mod writable_roots;

pub use caches::{CacheSweep, lease_caches, sweep_caches};
pub use cgroup::{Cgroup, DelegatedCgroup};
pub use commits::{CommitWatch, CountedCommits};
pub use launcher_protocol::{AppliedRules, LaunchStep, LauncherEvent};
pub use mechanisms::{Mechanisms, Tier, VerifiedSandbox, find_bubblewrap};
pub use nested_repositories::NestedRepositories;
pub use prepare::{PreparedSandbox, SandboxedCommand, prepare};
pub use proxy::Proxy;
pub use quarantine::{QUARANTINE_DIRECTORY, Quarantine, QuarantineStore, QuarantineTime};
pub use rejection::SandboxRejection;
pub use remove_tree::remove_tree;
pub use self_test::{select_and_verify, self_test};
pub use writable_roots::HeldRoots;

use std::process::ExitCode;

/// Runs the launcher or the probe if this process was started as one, and returns its exit code.
///
/// Must be called first in `main`, before any file is opened and any thread is started.
pub fn run_if_requested() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let first = args.next()?;
    if first == launcher::LAUNCHER_ARGUMENT {
        Some(launcher::main(args))
    } else if first == probe::PROBE_ARGUMENT {
        Some(probe::main(args))
    } else {
        None
    }
}
