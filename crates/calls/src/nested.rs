//! Calls that an agent places while its own call runs.
//!
//! Most agents wait for them, and keep their slot meanwhile. If a nested call had to wait for a slot of its own, two jobs could wait for
//! each other for good. So a parent lends its slot to the calls that are placed on its behalf, and they count towards it.

use model::{Job, JobId};
use store::{JobFilter, PageRequest};
use supervisor::Run;

use crate::desk::{Inner, JobService};
use crate::error::CallError;
use crate::live::ParentRun;

/// How deep calls may be nested: each level takes up one more slot than the operator allows.
const MOST_LEVELS: usize = 4;
/// How many calls of one agent are looked at after a restart, the newest first.
const MOST_RESUMED: u32 = 100;

impl JobService {
    /// Returns the job whose supervisor is among these processes.
    pub fn job_of_processes(&self, processes: &[u32]) -> Option<JobId> {
        let jobs = self.0.board.all();
        let is_among = |run: ParentRun| processes.contains(&run.supervisor);
        jobs.iter().find(|live| live.nesting().run.is_some_and(is_among)).map(|live| live.claim.job)
    }
}

impl Inner {
    /// Remembers which run is under way, so that its agent is known when it places a call.
    pub(crate) fn note_run(&self, job: &Job, run: &Run) {
        let supervisor = run.supervisor().and_then(|process| u32::try_from(process.pid).ok());
        if let (Some(live), Some(supervisor)) = (self.board.get(job.id), supervisor) {
            let agent = job.order.call.agent;
            live.nesting().run = Some(ParentRun { agent, supervisor, parent: job.order.parent });
        }
    }

    /// Takes up the nesting of a run that an earlier desk has started: its agent may wait for calls that it placed there.
    pub(crate) async fn resume_nesting(&self, job: &Job, run: &Run) {
        self.note_run(job, run);
        let filter = JobFilter { parent: Some(job.id), ..JobFilter::default() };
        match self.store.list(&filter, PageRequest { limit: MOST_RESUMED, before: None }).await {
            Ok(page) => {
                let waiting = page.jobs.into_iter().filter(|nested| nested.state.ended().is_none());
                waiting.for_each(|nested| self.lend_slot(Some(job.id), nested.id));
            }
            Err(error) => tracing::warn!(job = %job.id, %error, "cannot list the calls of a running agent"),
        }
    }

    /// Refuses a call that is nested too deep.
    pub(crate) fn check_nesting(&self, parent: Option<JobId>) -> Result<(), CallError> {
        let mut above = parent;
        for _ in 0..MOST_LEVELS {
            let Some(job) = above else { return Ok(()) };
            above = self.board.get(job).and_then(|live| live.nesting().run?.parent);
        }
        if above.is_some() { Err(CallError::NestedTooDeep { levels: MOST_LEVELS }) } else { Ok(()) }
    }

    /// Lends the slot of a running parent to a call that is about to be placed.
    pub(crate) fn lend_slot(&self, parent: Option<JobId>, nested: JobId) {
        let Some(live) = parent.and_then(|parent| self.board.get(parent)) else { return };
        let mut nesting = live.nesting();
        let Some(ParentRun { agent, .. }) = nesting.run else { return };
        nesting.calls.insert(nested);
        nesting.loan.get_or_insert_with(|| self.seats.lend(agent));
    }

    /// Takes the slot back when the last nested call of a parent has ended.
    pub(crate) fn return_slot(&self, parent: Option<JobId>, nested: JobId) {
        let Some(live) = parent.and_then(|parent| self.board.get(parent)) else { return };
        let mut nesting = live.nesting();
        if nesting.calls.remove(&nested) && nesting.calls.is_empty() {
            nesting.loan = None;
        }
    }

    /// Whether a job is among those on whose behalf another was placed.
    pub(crate) fn is_above(&self, job: JobId, nested: &Job) -> bool {
        let mut above = nested.order.parent;
        for _ in 0..=MOST_LEVELS {
            match above {
                Some(parent) if parent == job => return true,
                Some(parent) => above = self.board.get(parent).and_then(|live| live.nesting().run?.parent),
                None => return false,
            }
        }
        false
    }
}
