//! Waits for jobs to end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use model::JobId;
use store::{ChangeStream, WatchEvent};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::JobService;
use crate::active::{ActiveJob, any_ready};
use crate::answer::Answer;
use crate::error::CallError;

/// The poll interval for jobs whose changes are not notified.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The minimum wait for the flush of an end. Afterwards it is returned anyway: a disk that hangs must not hide a result.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The condition that ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// One of the jobs has ended.
    Any,
    /// All jobs have ended.
    All,
}

impl JobService {
    /// Waits until one or all of the jobs have ended, and returns those that have; at the timeout, those that have ended until then.
    /// Fails at once for an unknown job.
    ///
    /// A job of this service has ended when its end is durable and in its files.
    pub async fn wait(
        &self,
        jobs: &[JobId],
        until: Until,
        timeout: Duration,
    ) -> Result<Vec<JobId>, CallError> {
        let deadline = deadline(timeout);
        let ended = self.wait_until_committed(jobs, until, deadline).await?;
        for active in ended.iter().filter_map(|job| self.0.active.get(*job)) {
            wait_until_durable(&active, deadline).await;
        }
        Ok(ended)
    }

    /// Waits for a job, and returns its answer if it has ended within the timeout. The answer is built while the end is flushed.
    pub async fn wait_for_answer(&self, job: JobId, timeout: Duration) -> Result<Option<Answer>, CallError> {
        let deadline = deadline(timeout);
        if self.wait_until_committed(&[job], Until::All, deadline).await?.is_empty() {
            return Ok(None);
        }
        self.answer_by(job, deadline).await.map(Some)
    }

    /// Waits for ends that are committed and perhaps not durable.
    async fn wait_until_committed(
        &self,
        jobs: &[JobId],
        until: Until,
        deadline: Instant,
    ) -> Result<Vec<JobId>, CallError> {
        let mut pending: BTreeSet<JobId> = jobs.iter().copied().collect();
        let (mut ended, mut changes) = (Vec::new(), None);
        loop {
            // Active jobs signal their ends themselves. The store notifies of every job, which is too much for a waiter of one.
            let (active, others) = self.partition(&mut pending, &mut ended);
            if others.iter().any(|job| self.0.recent.get(*job).is_none()) && changes.is_none() {
                // Before the jobs are read: an end in between is then notified.
                changes = Some(self.0.store.watch().await?);
            }
            ended.extend(self.remove_ended(&others, &mut pending).await?);
            // Reading many jobs takes a while, in which an active one may have ended.
            let released: Vec<JobId> = active
                .iter()
                .filter(|active| active.is_ended_or_released())
                .map(|active| active.claim.job)
                .collect();
            ended.extend(self.remove_ended(&released, &mut pending).await?);
            if pending.is_empty() || (until == Until::Any && !ended.is_empty()) {
                break;
            }
            if others.is_empty() {
                changes = None;
            }
            tokio::select! {
                () = sleep_until(deadline) => break,
                () = sleep(POLL_INTERVAL) => {}
                () = any_ready(active.iter().map(|active| active.ended_or_released())) => {}
                result = any_changed(&mut changes, &pending) => result?,
            }
        }
        // In the order of the request.
        ended.sort_unstable_by_key(|job| jobs.iter().position(|asked| asked == job));
        Ok(ended)
    }

    /// Splits the pending jobs into active and other ones, and moves those whose ends are committed to `ended`.
    fn partition(
        &self,
        pending: &mut BTreeSet<JobId>,
        ended: &mut Vec<JobId>,
    ) -> (Vec<Arc<ActiveJob>>, Vec<JobId>) {
        let (mut running, mut others) = (Vec::new(), Vec::new());
        pending.retain(|&job| {
            match self.0.active.get(job) {
                Some(active) if active.end().is_some() => {
                    ended.push(job);
                    return false;
                }
                Some(active) => running.push(active),
                None => others.push(job),
            }
            true
        });
        (running, others)
    }

    /// Removes the ended ones among `jobs` from the pending jobs, and returns them.
    async fn remove_ended(
        &self,
        jobs: &[JobId],
        pending: &mut BTreeSet<JobId>,
    ) -> Result<Vec<JobId>, CallError> {
        let mut ended = Vec::new();
        for &job in jobs {
            let is_committed = || self.0.active.get(job).is_some_and(|active| active.end().is_some());
            // A job that was claimed meanwhile signals its end itself.
            if self.0.recent.get(job).is_some()
                || is_committed()
                || (self.job(job).await?.completed_at.is_some() && self.0.active.get(job).is_none())
            {
                ended.push(job);
                pending.remove(&job);
            }
        }
        Ok(ended)
    }
}

/// Waits until the end of a job is durable, at least [`FLUSH_TIMEOUT`].
pub(super) async fn wait_until_durable(active: &ActiveJob, deadline: Instant) {
    let deadline = deadline.max(Instant::now() + FLUSH_TIMEOUT);
    let _ = timeout_at(deadline, active.released()).await;
}

/// Waits until the end of a job is committed and in its files, at most [`FLUSH_TIMEOUT`].
pub(super) async fn wait_until_published(active: &ActiveJob) {
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, active.ended_or_released()).await;
}

fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_hours(24 * 365))
}

/// Waits until the store notifies a change of one of the jobs.
async fn any_changed(changes: &mut Option<ChangeStream>, pending: &BTreeSet<JobId>) -> Result<(), CallError> {
    let Some(watch) = changes else { return std::future::pending().await };
    loop {
        match watch.next().await {
            Some(WatchEvent::Changed(change)) if !pending.contains(&change.job) => {}
            Some(WatchEvent::Changed(_) | WatchEvent::Missed) => return Ok(()),
            None => return Err(CallError::Closing),
        }
    }
}
