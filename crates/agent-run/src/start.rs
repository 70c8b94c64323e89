//! Starts a run.

use std::path::Path;

use model::{RunLifetime, RunPlan, StatusDurability};
use supervisor::{PreparedRun, Run, StartError, Supervisor};

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
