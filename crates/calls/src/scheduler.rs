//! Claims jobs while slots are free, and starts a runner for each.
//!
//! Every job starts through [`Scheduler::start`], in one task set; a panic of a runner is noticed where its task is joined.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use agents::LaunchSetup;
use model::{AgentKind, Claim, Job, JobId, NewJob, Owner, Placement};
use store::{Capacity, ChangeStream, ClaimRequest, Committed, Store, StoreError, Submitted, WatchEvent};
use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

use crate::active::ActiveJobs;
use crate::claim_jitter::ClaimJitter;
use crate::job_changes::Worktrees;
use crate::locks::ResourceLocks;
use crate::orphans::OrphanKeeper;
use crate::records::JobRecords;
use crate::runner::{self, RunnerContext, StartMode};
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::slots::{JobSlot, Slots};
use crate::store_health::StoreHealth;

/// The poll interval for jobs that arrive without a wake-up: an expired pause, a job of another machine.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Claims and starts jobs.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub settings: Arc<Settings>,
    pub store: Store,
    pub owner: Owner,
    /// The homes that this service serves, its own first.
    pub homes: Vec<Placement>,
    pub active: Arc<ActiveJobs>,
    pub slots: Arc<Slots>,
    pub records: Arc<JobRecords>,
    pub health: Arc<StoreHealth>,
    pub orphans: Arc<OrphanKeeper>,
    pub runners: Arc<RunnerContext>,
    pub shutdown: Shutdown,
    pub wake: Arc<Notify>,
    pub tasks: JobTasks,
}

impl Scheduler {
    /// Returns the worktrees in which active jobs write.
    pub fn worktrees(&self) -> Arc<Worktrees> {
        Arc::clone(&self.runners.worktrees)
    }

    /// Returns the locks of active jobs.
    pub fn locks(&self) -> Arc<ResourceLocks> {
        Arc::clone(&self.runners.locks)
    }

    /// Stores a new job. Returns when it is durable.
    ///
    /// If a slot is free, the next queued job, usually this one, is claimed in the same transaction, which saves a round trip. Its run
    /// is prepared while the row is flushed.
    pub async fn submit(
        &self,
        id: JobId,
        order: NewJob,
        setup: Option<Box<LaunchSetup>>,
    ) -> Result<Submitted, StoreError> {
        let Some(permit) = self.slots.try_acquire() else {
            // A submit with a claim renews the lease, and so notices deleted records itself.
            self.health.verify().await?;
            let submitted = async { self.store.submit_as(id, order, None).await?.flushed().await }.await;
            // A slot may be free by now, and its last holder did not know of this job.
            self.wake.notify_one();
            let submitted = submitted?;
            self.announce(&submitted);
            return Ok(submitted);
        };
        let submitted = self.store.submit_as(id, order, Some(self.claim_request())).await;
        let Committed { value: mut submitted, flush } =
            submitted.inspect_err(|error| self.health.note(error))?;
        let claimed = submitted.claimed.take();
        let is_this = claimed.as_ref().is_some_and(|claimed| claimed.id == submitted.job.id);
        if !is_this || submitted.job.order.fire_and_forget {
            self.announce(&submitted);
        }
        match claimed.and_then(|job| Some((job.claim()?, job))) {
            Some((claim, job)) => {
                let mode = if is_this {
                    let (active, flush) = (self.active.register(&claim), flush.clone());
                    StartMode::Preclaimed { active, flush, setup }
                } else {
                    StartMode::Fresh
                };
                let slot = self.slots.assign(job.order.call.agent, permit);
                self.start(*job, claim, mode, slot).await;
            }
            None => drop(permit),
        }
        if !is_this {
            // The job is queued, or this permit was withheld from another one.
            self.wake.notify_one();
        }
        flush.flushed().await?;
        Ok(submitted)
    }

    /// Creates the directory of a job that no runner is about to create, or whose caller looks into it at once.
    fn announce(&self, submitted: &Submitted) {
        if submitted.is_new {
            self.records.files(submitted.job.id).announce(&submitted.job);
        }
    }

    /// Starts the runner of a claimed job. During a shutdown the job is released to the next service instead.
    async fn start(&self, job: Job, claim: Claim, mode: StartMode, slot: JobSlot) {
        let registered = match &mode {
            StartMode::Preclaimed { active, .. } => Some(Arc::clone(active)),
            StartMode::Fresh | StartMode::Reattach { .. } => None,
        };
        let task = runner::run_job(Arc::clone(&self.runners), job, claim.clone(), mode, slot);
        if !self.tasks.spawn(claim.clone(), task) {
            if let Some(active) = registered {
                self.active.release(&active);
            }
            self.orphans.release(&claim).await;
        }
    }

    /// Starts the adopted jobs, then claims jobs until a shutdown, and returns when no runner is left.
    pub async fn run(&self, adopted: Vec<(Job, StartMode)>) {
        for (job, mode) in adopted {
            let Some(claim) = job.claim() else { continue };
            let agent = job.order.call.agent;
            let slot = match mode {
                StartMode::Reattach { .. } => self.slots.overcommit(agent),
                StartMode::Fresh | StartMode::Preclaimed { .. } => self.slots.unassigned(agent),
            };
            self.start(job, claim, mode, slot).await;
        }
        let mut may_claim = true;
        // Is set after a claim found nothing. With per-agent limits a queued job may not be visible to a claim.
        let mut is_queue_empty = false;
        loop {
            let is_draining = self.shutdown.is_draining();
            if is_draining {
                self.tasks.close();
            }
            while may_claim
                && !self.shutdown.is_draining()
                && !self.health.is_lost()
                && let Some(permit) = self.slots.try_acquire()
            {
                match self.store.claim(self.claim_request()).await {
                    Ok(Some(job)) => {
                        let Some(claim) = job.claim() else { continue };
                        let slot = self.slots.assign(job.order.call.agent, permit);
                        self.start(job, claim, StartMode::Fresh, slot).await;
                    }
                    Ok(None) => {
                        (may_claim, is_queue_empty) = (false, !self.settings.has_agent_limits());
                    }
                    Err(error) => {
                        self.health.note(&error);
                        tracing::warn!(%error, hint = error.hint(), "cannot claim a job");
                        may_claim = false;
                    }
                }
            }
            if is_draining && self.tasks.is_empty() {
                self.shutdown.mark_stopped();
                return;
            }
            tokio::select! {
                panicked = self.tasks.join_next() => {
                    if let Some(claim) = panicked {
                        // A bug: without this the job would appear to be running forever.
                        runner::fail_after_panic(&self.runners, &claim).await;
                    }
                    // A slot is free again.
                    may_claim |= !is_queue_empty;
                }
                () = self.wake.notified() => (may_claim, is_queue_empty) = (true, false),
                () = self.shutdown.draining(), if !is_draining => {}
                () = sleep(POLL_INTERVAL) => may_claim = true,
            }
        }
    }

    /// Wakes the scheduler when another machine queues a job in a shared store.
    pub async fn watch_changes(&self) {
        let mut changes = if self.store.is_shared() { self.store.watch().await.ok() } else { None };
        let labels = self.settings.labels.iter().cloned().map(Placement::Label).collect();
        let Some(own) = self.homes.first().cloned() else { return };
        let mut jitter = ClaimJitter::new(own, labels);
        loop {
            let claim_at = jitter.claim_at();
            tokio::select! {
                () = self.shutdown.stopped() => return,
                () = sleep_until(claim_at.unwrap_or_else(Instant::now)), if claim_at.is_some() => {
                    jitter.clear();
                    self.wake.notify_one();
                }
                change = next_change(&mut changes) => match change {
                    Some(event) => if jitter.on_change(&event, Instant::now(), random_fraction()) {
                        self.wake.notify_one();
                    }
                    None => changes = None,
                },
            }
        }
    }

    fn claim_request(&self) -> ClaimRequest {
        let settings = &self.settings;
        // Blocked jobs are claimed, too, and occupy no slot.
        let capacity = |agent: AgentKind| {
            let at_once = settings.per_agent.get(&agent).copied().unwrap_or(settings.at_once);
            Capacity { agent, at_once: at_once.saturating_add(self.slots.unslotted(agent)) }
        };
        ClaimRequest {
            owner: self.owner.clone(),
            homes: self.homes.clone(),
            agents: settings.lookup.profiles.iter().map(|profile| capacity(profile.agent)).collect(),
            lease: settings.lease,
        }
    }
}

/// The tasks of all runners.
#[derive(Debug, Default)]
pub(crate) struct JobTasks {
    set: Mutex<TaskSet>,
    /// Wakes the joiner of a set that was empty.
    spawned: Notify,
}

#[derive(Debug, Default)]
struct TaskSet {
    tasks: JoinSet<()>,
    claims: HashMap<Id, Claim>,
    is_closed: bool,
}

impl JobTasks {
    /// Spawns a runner. Returns false once the set is closed.
    fn spawn(&self, claim: Claim, runner: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut set = self.lock();
        if set.is_closed {
            return false;
        }
        let task = set.tasks.spawn(runner);
        set.claims.insert(task.id(), claim);
        if set.tasks.len() == 1 {
            self.spawned.notify_one();
        }
        true
    }

    /// Waits until a runner has ended, and returns its claim if it panicked. Never resolves while there is none.
    async fn join_next(&self) -> Option<Claim> {
        loop {
            let joined = poll_fn(|context| {
                let mut set = self.lock();
                match set.tasks.poll_join_next_with_id(context) {
                    Poll::Ready(Some(Ok((id, ())))) => {
                        set.claims.remove(&id);
                        Poll::Ready(None)
                    }
                    Poll::Ready(Some(Err(error))) => Poll::Ready(set.claims.remove(&error.id())),
                    // An empty set does not store the waker: `spawned` wakes this task instead.
                    Poll::Ready(None) | Poll::Pending => Poll::Pending,
                }
            });
            tokio::select! {
                biased;
                panicked = joined => return panicked,
                () = self.spawned.notified() => {}
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.lock().tasks.is_empty()
    }

    fn close(&self) {
        self.lock().is_closed = true;
    }

    fn lock(&self) -> MutexGuard<'_, TaskSet> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a random number in [0, 1].
fn random_fraction() -> f64 {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    f64::from(u32::try_from(random >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

async fn next_change(changes: &mut Option<ChangeStream>) -> Option<WatchEvent> {
    match changes {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Attempt, Timestamp};

    fn claim(number: u64) -> Claim {
        let job = JobId::new(Timestamp::from_millis(number), [0; 10]);
        Claim { job, attempt: Attempt::new(1), owner: Owner::new("me") }
    }

    #[tokio::test]
    async fn join_returns_the_claim_of_a_panicked_runner() {
        let tasks = Arc::new(JobTasks::default());
        // The joiner waits before anything is spawned.
        let joining = Arc::clone(&tasks);
        let mut joiner = JoinSet::new();
        joiner.spawn(async move { (joining.join_next().await, joining.join_next().await) });
        tokio::task::yield_now().await;
        assert!(tasks.spawn(claim(1), async {}));
        tokio::task::yield_now().await;
        assert!(tasks.spawn(claim(2), async { panic!("expected by this test") }));
        let (first, second) = joiner.join_next().await.unwrap().unwrap();
        assert_eq!((first, second), (None, Some(claim(2))));
        assert!(tasks.is_empty());
    }

    #[tokio::test]
    async fn closed_task_set_starts_no_runner() {
        let tasks = JobTasks::default();
        tasks.close();
        assert!(!tasks.spawn(claim(1), async {}));
        assert!(tasks.is_empty());
    }
}
