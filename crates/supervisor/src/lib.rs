//! Runs one agent process tree from spawn to reap, into a spool.
//!
//! Owns the process tree: when a run has ended, no descendant of it is alive, and the report says how sure that is. Knows no
//! vendor (what the bytes mean is read elsewhere) and no database.
//!
//! Two halves meet in the spool, a directory of plain files (see [`Spool`]):
//!
//! - the **supervisor**, a small process of its own ([`main`]), which carries out a [`model::RunPlan`] and outlives whoever
//!   asked for it;
//! - the **handle** ([`Run`]), with which a program starts a run, or finds one again after a restart of its own.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use model::RunPlan;
//! use supervisor::{RunEvent, Supervisor};
//!
//! let plan = RunPlan { stdin: b"What is 2 + 2?".to_vec(), ..RunPlan::new("/usr/bin/cat", "/tmp") };
//! let run = Supervisor::beside_this_program()?.start("/var/tmp/my-spool".as_ref(), &plan).await?;
//! let mut events = run.events(Default::default())?;
//! while let Some(event) = events.next().await? {
//!     if let RunEvent::Output(bytes) = event {
//!         println!("{}", String::from_utf8_lossy(&bytes));
//!     }
//! }
//! let report = run.wait().await?;
//! println!("{}, {} processes had to be ended", report.end, report.descendants_ended);
//! # Ok(()) }
//! ```
//!
//! # When the supervisor is suspended
//!
//! A suspended supervisor (SIGSTOP) enforces no limit. [`Run::wait`] and [`Events`] then do it for it: a second after a deadline
//! or a stop request they continue the supervisor, and when that has not helped three times, they kill it with all its
//! processes. The run ends as the deadline or the stop that was due.
//!
//! # What holds when the supervisor itself is killed with SIGKILL
//!
//! The kernel kills the agent's own process with it. What the agent had started lives on until somebody recovers the run:
//! [`Run::wait`] does that at once in a program that is watching, [`recover`] does it later for one that was not. Both find
//! the survivors by the run id in their environment, by the session they belong to and by descent, never by name. A process
//! that has cleared its environment *and* left both the session and its ancestors is not found that way.
//!
//! A run that is confined ([`model::Policy::Confined`], where bubblewrap is) has a pid namespace, and all of it goes with the
//! supervisor, whatever it did to hide.

mod active_runs;
mod clock;
mod confine;
mod deadlines;
mod error;
mod events;
mod fork_server;
mod handle;
mod launch;
mod locked_spool;
mod log;
mod manifest;
mod not_started;
mod path_guard;
mod program;
mod readiness;
mod recovery;
mod regular;
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
compile_error!(
    "the supervisor is built and proven on Linux; a port gives the functions of `linux` a sibling module"
);

pub use error::SpoolError;
pub use events::{Events, Offsets, RunEvent};
pub use handle::{AttachError, Run, StopReply, WaitError, attach};
pub use os::{ProcessInfo, close_inherited_files};
pub use program::{main, run_if_asked};
pub use recovery::{RecoverError, recover, stop_unreadable_run};
pub use regular::{create_regular, open_regular, read_regular};
pub use sandbox::{CacheSweep, find_bubblewrap, sweep_caches};
pub use self_test::{NoSandbox, ProvenSandbox};
pub use spool::Spool;
pub use start::{PreparedRun, StartError, Supervisor};
