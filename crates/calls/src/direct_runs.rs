//! The directories of runs without a job, which `switchboard call --direct` leaves beside those of jobs.
//!
//! Owns their retention. The store does not know them.

use std::fs;
use std::io;
use std::path::Path;

use model::{JobId, RunState, RunStatus};
use regular_file::read_regular;

/// Returns the ended runs without a job that are not among the newest `max_count` directories in `jobs`.
pub(crate) fn outdated(jobs: &Path, max_count: u64) -> io::Result<Vec<JobId>> {
    let entries = fs::read_dir(jobs)?;
    let mut ids: Vec<JobId> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable_by(|one, other| other.cmp(one));
    let old = ids.into_iter().skip(usize::try_from(max_count).unwrap_or(usize::MAX));
    Ok(old.filter(|id| is_ended_run(&jobs.join(id.to_string()))).collect())
}

/// Returns whether a directory is the spool of an ended run. The directory of a job has its runs one level below.
fn is_ended_run(directory: &Path) -> bool {
    let status = read_regular(&directory.join("status.json")).ok();
    let status = status.and_then(|bytes| serde_json::from_slice::<RunStatus>(&bytes).ok());
    let is_over = status.is_some_and(|status| matches!(status.state, RunState::Ended(_)));
    is_over && !directory.join("runs").exists()
}

#[cfg(test)]
mod tests {
    use model::Timestamp;
    use serde_json::json;

    use super::*;

    fn directory(jobs: &Path, at: u64, status: &serde_json::Value) -> JobId {
        let id = JobId::first_of(Timestamp::from_millis(at));
        fs::create_dir(jobs.join(id.to_string())).unwrap();
        fs::write(jobs.join(id.to_string()).join("status.json"), status.to_string()).unwrap();
        id
    }

    fn run(state: &serde_json::Value) -> serde_json::Value {
        json!({
            "version": 1,
            "run_id": "6d1a4e11-92ce-45e3-b38e-099146f2ae85",
            "boot_id": "b",
            "supervisor": {"pid": 1, "start_ticks": 1},
            "started_at_ms": 1,
            "state": state,
        })
    }

    #[test]
    fn old_ended_runs_without_a_job_are_outdated() {
        let scratch = tempfile::tempdir().unwrap();
        let jobs = scratch.path();
        let usage = json!({"cpu_user_ms": 1, "cpu_system_ms": 1, "largest_rss_bytes": 1});
        let ended = run(&json!({"ended": {
            "end": {"how": "exited"}, "exit": {"code": 0}, "ended_at_ms": 2, "duration_ms": 1, "output_bytes": 0,
            "error_bytes": 0, "usage": usage, "descendants_ended": 0, "tree": "proven_empty"
        }}));
        let running = run(&json!({"running": {"agent": {"pid": 2, "start_ticks": 1}}}));
        let job = json!({"state": "completed"});
        let old = directory(jobs, 1, &ended);
        directory(jobs, 2, &running);
        directory(jobs, 3, &job);
        let newer = directory(jobs, 4, &ended);
        directory(jobs, 5, &job);
        assert_eq!(outdated(jobs, 5).unwrap(), []);
        assert_eq!(outdated(jobs, 2).unwrap(), [old]);
        assert_eq!(outdated(jobs, 1).unwrap(), [newer, old]);
    }
}
