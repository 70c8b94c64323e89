//! Waiting for jobs to end.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use model::{Job, JobId};
use store::{ChangeStream, WatchEvent};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::desk::JobService;
use crate::error::CallError;

/// How often it is looked at jobs although nobody has told of a change.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// One of the jobs has ended.
    Any,
    /// All have.
    All,
}

impl JobService {
    /// Waits until one or all of the jobs have ended, and answers which have by then. When the time is over first, those that
    /// have ended until then. An unknown job is an error, at once.
    ///
    /// A job that this desk runs has ended when its files say so, too, and the disk has it.
    pub async fn wait(
        &self,
        jobs: &[JobId],
        until: Until,
        timeout: Duration,
    ) -> Result<Vec<JobId>, CallError> {
        let deadline = deadline(timeout);
        let ended = self.wait_soon(jobs, until, timeout).await?;
        for live in ended.iter().filter_map(|job| self.0.board.get(*job)) {
            // Those that the disk has not confirmed by then are told as all others are who are asked for.
            let _ = timeout_at(deadline, live.off.cancelled()).await;
        }
        Ok(ended)
    }

    /// The same, and answers when their ends are written. They must not be told before the disk has them ([`Self::answer_soon`]).
    pub async fn wait_soon(
        &self,
        jobs: &[JobId],
        until: Until,
        timeout: Duration,
    ) -> Result<Vec<JobId>, CallError> {
        let deadline = deadline(timeout);
        let mut open: BTreeSet<JobId> = jobs.iter().copied().collect();
        let (mut ended, mut changes) = (Vec::new(), None);
        loop {
            // Those that run here tell it themselves. The others are told by the store, which tells of every job: too much to
            // hear for everybody who waits for one.
            let (running, others) = self.where_they_are(&mut open, &mut ended);
            if others.iter().any(|job| self.0.recent.get(*job).is_none()) && changes.is_none() {
                // Before the look: what ends in between is then told.
                changes = Some(self.0.store.watch().await?);
            }
            ended.extend(self.look(&others, &mut open).await?);
            // A look at many takes a while, in which one that ran before them may have ended.
            let meanwhile: Vec<JobId> =
                running.iter().filter(|(_, written)| written.is_cancelled()).map(|(job, _)| *job).collect();
            ended.extend(self.look(&meanwhile, &mut open).await?);
            if open.is_empty() || (until == Until::Any && !ended.is_empty()) {
                break;
            }
            if others.is_empty() {
                changes = None;
            }
            tokio::select! {
                () = sleep_until(deadline) => break,
                () = sleep(LOOK_AGAIN) => {}
                () = one_of(&running) => {}
                told = change_of(&mut changes, &open) => told?,
            }
        }
        // In the order in which they were asked for.
        ended.sort_unstable_by_key(|job| jobs.iter().position(|asked| asked == job));
        Ok(ended)
    }

    /// What tells of those on the board that something is written, and those that are not on it. Takes those out of the set whose end is.
    fn where_they_are(
        &self,
        open: &mut BTreeSet<JobId>,
        ended: &mut Vec<JobId>,
    ) -> (Vec<(JobId, CancellationToken)>, Vec<JobId>) {
        let (mut running, mut others) = (Vec::new(), Vec::new());
        open.retain(|&job| {
            match self.0.board.get(job) {
                Some(live) if live.end.get().is_some() => {
                    ended.push(job);
                    return false;
                }
                Some(live) => running.push((job, live.written.clone())),
                None => others.push(job),
            }
            true
        });
        (running, others)
    }

    /// Takes those that have ended out of the set.
    async fn look(&self, jobs: &[JobId], open: &mut BTreeSet<JobId>) -> Result<Vec<JobId>, CallError> {
        let mut ended = Vec::new();
        for &job in jobs {
            let has_ended = |job: &Job| job.completed_at.is_some();
            let recent: Option<Arc<Job>> = self.0.recent.get(job);
            let is_written = self.0.board.get(job).is_some_and(|live| live.end.get().is_some());
            // One that was claimed meanwhile is told about by its course.
            if recent.is_some()
                || is_written
                || (has_ended(&self.job(job).await?) && self.0.board.get(job).is_none())
            {
                ended.push(job);
                open.remove(&job);
            }
        }
        Ok(ended)
    }
}

fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_hours(24 * 365))
}

/// Waits until something is written of one of them.
async fn one_of(running: &[(JobId, CancellationToken)]) {
    let mut off: Vec<_> = running.iter().map(|(_, written)| Box::pin(written.cancelled())).collect();
    poll_fn(|context| {
        let any = off.iter_mut().any(|off| off.as_mut().poll(context).is_ready());
        if any { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Waits until the store tells something about one of them.
async fn change_of(changes: &mut Option<ChangeStream>, open: &BTreeSet<JobId>) -> Result<(), CallError> {
    let Some(watch) = changes else { return std::future::pending().await };
    loop {
        match watch.next().await {
            Some(WatchEvent::Changed(change)) if !open.contains(&change.job) => {}
            Some(WatchEvent::Changed(_) | WatchEvent::Missed) => return Ok(()),
            None => return Err(CallError::Closing),
        }
    }
}
