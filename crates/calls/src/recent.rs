//! The jobs that have just ended, for those who waited for them: an ended job never changes, so it need not be read again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use model::{Job, JobId};

/// How many are kept.
const KEPT: usize = 64;
/// Nothing longer is kept: those who want it read it.
const LONGEST: usize = 64 * 1024;

/// The newest ended jobs of this desk.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<Arc<Job>>>);

impl Recent {
    pub fn keep(&self, job: Arc<Job>) {
        let said = job.outcome.as_ref().map_or(0, |outcome| outcome.text.len());
        let told = job.metadata.as_ref().map_or(0, String::len);
        if job.completed_at.is_none() || said + told + job.order.call.prompt.len() > LONGEST {
            return;
        }
        let mut jobs = self.lock();
        jobs.truncate(KEPT - 1);
        jobs.push_front(job);
    }

    pub fn get(&self, job: JobId) -> Option<Arc<Job>> {
        self.lock().iter().find(|kept| kept.id == job).cloned()
    }

    /// They were removed from the store.
    pub fn forget(&self, gone: &[JobId]) {
        self.lock().retain(|kept| !gone.contains(&kept.id));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Job>>> {
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
    fn the_newest_are_kept_and_no_long_one() {
        let recent = Recent::default();
        for number in 0..=KEPT as u64 {
            recent.keep(ended(number, "x").into());
        }
        recent.keep(ended(1_000, &"x".repeat(LONGEST + 1)).into());
        let has = |number| recent.get(ended(number, "x").id).is_some();
        assert!(!has(0) && has(1) && has(KEPT as u64) && !has(1_000));
        recent.forget(&[ended(1, "x").id]);
        assert!(!has(1) && has(2));
    }

    #[test]
    fn one_that_goes_on_is_not_kept() {
        let recent = Recent::default();
        let running = Job { completed_at: None, ..ended(1, "x") };
        let id = running.id;
        recent.keep(running.into());
        assert!(recent.get(id).is_none());
    }
}
