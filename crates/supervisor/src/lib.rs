//! Runs one agent process tree from spawn to reap, into a spool.
//!
//! Owns the process tree: when a run has ended, no descendant of it is alive, and the report states how certain that
//! is. Knows no vendor (the output is parsed by `agents`) and no database.
//!
//! A run has two halves, which meet in the spool, a directory of plain files (see [`Spool`]):
//!
//! - the **supervisor**, a small process ([`main`]) that executes a [`model::RunPlan`] and outlives its starter;
//! - the **handle** ([`Run`]), through which a program starts a run, or reattaches to it after a restart.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use model::RunPlan;
//! use supervisor::{RunEvent, Supervisor};
//!
//! let plan = RunPlan { input: b"What is 2 + 2?".to_vec(), ..RunPlan::new("/usr/bin/cat", "/tmp") };
//! let run = Supervisor::beside_this_program()?.start("/var/tmp/my-spool".as_ref(), &plan).await?;
//! let mut events = run.events(Default::default())?;
//! while let Some(event) = events.next().await? {
//!     if let RunEvent::Output(bytes) = event {
//!         println!("{}", String::from_utf8_lossy(&bytes));
//!     }
//! }
//! let report = run.wait().await?;
//! println!("{}, {} processes were killed", report.end, report.descendants_ended);
//! # Ok(()) }
//! ```
//!
//! # Suspended supervisor
//!
//! A suspended supervisor (SIGSTOP) enforces no limit. [`Run::wait`] and [`Events`] enforce them in its place: one
//! second after a deadline or a stop request they send SIGCONT to the supervisor, and after three failed attempts they
//! kill it with its process tree. The run ends with the deadline or the stop request that was due.
//!
//! # Killed supervisor
//!
//! If the supervisor is killed with SIGKILL, the kernel kills the agent's own process with it. Processes that the agent
//! started survive until the run is recovered: [`Run::wait`] does that immediately in a program that waits for the run,
//! [`recover`] later in any other. Both find the survivors by the run id in their environment, by session and by
//! descent, never by name. A process that has cleared its environment *and* left both the session and its ancestors is
//! not found.
//!
//! A confined run ([`model::Policy::Confined`], where bubblewrap is available) has its own pid namespace. The kernel
//! kills the whole namespace with the supervisor.

mod active_runs;
mod clock;
mod confine;
mod deadlines;
mod error;
mod events;
mod fork_server;
mod handle;
mod input_pump;
mod launch;
mod locked_spool;
mod log;
mod manifest;
mod not_started;
mod path_guard;
mod program;
mod readiness;
mod recovery;
mod run_command;
mod run_input;
mod self_test;
mod setup;
mod spool;
mod spool_files;
mod spooled_stream;
mod start;
mod status_pipe;
mod supervision;
mod watchdog;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as os;
#[cfg(not(target_os = "linux"))]
compile_error!("the supervisor supports only Linux; a port adds a sibling module of `linux`");

pub use error::SpoolError;
pub use events::{Events, Offsets, RunEvent};
pub use handle::{AttachError, Run, StopReply, WaitError, attach};
pub use os::{ProcessInfo, close_inherited_files};
pub use program::{main, run_if_asked};
pub use recovery::{RunRecoveryError, recover, stop_unreadable_run};
pub use run_input::{InputLocked, RunInput};
pub use sandbox::{CacheSweep, find_bubblewrap, sweep_caches};
pub use self_test::{NoSandbox, ProvenSandbox};
pub use spool::Spool;
pub use start::{PreparedRun, StartError, Supervisor};
