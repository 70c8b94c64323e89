//! A cache of jobs that have just ended. An ended job never changes, so its waiters need not read it from the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{Job, JobId};

const CAPACITY: usize = 64;
/// Longer jobs are not cached.
const MAX_BYTES: usize = 64 * 1024;

/// The newest ended jobs whose ends are durable.
#[derive(Debug, Default)]
pub(crate) struct RecentJobs(Mutex<VecDeque<Arc<Job>>>);

impl RecentJobs {
    pub fn insert(&self, job: Arc<Job>) {
        let text = job.outcome.as_ref().map_or(0, |outcome| outcome.text.len());
        let metadata = job.metadata.as_ref().map_or(0, String::len);
        if job.completed_at.is_none() || text + metadata + job.order.call.prompt.len() > MAX_BYTES {
            return;
        }
        let mut jobs = self.lock();
        jobs.truncate(CAPACITY - 1);
        jobs.push_front(job);
    }

    pub fn get(&self, job: JobId) -> Option<Arc<Job>> {
        self.lock().iter().find(|recent| recent.id == job).cloned()
    }

    /// Removes jobs that retention has deleted from the store.
    pub fn remove(&self, deleted: &[JobId]) {
        self.lock().retain(|recent| !deleted.contains(&recent.id));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{AgentKind, CallSpec, NewJob, Placement, Timestamp};

    fn ended(number: u64, prompt: &str) -> Job {
        let id = JobId::new(Timestamp::from_millis(number), [0; 10]);
        let call = CallSpec::new(AgentKind::Rehearsal, prompt, "/");
        let order = NewJob::new(call, "call", Placement::Host("here".into()));
        let at = Timestamp::from_millis(number);
        Job { completed_at: Some(at), ..Job::new(id, order, at) }
    }

    #[test]
    fn oldest_and_long_jobs_are_not_cached() {
        let recent = RecentJobs::default();
        for number in 0..=CAPACITY as u64 {
            recent.insert(ended(number, "x").into());
        }
        recent.insert(ended(1_000, &"x".repeat(MAX_BYTES + 1)).into());
        let has = |number| recent.get(ended(number, "x").id).is_some();
        assert!(!has(0) && has(1) && has(CAPACITY as u64) && !has(1_000));
        recent.remove(&[ended(1, "x").id]);
        assert!(!has(1) && has(2));
    }

    #[test]
    fn unfinished_job_is_not_cached() {
        let recent = RecentJobs::default();
        let running = Job { completed_at: None, ..ended(1, "x") };
        let id = running.id;
        recent.insert(running.into());
        assert!(recent.get(id).is_none());
    }
}
