//! The jobs that this service is running: stop requests, activity, outcomes.
//!
//! In memory only; the store and the job's files hold everything that must survive a restart.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use model::{AgentKind, Claim, Job, JobId, Timestamp};
use tokio::sync::{SetOnce, watch};
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::slots::SlotLoan;
use crate::wait_reason::WaitReason;

/// Why a job must stop, or must not start its next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// A caller cancelled the job.
    User,
    /// All jobs are cancelled.
    CancelAll,
    /// Another owner holds the job.
    LostClaim,
    /// The service drains: running agents finish, and no further run starts.
    Drain,
    /// The service detaches: running agents continue under their supervisors.
    Detach,
}

/// A job that this service has claimed and not released yet.
#[derive(Debug)]
pub(crate) struct ActiveJob {
    pub claim: Claim,
    pub activity: watch::Sender<Activity>,
    stop: SetOnce<StopReason>,
    end: SetOnce<Arc<Job>>,
    released: CancellationToken,
    nesting: Mutex<Nesting>,
}

/// The calls that the agent of a job has placed during its current run.
#[derive(Debug, Default)]
pub(crate) struct Nesting {
    pub run: Option<ParentRun>,
    /// The calls that have not ended.
    pub calls: HashSet<JobId>,
    /// The job's slot, lent while there are such calls.
    pub loan: Option<SlotLoan>,
}

/// A run whose agent may place calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParentRun {
    pub agent: AgentKind,
    /// The process id of its supervisor.
    pub supervisor: u32,
    /// The parent of the job itself.
    pub parent: Option<JobId>,
}

impl ActiveJob {
    fn new(claim: &Claim) -> Self {
        Self {
            claim: claim.clone(),
            activity: watch::Sender::new(Activity::default()),
            stop: SetOnce::new(),
            end: SetOnce::new(),
            released: CancellationToken::new(),
            nesting: Mutex::default(),
        }
    }

    /// Asks the runner to stop the job. The first reason stays.
    pub fn request_stop(&self, reason: StopReason) {
        let _ = self.stop.set(reason);
    }

    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop.get().copied()
    }

    pub async fn stop_requested(&self) -> StopReason {
        *self.stop.wait().await
    }

    /// Publishes the ended job once its end is committed and in its files. It is not durable before [`Self::released`].
    pub fn publish_end(&self, job: Arc<Job>) {
        let _ = self.end.set(job);
    }

    /// Returns the ended job. Callers must not see it before [`Self::released`] resolves.
    pub fn end(&self) -> Option<&Arc<Job>> {
        self.end.get()
    }

    /// Returns whether [`Self::ended_or_released`] has resolved.
    pub fn is_ended_or_released(&self) -> bool {
        self.end.get().is_some() || self.released.is_cancelled()
    }

    /// Waits until the end is committed, or the job is released without one.
    pub async fn ended_or_released(&self) {
        tokio::select! {
            _ = self.end.wait() => {}
            () = self.released.cancelled() => {}
        }
    }

    /// Waits until the runner is done with the job: its end is durable, or it is queued or paused again.
    pub async fn released(&self) {
        self.released.cancelled().await;
    }

    pub fn nesting(&self) -> MutexGuard<'_, Nesting> {
        self.nesting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes why the job waits. Its run time does not grow meanwhile.
    pub fn set_waiting(&self, reason: WaitReason, now: Timestamp) {
        self.activity.send_modify(|activity| {
            activity.ran_before = activity.run_time(now);
            activity.run_started_at = None;
            activity.line = reason.to_string();
            activity.waiting = Some(reason);
        });
    }
}

/// Waits until one of the futures is ready. Never resolves if there is none.
pub(crate) async fn any_ready<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|context| {
        let any = futures.iter_mut().any(|future| future.as_mut().poll(context).is_ready());
        if any { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The active jobs of this service.
#[derive(Debug, Default)]
pub(crate) struct ActiveJobs(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    jobs: HashMap<JobId, Arc<ActiveJob>>,
    stops_all: bool,
}

impl ActiveJobs {
    pub fn register(&self, claim: &Claim) -> Arc<ActiveJob> {
        let active = Arc::new(ActiveJob::new(claim));
        let mut registry = self.lock();
        if registry.stops_all {
            active.request_stop(StopReason::CancelAll);
        }
        registry.jobs.insert(claim.job, Arc::clone(&active));
        active
    }

    /// Removes a job and wakes its waiters.
    pub fn release(&self, active: &ActiveJob) {
        let mut registry = self.lock();
        // A requeued job may already be held by a newer claim of this service.
        if registry.jobs.get(&active.claim.job).is_some_and(|held| held.claim == active.claim) {
            registry.jobs.remove(&active.claim.job);
        }
        drop(registry);
        *active.nesting() = Nesting::default();
        active.released.cancel();
    }

    pub fn get(&self, job: JobId) -> Option<Arc<ActiveJob>> {
        self.lock().jobs.get(&job).cloned()
    }

    pub fn all(&self) -> Vec<Arc<ActiveJob>> {
        self.lock().jobs.values().cloned().collect()
    }

    /// Asks every job to stop, including those that are registered later.
    pub fn stop_all(&self) {
        let mut registry = self.lock();
        registry.stops_all = true;
        registry.jobs.values().for_each(|active| active.request_stop(StopReason::CancelAll));
    }

    pub fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Attempt, Owner};

    fn claim(attempt: u32) -> Claim {
        let job = JobId::new(Timestamp::from_millis(1), [0; 10]);
        Claim { job, attempt: Attempt::new(attempt), owner: Owner::new("me") }
    }

    #[test]
    fn earlier_claim_does_not_release_a_later_one() {
        let active = ActiveJobs::default();
        let earlier = active.register(&claim(1));
        let later = active.register(&claim(2));
        active.release(&earlier);
        assert_eq!(active.len(), 1);
        active.release(&later);
        assert_eq!(active.len(), 0);
    }

    #[test]
    fn stop_all_reaches_jobs_registered_later() {
        let active = ActiveJobs::default();
        let cancelled = active.register(&claim(1));
        cancelled.request_stop(StopReason::User);
        active.stop_all();
        let late = active.register(&claim(2));
        assert_eq!(cancelled.stop_reason(), Some(StopReason::User), "the first reason stays");
        assert_eq!(late.stop_reason(), Some(StopReason::CancelAll));
    }
}
