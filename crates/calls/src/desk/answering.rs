//! Answers questions about jobs: state, answer, output, processes, lists and sums.

use std::sync::Arc;
use std::time::Duration;

use model::{Job, JobId, JobIdPrefix, JobState, Timestamp};
use store::{JobFilter, Page, PageRequest, PrefixMatch, Stats, StatsRange};
use supervisor::ProcessInfo;
use tokio::sync::watch;
use tokio::time::Instant;

use super::JobService;
use crate::answer::Answer;
use crate::error::CallError;
use crate::files::{Part, Stream};
use crate::live::{Activity, Live};
use crate::wait_reason::WaitReason;

/// How long the disk may take to keep an end before it is told all the same.
const UNTIL_KEPT: Duration = Duration::from_secs(5);

/// Whether the outcome of a job is durable.
#[derive(Debug)]
#[must_use = "the disk may not have it yet"]
pub struct Kept {
    /// None when it has.
    live: Option<Arc<Live>>,
    /// Until when it is waited for at least.
    until: Instant,
}

impl Kept {
    fn of(live: Option<Arc<Live>>) -> Self {
        Self { live, until: Instant::now() + UNTIL_KEPT }
    }

    /// Waits until it has, at least for as long as anybody waits for that, and answers whether. A disk that takes longer is no reason
    /// to say nothing.
    pub async fn by(self, until: Instant) -> bool {
        let Some(live) = self.live else { return true };
        let kept = async {
            match live.end.get() {
                Some((_, flush)) if flush.flushed().await.is_ok() => {}
                // It is brought there again until the disk confirms it.
                _ => live.off.cancelled().await,
            }
        };
        tokio::time::timeout_at(until.max(self.until), kept).await.is_ok()
    }
}

impl JobService {
    /// What a job has come to so far.
    pub async fn answer(&self, job: JobId) -> Result<Answer, CallError> {
        let (answer, kept) = self.answer_soon(job).await?;
        kept.by(Instant::now()).await;
        Ok(answer)
    }

    /// The same, which must not be told before the disk has it.
    pub async fn answer_soon(&self, job: JobId) -> Result<(Answer, Kept), CallError> {
        let (job, kept) = self.find_soon(job).await?;
        let activity = self.activity(job.id).map(|activity| activity.borrow().clone());
        let answer = Answer::of(&job, &self.files(job.id), activity.as_ref(), self.0.store.now());
        Ok((answer.waiting_for(self.wait_reason(&job).as_ref()), kept))
    }

    /// Returns why a job waits before its next run; none while an agent runs, and once the job has ended.
    pub fn wait_reason(&self, job: &Job) -> Option<WaitReason> {
        let now = self.0.store.now();
        match job.progress.state {
            JobState::Paused { until } if until > now => {
                Some(WaitReason::Quota { until, left: until.since(now) })
            }
            // A pause that is over leaves the job to the next free slot.
            JobState::Queued | JobState::Paused { .. } => self.0.slot_reason(job.order.call.agent),
            JobState::Running { .. } | JobState::Interrupted { .. } => {
                self.activity(job.id)?.borrow().waiting.clone()
            }
            JobState::Ended { .. } => None,
        }
    }

    /// Returns how long the runs of a job have taken that this desk holds.
    pub fn run_time(&self, job: JobId) -> Option<Duration> {
        let activity = self.activity(job)?;
        let run_time = activity.borrow().run_time(self.0.store.now());
        Some(run_time)
    }

    /// A job, with all that is known of it.
    pub async fn job(&self, job: JobId) -> Result<Job, CallError> {
        let (job, kept) = self.find_soon(job).await?;
        kept.by(Instant::now()).await;
        Ok(Arc::unwrap_or_clone(job))
    }

    async fn find_soon(&self, job: JobId) -> Result<(Arc<Job>, Kept), CallError> {
        if let Some(ended) = self.0.recent.get(job) {
            return Ok((ended, Kept::of(None)));
        }
        if let Some(live) = self.0.board.get(job)
            && let Some((ended, _)) = live.end.get()
        {
            return Ok((Arc::clone(ended), Kept::of(Some(live))));
        }
        let record = self.0.store.get(job).await?.ok_or(CallError::NoSuchJob { job })?;
        let live = self.0.board.get(job).filter(|_| record.completed_at.is_some());
        let kept = Kept::of(live);
        if let Some(live) = &kept.live {
            // Its files are being written.
            let _ = tokio::time::timeout_at(kept.until, live.written.cancelled()).await;
        }
        Ok((Arc::new(record), kept))
    }

    /// The job whose id begins like this.
    pub async fn find(&self, prefix: JobIdPrefix) -> Result<PrefixMatch, CallError> {
        Ok(self.0.store.find(prefix).await?)
    }

    /// The jobs that fit, the newest first.
    pub async fn list(&self, filter: &JobFilter, page: PageRequest) -> Result<Page, CallError> {
        Ok(self.0.store.list(filter, page).await?)
    }

    /// How many jobs fit.
    pub async fn count(&self, filter: &JobFilter) -> Result<u64, CallError> {
        Ok(self.0.store.count(filter).await?)
    }

    /// Counts, durations, tokens and cost.
    pub async fn stats(&self, range: StatsRange) -> Result<Stats, CallError> {
        Ok(self.0.store.stats(range).await?)
    }

    /// The changes of jobs from now on.
    pub async fn changes(&self) -> Result<store::ChangeStream, CallError> {
        Ok(self.0.store.watch().await?)
    }

    /// What time it is for the jobs.
    pub fn now(&self) -> Timestamp {
        self.0.store.now()
    }

    /// A part of what a job's agent printed.
    pub async fn output(
        &self,
        job: JobId,
        stream: Stream,
        offset: u64,
        limit: usize,
    ) -> Result<Part, CallError> {
        self.job(job).await?;
        let files = self.files(job);
        let read = tokio::task::spawn_blocking(move || files.part(stream, offset, limit)).await;
        let read = read.map_err(std::io::Error::other).and_then(|part| part);
        read.map_err(|source| CallError::Files { job, source })
    }

    /// The processes of a job's newest run that can be seen now; none when nothing of it runs on this machine.
    pub async fn processes(&self, job: JobId) -> Result<Vec<ProcessInfo>, CallError> {
        let files = self.files(job);
        let Some(newest) = files.runs().pop() else { return Ok(Vec::new()) };
        // One that is just being made, or was removed, has none either.
        let Ok(run) = supervisor::attach(&files.run(newest)).await else { return Ok(Vec::new()) };
        let seen = tokio::task::spawn_blocking(move || run.processes()).await;
        let seen = seen.map_err(std::io::Error::other).and_then(|seen| seen);
        seen.map_err(|source| CallError::Files { job, source })
    }

    /// What is going on in a job, as long as this desk runs it.
    pub fn activity(&self, job: JobId) -> Option<watch::Receiver<Activity>> {
        Some(self.0.board.get(job)?.activity.subscribe())
    }
}
