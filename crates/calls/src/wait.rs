//! Waiting for jobs to end.

use std::collections::BTreeSet;
use std::time::Duration;

use model::JobId;
use store::WatchEvent;
use tokio::time::Instant;

use crate::desk::Desk;
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

impl Desk {
    /// Waits until one or all of the jobs have ended, and answers which have by then. When the time is over first, those that
    /// have ended until then. An unknown job is an error, at once.
    pub async fn wait(
        &self,
        jobs: &[JobId],
        until: Until,
        timeout: Duration,
    ) -> Result<Vec<JobId>, CallError> {
        // Before the first look: what ends in between is then told.
        let mut changes = self.0.store.watch().await?;
        let deadline = Instant::now() + timeout.min(Duration::from_hours(24 * 365));
        let mut open: BTreeSet<JobId> = jobs.iter().copied().collect();
        let mut ended = self.look(&mut open).await?;
        loop {
            let enough = open.is_empty() || (until == Until::Any && !ended.is_empty());
            if enough {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                () = tokio::time::sleep(LOOK_AGAIN) => ended.extend(self.look(&mut open).await?),
                change = changes.next() => match change {
                    Some(WatchEvent::Changed(change)) => {
                        if change.state.ended().is_some() && open.remove(&change.job) {
                            ended.push(change.job);
                        }
                    }
                    Some(WatchEvent::Missed) => ended.extend(self.look(&mut open).await?),
                    None => return Err(CallError::Closing),
                },
            }
        }
        // In the order in which they were asked for.
        ended.sort_unstable_by_key(|job| jobs.iter().position(|asked| asked == job));
        Ok(ended)
    }

    /// Takes those that have ended out of the set.
    async fn look(&self, open: &mut BTreeSet<JobId>) -> Result<Vec<JobId>, CallError> {
        let mut ended = Vec::new();
        for &job in open.iter() {
            if self.job(job).await?.completed_at.is_some() {
                ended.push(job);
            }
        }
        open.retain(|job| !ended.contains(job));
        Ok(ended)
    }
}
