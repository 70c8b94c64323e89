//! Queries: jobs, answers, output, processes, lists and statistics.

use std::sync::Arc;
use std::time::Duration;

use model::{Job, JobId, JobIdPrefix, JobState, Timestamp};
use store::{ChangeStream, JobFilter, Page, PageRequest, PrefixMatch, Stats, StatsRange, StoreError};
use supervisor::ProcessInfo;
use tokio::sync::watch;
use tokio::time::Instant;

use super::JobService;
use super::wait::{wait_until_durable, wait_until_published};
use crate::active::ActiveJob;
use crate::activity::Activity;
use crate::answer::Answer;
use crate::error::CallError;
use crate::files::{OutputPart, Stream};
use crate::wait_reason::WaitReason;

/// A job as it is committed.
struct CommittedJob {
    job: Arc<Job>,
    /// Is set if the job has ended and its end may not be durable.
    flushing: Option<Arc<ActiveJob>>,
}

impl CommittedJob {
    /// Waits until the job is durable as it is.
    async fn durable(self, deadline: Instant) -> Arc<Job> {
        if let Some(active) = self.flushing {
            wait_until_durable(&active, deadline).await;
        }
        self.job
    }
}

impl JobService {
    /// Returns the answer of a job as it is now.
    pub async fn answer(&self, job: JobId) -> Result<Answer, CallError> {
        self.answer_by(job, Instant::now()).await
    }

    /// Builds the answer of a job, and returns it when the job's end is durable.
    pub(super) async fn answer_by(&self, job: JobId, deadline: Instant) -> Result<Answer, CallError> {
        let committed = self.find_committed(job).await?;
        let job = &committed.job;
        let activity = self.activity(job.id).map(|activity| activity.borrow().clone());
        let answer = Answer::new(job, &self.files(job.id), activity.as_ref(), self.now());
        let answer = answer.redacted(&self.0.store);
        let answer = answer.waiting_for(self.wait_reason(job).as_ref());
        committed.durable(deadline).await;
        Ok(answer)
    }

    /// Returns why a job waits before its next run; none while an agent runs, and once the job has ended.
    pub fn wait_reason(&self, job: &Job) -> Option<WaitReason> {
        let now = self.now();
        match job.progress.state {
            JobState::Paused { until } if until > now => {
                Some(WaitReason::Quota { until, left: until.since(now) })
            }
            // After its pause the job waits for a free slot.
            JobState::Queued | JobState::Paused { .. } => {
                WaitReason::for_slot(&self.0.slots, job.order.call.agent)
            }
            JobState::Running { .. } | JobState::Interrupted { .. } => {
                self.activity(job.id)?.borrow().waiting.clone()
            }
            JobState::Ended { .. } => None,
        }
    }

    /// Returns how long the runs of a job that this service holds have taken.
    pub fn run_time(&self, job: JobId) -> Option<Duration> {
        let activity = self.activity(job)?;
        let run_time = activity.borrow().run_time(self.now());
        Some(run_time)
    }

    /// Returns the record of a job.
    pub async fn job(&self, job: JobId) -> Result<Job, CallError> {
        let committed = self.find_committed(job).await?;
        Ok(Arc::unwrap_or_clone(committed.durable(Instant::now()).await))
    }

    async fn find_committed(&self, job: JobId) -> Result<CommittedJob, CallError> {
        if let Some(ended) = self.0.recent.get(job) {
            return Ok(CommittedJob { job: ended, flushing: None });
        }
        if let Some(active) = self.0.active.get(job)
            && let Some(ended) = active.end()
        {
            return Ok(CommittedJob { job: Arc::clone(ended), flushing: Some(active) });
        }
        let Some(record) = self.noted(self.0.store.get(job).await)? else {
            self.0.health.verify().await?;
            self.check_records()?;
            return Err(CallError::NoSuchJob { job });
        };
        let flushing = self.0.active.get(job).filter(|_| record.completed_at.is_some());
        if let Some(active) = &flushing {
            // Its files are being written.
            wait_until_published(active).await;
        }
        Ok(CommittedJob { job: Arc::new(record), flushing })
    }

    /// Finds the job whose id starts with a prefix.
    pub async fn find(&self, prefix: JobIdPrefix) -> Result<PrefixMatch, CallError> {
        self.check_records()?;
        self.noted(self.0.store.find(prefix).await)
    }

    /// Lists jobs, the newest first.
    pub async fn list(&self, filter: &JobFilter, page: PageRequest) -> Result<Page, CallError> {
        self.check_records()?;
        self.noted(self.0.store.list(filter, page).await)
    }

    /// Counts jobs.
    pub async fn count(&self, filter: &JobFilter) -> Result<u64, CallError> {
        self.check_records()?;
        self.noted(self.0.store.count(filter).await)
    }

    /// Returns counts, durations, tokens and cost.
    pub async fn stats(&self, range: StatsRange) -> Result<Stats, CallError> {
        self.check_records()?;
        self.noted(self.0.store.stats(range).await)
    }

    /// Fails after records were deleted: an answer from the others would hide jobs.
    fn check_records(&self) -> Result<(), CallError> {
        Ok(self.0.health.check_records().map_err(StoreError::from)?)
    }

    /// Notes the loss of the store that a query reports, so that the status of the daemon shows it.
    fn noted<T>(&self, queried: Result<T, StoreError>) -> Result<T, CallError> {
        Ok(queried.inspect_err(|error| self.0.health.note(error))?)
    }

    /// Watches the changes of all jobs from now on.
    pub async fn changes(&self) -> Result<ChangeStream, CallError> {
        Ok(self.0.store.watch().await?)
    }

    /// Returns the time by the clock of the store.
    pub fn now(&self) -> Timestamp {
        self.0.store.now()
    }

    /// Reads a part of a job's output.
    pub async fn output(
        &self,
        job: JobId,
        stream: Stream,
        offset: u64,
        limit: usize,
    ) -> Result<OutputPart, CallError> {
        self.job(job).await?;
        let files = self.files(job);
        let read = tokio::task::spawn_blocking(move || files.read_part(stream, offset, limit)).await;
        let read = read.map_err(std::io::Error::other).and_then(|part| part);
        read.map_err(|source| CallError::Files { job, source })
    }

    /// Lists the visible processes of a job's newest run; none if it has no process on this machine.
    pub async fn processes(&self, job: JobId) -> Result<Vec<ProcessInfo>, CallError> {
        let files = self.files(job);
        let Some(newest) = files.runs().pop() else { return Ok(Vec::new()) };
        // A run that is being created, or was removed, has none either.
        let Ok(run) = supervisor::attach(&files.run(newest)).await else { return Ok(Vec::new()) };
        let seen = tokio::task::spawn_blocking(move || run.processes()).await;
        let seen = seen.map_err(std::io::Error::other).and_then(|seen| seen);
        seen.map_err(|source| CallError::Files { job, source })
    }

    /// Watches the activity of a job while this service holds it.
    pub fn activity(&self, job: JobId) -> Option<watch::Receiver<Activity>> {
        Some(self.0.active.get(job)?.activity.subscribe())
    }
}
