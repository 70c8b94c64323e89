//! The runs of a job as its directory shows them.

use std::path::Path;
use std::time::Duration;

use model::{AgentKind, RunState, SessionId};
use supervisor::{Run, Spool};

use crate::files::JobFiles;

/// The time that a run that cannot be followed has to stop.
const STOP_TIMEOUT: Duration = Duration::from_mins(1);

/// Returns the session that the agent itself reported in a run.
pub(crate) fn reported_session(files: &JobFiles, run: u32, agent: AgentKind) -> Option<SessionId> {
    agent_run::reported_session(&Spool::at(files.run(run)), agent)
}

/// Returns how long an ended run took; zero if that is unknown.
pub(crate) fn duration(files: &JobFiles, run: u32) -> Duration {
    match Spool::at(files.run(run)).status().ok().flatten().map(|status| status.state) {
        Some(RunState::Ended(report)) => Duration::from_millis(report.duration_ms),
        _ => Duration::ZERO,
    }
}

/// Stops the newest run of a job and its commands, and waits until their process trees are gone.
pub(crate) async fn stop_all(files: &JobFiles) {
    if let Some(number) = files.runs().last() {
        stop(&files.run(*number)).await;
    }
    stop_commands(files).await;
}

/// Stops the commands of a job, and waits until their process trees are gone.
pub(crate) async fn stop_commands(files: &JobFiles) {
    for directory in files.commands() {
        stop(&directory).await;
    }
}

async fn stop(directory: &Path) {
    if let Ok(run) = supervisor::attach(directory).await {
        let _ = run.stop();
        let _ = run.wait().await;
    }
}

/// Stops a run that cannot be followed. Its process tree must not outlive the job.
pub(crate) async fn stop_unfollowed(run: &Run) {
    let _ = run.stop();
    let _ = tokio::time::timeout(STOP_TIMEOUT, run.wait()).await;
}
