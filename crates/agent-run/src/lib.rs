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

mod follower;
mod replay;

use std::path::Path;

use model::{RunLifetime, RunPlan, StatusDurability};
use supervisor::{PreparedRun, Run, StartError, Supervisor};

pub use follower::{Expectation, RunEnd, RunFollower, RunStep};
pub use replay::{replay_output, reported_session};

/// Starts a run that ends with this process, even if that is killed: nobody else would read its outcome.
pub async fn start(supervisor: &Supervisor, directory: &Path, plan: RunPlan) -> Result<Run, StartError> {
    let plan = RunPlan { lifetime: RunLifetime::BoundToStarter, ..plan };
    supervisor.start(directory, &plan).await
}

/// Prepares a run that outlives this process. Nothing is started yet. The caller stores the outcome durably, so the status file need
/// not survive a power cut.
pub fn prepare<'a>(
    supervisor: &'a Supervisor,
    directory: &Path,
    plan: RunPlan,
) -> Result<PreparedRun<'a>, StartError> {
    let plan = RunPlan { status_durability: StatusDurability::ProcessExit, ..plan };
    supervisor.prepare(directory, &plan)
}
