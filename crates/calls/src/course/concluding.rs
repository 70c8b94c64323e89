//! The end of a course: what the store and the files are told.

use std::sync::Arc;
use std::time::Duration;

use model::{JobEnd, RunReport, RunState, SandboxReport, TreeEnd};
use store::{Committed, Finished, FlushTicket, StoreError};
use supervisor::Spool;

use super::{Conclusion, Course};
use crate::recovery;

/// How long to wait before the store is told again what it could not take.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Why the store has not taken what it was told.
enum Unheard {
    /// The job ended by another hand, or belongs to another owner, or it has no attempt left.
    Refused(StoreError),
    /// This desk lets go of everything.
    Left,
}

impl Course<'_> {
    pub(super) async fn conclude(&self, conclusion: Conclusion) {
        let ended = match conclusion {
            Conclusion::Left => return,
            Conclusion::Ended(end) => self.finish(*end).await,
            Conclusion::Paused { until } => {
                let _ = self.insist(|| self.desk.store.pause_until(&self.claim, until)).await;
                None
            }
            Conclusion::Interrupted(end) => self.interrupted(*end).await,
        };
        match ended {
            Some(Committed { value: Finished { job, .. }, flush }) => {
                // While the disk takes it, and whoever waits for it makes an answer of it.
                self.desk.write_down(&job);
                let job = Arc::new(job);
                self.live.has_ended(Arc::clone(&job), flush.clone());
                if self.until_it_is_on(&flush).await {
                    self.desk.recent.keep(job);
                }
            }
            None => self.desk.record(self.job.id).await,
        }
    }

    /// Waits until the disk has the end of the job. Whether it has, when this desk lets go of everything.
    async fn until_it_is_on(&self, flush: &FlushTicket) -> bool {
        let mut kept = flush.flushed().await;
        while let Err(error) = kept {
            tracing::warn!(job = %self.job.id, %error, "the disk has not confirmed the end of the job; trying again");
            tokio::select! {
                () = self.desk.leaving.cancelled() => return false,
                () = tokio::time::sleep(TELL_AGAIN) => {}
            }
            kept = self.desk.store.sync().await;
        }
        true
    }

    /// The run was lost, and nothing of it is left: the job is queued again while attempts are left.
    async fn interrupted(&self, end: JobEnd) -> Option<Committed<Finished>> {
        match self.insist(|| recovery::requeue(self.desk, &self.claim)).await {
            Ok(()) => {
                self.desk.wake.notify_one();
                None
            }
            Err(Unheard::Refused(error)) if recovery::has_no_attempt_left(&error) => self.finish(end).await,
            Err(_) => None,
        }
    }

    /// How sure it is that nothing is left of any of the runs.
    fn tree_end(&self) -> Option<TreeEnd> {
        if let (1, Some(report)) = (self.last_run, &self.reported.report) {
            return Some(report.tree);
        }
        let end_of = |number: &u32| match Spool::at(self.files.run(*number)).status().ok()??.state {
            RunState::Ended(report) => Some(report.tree),
            RunState::Running { .. } => None,
        };
        let doubt = |end: &TreeEnd| match end {
            TreeEnd::ProvenEmpty => 0,
            TreeEnd::SweptByIdentity => 1,
            TreeEnd::LeftAlive { .. } => 2,
        };
        self.files.runs().iter().filter_map(end_of).max_by_key(doubt)
    }

    /// Returns the report of the last run, with the quarantined paths and the counted commits of the earlier ones.
    fn report(&self) -> Option<RunReport> {
        let mut report = self.reported.report.clone()?;
        let confined_in = |number: u32| match Spool::at(self.files.run(number)).status().ok()??.state {
            RunState::Ended(RunReport { sandbox: Some(SandboxReport::Confined(confined)), .. }) => {
                Some(confined)
            }
            _ => None,
        };
        if let Some(SandboxReport::Confined(confined)) = &mut report.sandbox {
            let mut quarantined = Vec::new();
            let earlier = self.files.runs().into_iter().filter(|number| *number != self.last_run);
            for mut earlier in earlier.filter_map(confined_in) {
                quarantined.append(&mut earlier.quarantined);
                confined.commits_without_hooks += earlier.commits_without_hooks;
                confined.unsigned_commits += earlier.unsigned_commits;
            }
            quarantined.append(&mut confined.quarantined);
            confined.quarantined = quarantined;
        }
        Some(report)
    }

    async fn finish(&self, end: JobEnd) -> Option<Committed<Finished>> {
        let response = end.outcome.as_ref().map(|outcome| outcome.text.clone());
        let has_answer = end.has_answer || self.model_spoke;
        let metadata = self.reported.metadata(
            self.job.order.expose_stream,
            self.tree_end(),
            self.report(),
            self.model_spoke && !end.has_answer,
        );
        let mut end = JobEnd { metadata, has_answer, ..end };
        if let Some(response) = response {
            end = end.with_exchange(self.job.order.call.prompt.clone(), response);
        }
        self.insist(|| self.desk.store.commit_end(&self.claim, end.clone())).await.ok()
    }

    /// Tells the store until it has taken it, or has refused it for good.
    async fn insist<T, F>(&self, tell: impl Fn() -> F) -> Result<T, Unheard>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            let error = match tell().await {
                Ok(taken) => return Ok(taken),
                Err(error) => error,
            };
            if error.refusal().is_some() || matches!(error, StoreError::NoSuchJob { .. }) {
                tracing::info!(job = %self.job.id, %error, "the store has refused the word about the job");
                return Err(Unheard::Refused(error));
            }
            tracing::warn!(job = %self.job.id, %error, "cannot keep what became of the job; trying again");
            tokio::select! {
                // The spool still has it, and the next desk reads it from there.
                () = self.desk.leaving.cancelled() => return Err(Unheard::Left),
                () = tokio::time::sleep(TELL_AGAIN) => {}
            }
        }
    }
}
