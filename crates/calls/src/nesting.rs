//! Calls that an agent places while its own call runs.
//!
//! Most agents wait for such calls and keep their slot meanwhile. If a nested call had to wait for a slot of its own, two jobs could
//! deadlock. So a parent lends its slot to its nested calls, and they count towards it.

use std::sync::Arc;

use model::{Job, JobId};
use store::{JobFilter, PageRequest, Store};
use supervisor::Run;

use crate::active::{ActiveJobs, ParentRun};
use crate::error::CallError;
use crate::slots::Slots;

/// The deepest nesting: each level occupies one slot beyond the operator's limit.
const MAX_DEPTH: usize = 4;
/// The maximum number of calls of one agent that are restored after a restart, the newest first.
const MAX_RESTORED: u32 = 100;

/// The parent-child relations of active jobs. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct NestedCalls {
    active: Arc<ActiveJobs>,
    slots: Arc<Slots>,
}

impl NestedCalls {
    pub fn new(active: Arc<ActiveJobs>, slots: Arc<Slots>) -> Self {
        Self { active, slots }
    }

    /// Returns the job whose supervisor is among these processes.
    pub fn find_parent(&self, processes: &[u32]) -> Option<JobId> {
        let is_among = |run: ParentRun| processes.contains(&run.supervisor);
        let jobs = self.active.all();
        jobs.iter().find(|active| active.nesting().run.is_some_and(is_among)).map(|active| active.claim.job)
    }

    /// Registers the current run of a job, so that calls of its agent are recognized.
    pub fn register_run(&self, job: &Job, run: &Run) {
        let supervisor = run.supervisor().and_then(|process| u32::try_from(process.pid).ok());
        if let (Some(active), Some(supervisor)) = (self.active.get(job.id), supervisor) {
            let agent = job.order.call.agent;
            active.nesting().run = Some(ParentRun { agent, supervisor, parent: job.order.parent });
        }
    }

    /// Restores the nesting of a run that was started before a restart: its agent may be waiting for calls it placed then.
    pub async fn restore_run(&self, store: &Store, job: &Job, run: &Run) {
        self.register_run(job, run);
        let filter = JobFilter { parent: Some(job.id), ..JobFilter::default() };
        match store.list(&filter, PageRequest { limit: MAX_RESTORED, before: None }).await {
            Ok(page) => {
                let unfinished = page.jobs.into_iter().filter(|nested| nested.state.ended().is_none());
                unfinished.for_each(|nested| self.lend_slot(Some(job.id), nested.id));
            }
            Err(error) => tracing::warn!(job = %job.id, %error, "cannot list the calls of a running agent"),
        }
    }

    /// Refuses a call that is nested too deep.
    pub fn check_depth(&self, parent: Option<JobId>) -> Result<(), CallError> {
        let mut ancestor = parent;
        for _ in 0..MAX_DEPTH {
            let Some(job) = ancestor else { return Ok(()) };
            ancestor = self.parent_of(job);
        }
        if ancestor.is_some() { Err(CallError::NestedTooDeep { levels: MAX_DEPTH }) } else { Ok(()) }
    }

    /// Lends the slot of a running parent to a call that is about to be stored.
    pub fn lend_slot(&self, parent: Option<JobId>, nested: JobId) {
        let Some(active) = parent.and_then(|parent| self.active.get(parent)) else { return };
        let mut nesting = active.nesting();
        let Some(ParentRun { agent, .. }) = nesting.run else { return };
        nesting.calls.insert(nested);
        nesting.loan.get_or_insert_with(|| self.slots.lend(agent));
    }

    /// Takes the slot back when the last nested call of a parent has ended.
    pub fn return_slot(&self, parent: Option<JobId>, nested: JobId) {
        let Some(active) = parent.and_then(|parent| self.active.get(parent)) else { return };
        let mut nesting = active.nesting();
        if nesting.calls.remove(&nested) && nesting.calls.is_empty() {
            nesting.loan = None;
        }
    }

    /// Returns whether a job is an ancestor of another.
    pub fn is_ancestor(&self, job: JobId, nested: &Job) -> bool {
        let mut ancestor = nested.order.parent;
        for _ in 0..=MAX_DEPTH {
            match ancestor {
                Some(parent) if parent == job => return true,
                Some(parent) => ancestor = self.parent_of(parent),
                None => return false,
            }
        }
        false
    }

    fn parent_of(&self, job: JobId) -> Option<JobId> {
        self.active.get(job).and_then(|active| active.nesting().run?.parent)
    }
}
