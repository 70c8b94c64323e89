//! Runs a claimed job to completion, or until it must be paused or requeued.
//!
//! Owns the order of steps within a job: locks, slot, launch, run, judgement, next step. Holds the claim all the while; the store
//! fences off a runner whose claim was lost.
//!
//! The only module besides the scheduler that sees a commit before its flush. No process starts before the job's row is durable, and
//! the job is not released to its waiters before its end is.

mod acquire;
mod checkout;
mod command;
mod finish;
mod follow;
mod messages;
mod review;
mod start;
mod verify;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agents::{LaunchSetup, RunSequence};
use model::{Claim, Failure, FailureKind, Job, JobEnd, RunReport, TerminalState, Timestamp};
use store::{FlushTicket, Store};
use supervisor::{Run, Spool};
use tokio::sync::Notify;

use crate::active::{ActiveJob, ActiveJobs, StopReason};
use crate::checkouts::JobCheckout;
use crate::decide::{self, JobFacts, NextStep};
use crate::files::{JobFiles, PAUSE};
use crate::job_changes::{ChangeRecorder, PendingSnapshot, WorktreeGuard, Worktrees};
use crate::launcher::Launcher;
use crate::locks::{LockGuard, ResourceLocks};
use crate::metadata::EventLog;
use crate::nesting::NestedCalls;
use crate::recent_jobs::RecentJobs;
use crate::records::JobRecords;
use crate::recovery::{AttachFailure, AttachPlan, plan_attach};
use crate::run_record::RunRecord;
use crate::runs;
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::slots::{JobSlot, Slots};
use crate::store_health::StoreHealth;
use crate::verification::Verification;
use crate::wait_reason::WaitReason;
use messages::{cannot_follow, cannot_write, continue_prompt};

/// The delay before a transient local error, such as EMFILE, is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The services that runners share.
#[derive(Debug)]
pub(crate) struct RunnerContext {
    pub settings: Arc<Settings>,
    pub store: Store,
    pub launcher: Arc<Launcher>,
    pub records: Arc<JobRecords>,
    pub active: Arc<ActiveJobs>,
    pub recent: Arc<RecentJobs>,
    pub slots: Arc<Slots>,
    pub locks: Arc<ResourceLocks>,
    pub worktrees: Arc<Worktrees>,
    pub nested: NestedCalls,
    pub health: Arc<StoreHealth>,
    pub shutdown: Shutdown,
    /// Wakes the scheduler: a slot is free, or a job is queued.
    pub wake: Arc<Notify>,
}

/// The state in which a runner finds its job.
#[derive(Debug)]
pub(crate) enum StartMode {
    /// No run of the job is alive.
    Fresh,
    /// The job was claimed as it was inserted. It is registered already, has no files, and may not be durable yet.
    Preclaimed { active: Arc<ActiveJob>, flush: FlushTicket, setup: Option<Box<LaunchSetup>> },
    /// An earlier service has started this run.
    Reattach { run: u32, record: Box<RunRecord>, guards: Vec<LockGuard> },
}

/// The state in which a runner leaves its job.
enum Disposition {
    /// The job has ended.
    Finished(Box<JobEnd>),
    /// The job is claimed again later.
    Paused { until: Timestamp },
    /// The run was lost. The job ends like this if it has no attempt left.
    Interrupted(Box<JobEnd>),
    /// The service detaches, and the next one adopts the job.
    Detached,
}

/// Runs a claimed job as far as possible, then releases it.
pub(crate) async fn run_job(
    context: Arc<RunnerContext>,
    job: Job,
    claim: Claim,
    mut mode: StartMode,
    slot: JobSlot,
) {
    let (active, flush, checked_setup) = match &mut mode {
        StartMode::Preclaimed { active, flush, setup } => {
            (Arc::clone(active), Some(flush.clone()), setup.take())
        }
        StartMode::Fresh | StartMode::Reattach { .. } => (register(&context, &claim).await, None, None),
    };
    let files = context.records.files(job.id);
    let mut runner = JobRunner {
        context: &context,
        active: &active,
        files,
        claim,
        job: &job,
        slot,
        flush,
        checked_setup,
        guards: Vec::new(),
        snapshot: None,
        worktree: None,
        checkout: None,
        verification: None,
        events: EventLog::default(),
        last_run: None,
        model_spoke: false,
    };
    let disposition = runner.run(mode).await;
    runner.await_snapshot().await;
    runner.apply(disposition).await;
    drop(runner);
    context.active.release(&active);
}

/// Registers a job so that cancellation requests can reach it.
async fn register(context: &RunnerContext, claim: &Claim) -> Arc<ActiveJob> {
    let active = context.active.register(claim);
    // A request that came between the claim and this found no runner, and the claim itself may be lost by now.
    if let Ok(Some(job)) = context.store.get(claim.job).await {
        if job.progress.cancel_requested_at.is_some() {
            active.request_stop(StopReason::User);
        } else if job.claim().as_ref() != Some(claim) {
            active.request_stop(StopReason::LostClaim);
        }
    }
    active
}

/// Fails a job whose runner panicked, and stops its newest run.
pub(crate) async fn fail_after_panic(context: &RunnerContext, claim: &Claim) {
    tracing::error!(job = %claim.job, "the task of the job panicked");
    runs::stop_all(&context.records.files(claim.job)).await;
    let message = "internal error: the job's task panicked; see the daemon's log".to_owned();
    let end = JobEnd::failed(Failure { kind: FailureKind::Internal, message });
    if let Err(error) = context.store.finish(claim, end).await {
        tracing::warn!(job = %claim.job, %error, "cannot fail the job");
    }
    context.records.refresh(claim.job).await;
    if let Some(active) = context.active.get(claim.job).filter(|active| active.claim == *claim) {
        context.active.release(&active);
    }
}

/// A run that is alive, or has ended and was not judged yet.
struct CurrentRun {
    number: u32,
    run: Run,
    record: RunRecord,
    started_at: Timestamp,
}

/// The last run that was followed to its end.
struct EndedRun {
    number: u32,
    report: RunReport,
    /// Is false once a later run was started.
    is_newest: bool,
}

struct JobRunner<'a> {
    context: &'a RunnerContext,
    active: &'a ActiveJob,
    files: JobFiles,
    claim: Claim,
    job: &'a Job,
    slot: JobSlot,
    /// The flush of the job's row, which the first process must not precede. Only a job that was claimed as it was inserted has one,
    /// so it also means that the job has no files.
    flush: Option<FlushTicket>,
    /// The setup with which the call was checked, until the job has to wait.
    checked_setup: Option<Box<LaunchSetup>>,
    guards: Vec<LockGuard>,
    /// The snapshot of the worktree before the first run, until that run starts.
    snapshot: Option<PendingSnapshot>,
    /// Marks the git worktree as in use.
    worktree: Option<WorktreeGuard>,
    /// The private checkout in which the agent works.
    checkout: Option<JobCheckout>,
    /// The last verification of the agent's work.
    verification: Option<Verification>,
    events: EventLog,
    last_run: Option<EndedRun>,
    /// Is true if the model said or did anything in a run that was followed.
    model_spoke: bool,
}

impl JobRunner<'_> {
    async fn run(&mut self, mode: StartMode) -> Disposition {
        self.load_checkout();
        let (mut sequence, mut current) = match mode {
            StartMode::Reattach { run, record, guards } => {
                self.guards.extend(guards);
                self.files.remove(PAUSE);
                match self.attach(run, *record).await {
                    Ok((sequence, current)) => (sequence, current),
                    Err(disposition) => return disposition,
                }
            }
            StartMode::Fresh | StartMode::Preclaimed { .. } => {
                match self.prepare_review(self.pending_sequence()).await {
                    Ok(sequence) => (sequence, None),
                    Err(disposition) => return disposition,
                }
            }
        };
        self.load_earlier_events(current.as_ref().map(|current| current.number)).await;
        loop {
            let run = match current.take() {
                Some(run) => run,
                None => match self.start(&sequence).await {
                    Ok(run) => run,
                    Err(disposition) => return add_earlier_runs(disposition, &sequence),
                },
            };
            let (outcome, report) = match self.follow(&run).await {
                Ok(ended) => ended,
                Err(disposition) => return add_earlier_runs(disposition, &sequence),
            };
            let ended_at = Timestamp::from_millis(report.ended_at_ms);
            self.last_run = Some(EndedRun { number: run.number, report, is_newest: true });
            let facts = JobFacts {
                call: &self.job.order.call,
                max_resume_attempts: self.context.settings.max_resume_attempts,
                stop: self.active.stop_reason(),
            };
            let delay = match decide::after_run(outcome, &mut sequence, facts) {
                NextStep::Resume { after } => after,
                NextStep::Finish(end) => {
                    let end = JobEnd { ended_at: Some(ended_at), ..*end };
                    match self.verify(Box::new(end), &mut sequence).await {
                        Ok(NextStep::Resume { after }) => after,
                        Ok(NextStep::Finish(end)) => return Disposition::Finished(end),
                        Ok(step) => return self.leave(step, &sequence),
                        Err(disposition) => return add_earlier_runs(disposition, &sequence),
                    }
                }
                step => return self.leave(step, &sequence),
            };
            self.link_run(run.number);
            if !delay.is_zero() {
                self.active.set_waiting(WaitReason::Backoff { delay }, self.context.store.now());
            }
            tokio::select! {
                biased;
                // Only this runner knows how far the sequence has come.
                () = self.context.shutdown.detaching() => return self.leave(NextStep::Suspend, &sequence),
                reason = self.active.stop_requested() => {
                    return self.leave(decide::between_runs(reason, &sequence), &sequence);
                }
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Turns a step other than another run into a disposition.
    fn leave(&self, step: NextStep, sequence: &RunSequence) -> Disposition {
        match step {
            NextStep::Finish(end) => Disposition::Finished(end),
            NextStep::Requeue(end) => Disposition::Interrupted(end),
            NextStep::Pause { after } | NextStep::Resume { after } => match self.pause(sequence, after) {
                Ok(paused) => paused,
                Err(_) if self.context.records.were_moved() => Disposition::Detached,
                Err(error) => add_earlier_runs(failed(cannot_write(&error)), sequence),
            },
            // If it cannot be written, the next service finds the job as it was before the last run.
            NextStep::Suspend => self.pause(sequence, Duration::ZERO).unwrap_or(Disposition::Detached),
            NextStep::Detach => Disposition::Detached,
        }
    }

    fn pause(&self, sequence: &RunSequence, after: Duration) -> std::io::Result<Disposition> {
        self.files.replace(PAUSE, sequence)?;
        Ok(Disposition::Paused { until: self.context.store.now().plus(after) })
    }

    /// Attaches to a run of an earlier service; none if it was never started.
    async fn attach(
        &mut self,
        number: u32,
        record: RunRecord,
    ) -> Result<(RunSequence, Option<CurrentRun>), Disposition> {
        let sequence = record.sequence.clone();
        let Some(run) = self.find_run(&self.files.run(number)).await? else {
            self.slot.release();
            return Ok((sequence, None));
        };
        self.context.nested.restore_run(&self.context.store, self.job, &run).await;
        self.worktree = self.change_recorder().resume().await;
        let status = run.spool().status().ok().flatten();
        let started_at = status.map(|status| Timestamp::from_millis(status.started_at_ms));
        let started_at = started_at.unwrap_or_else(|| self.context.store.now());
        Ok((sequence, Some(CurrentRun { number, run, record, started_at })))
    }

    /// Finds a run that may be alive; none if it was never started.
    async fn find_run(&self, directory: &Path) -> Result<Option<Run>, Disposition> {
        loop {
            let error = match supervisor::attach(directory).await {
                Ok(run) => return Ok(Some(run)),
                Err(error) => error,
            };
            if self.context.records.were_moved() {
                self.back_off(&error).await?;
                continue;
            }
            let has_supervisor = || !matches!(Spool::at(directory).is_locked(), Ok(false));
            match plan_attach(AttachFailure::from_error(&error, has_supervisor)) {
                AttachPlan::Restart => return Ok(None),
                AttachPlan::Retry => self.back_off(&error).await?,
                AttachPlan::Fail { stop } => {
                    if stop {
                        self.stop_unreadable(directory).await?;
                    }
                    return Err(failed(cannot_follow(&error)));
                }
            }
        }
    }

    /// Stops a run that can only be found by its directory. Retries until it is known to be gone.
    async fn stop_unreadable(&self, directory: &Path) -> Result<(), Disposition> {
        loop {
            let directory = directory.to_owned();
            let stopped =
                tokio::task::spawn_blocking(move || supervisor::stop_unreadable_run(&directory)).await;
            match stopped.map_err(std::io::Error::other).and_then(|stopped| stopped) {
                Ok(()) => return Ok(()),
                Err(error) => self.back_off(&error).await?,
            }
        }
    }

    /// Backs off after a transient local error, or while the state directory is elsewhere. Fails if the service is detaching.
    async fn back_off(&self, error: &(dyn std::error::Error + Send + Sync)) -> Result<(), Disposition> {
        tracing::warn!(job = %self.job.id, %error, "cannot follow the run; trying again");
        tokio::select! {
            () = self.context.shutdown.detaching() => Err(Disposition::Detached),
            () = tokio::time::sleep(RETRY_DELAY) => Ok(()),
        }
    }

    /// Loads the events of earlier runs, which this runner has not followed, if the caller wants events.
    async fn load_earlier_events(&mut self, current: Option<u32>) {
        if !self.job.order.expose_stream || self.flush.is_some() {
            return;
        }
        let mut runs = self.files.runs();
        runs.retain(|run| Some(*run) != current);
        if runs.is_empty() {
            return;
        }
        let (files, agent) = (self.files.clone(), self.job.order.call.agent);
        let loaded = tokio::task::spawn_blocking(move || {
            let mut events = EventLog::default();
            for run in runs {
                events.push_output(&Spool::at(files.run(run)), agent)?;
            }
            Ok(events)
        });
        match loaded.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(events) => self.events = events,
            Err(error) => {
                tracing::warn!(job = %self.job.id, %error, "cannot read the events of an earlier run");
            }
        }
    }

    /// Returns the runs that are still to do: all of them, or the rest after a pause or a lost run.
    fn pending_sequence(&self) -> RunSequence {
        let call = &self.job.order.call;
        let fresh = || RunSequence::new(call.clone(), self.context.settings.max_resume_attempts);
        if self.flush.is_some() {
            return fresh();
        }
        // The file stays until the next run is about to start, so that a crash before that loses nothing.
        if let Some(sequence) = self.files.read::<RunSequence>(PAUSE) {
            return sequence;
        }
        let Some(lost) = self.files.runs().last().copied() else { return fresh() };
        let record = self.files.read::<RunRecord>(&RunRecord::file_name(lost));
        let mut sequence = record.map_or_else(fresh, |record| record.sequence);
        sequence.add_elapsed(runs::duration(&self.files, lost));
        if let Some(session) = runs::reported_session(&self.files, lost, call.agent)
            && sequence.spec().agent_name.is_none()
        {
            sequence.resume_lost_run(continue_prompt(&call.prompt), session);
        }
        sequence
    }

    fn change_recorder(&self) -> ChangeRecorder {
        let (worktrees, settings) = (Arc::clone(&self.context.worktrees), Arc::clone(&self.context.settings));
        ChangeRecorder { job: self.job.id, files: self.files.clone(), worktrees, settings }
    }

    /// Waits for the snapshot before the first run, if one is under way.
    async fn await_snapshot(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            self.worktree = snapshot.finish().await;
        }
    }

    /// Writes the record of the job, unless there is one. A job that was not started has no directory and needs none.
    fn write_first_record(&self) {
        match self.files.write_first_record(self.job) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(job = %self.job.id, %error, "cannot write the record of the job");
            }
            _ => {}
        }
    }

    /// Points the job's `output` and `error` symlinks at a run.
    fn link_run(&self, number: u32) {
        if let Err(error) = self.files.link_run(number) {
            tracing::warn!(job = %self.job.id, %error, "cannot link the output of the run");
        }
    }
}

/// Waits until a job must not start another run.
async fn interrupted(context: &RunnerContext, active: &ActiveJob) -> StopReason {
    tokio::select! {
        biased;
        // Detach wins over cancel: locks are released, and the agents of other jobs keep running.
        () = context.shutdown.detaching() => StopReason::Detach,
        reason = active.stop_requested() => reason,
        () = context.shutdown.draining() => StopReason::Drain,
    }
}

/// Adds the outcome of earlier runs to a job that ends without one of its own.
fn add_earlier_runs(disposition: Disposition, sequence: &RunSequence) -> Disposition {
    let add = |end: Box<JobEnd>| Box::new(decide::with_earlier_runs(*end, sequence));
    match disposition {
        Disposition::Finished(end) => Disposition::Finished(add(end)),
        Disposition::Interrupted(end) => Disposition::Interrupted(add(end)),
        other => other,
    }
}

fn failed(failure: Failure) -> Disposition {
    let mut end = JobEnd::failed(failure);
    if let Some(Failure { kind: FailureKind::Deadline { .. }, .. }) = &end.failure {
        end.how = TerminalState::Timeout;
    }
    Disposition::Finished(Box::new(end))
}
