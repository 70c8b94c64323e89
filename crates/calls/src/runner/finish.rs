//! Stores the disposition of a job.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::{Job, JobEnd, RunReport, RunState, SandboxReport, TreeEnd};
use regular_file::read_regular;
use store::{Committed, Finished, FlushTicket, StoreError};
use supervisor::Spool;

use super::{Disposition, EndedRun, JobRunner};
use crate::claims;
use crate::decide;
use crate::job_changes::{JobChanges, patch_file};
use crate::metadata::JobMetadata;
use crate::runs;
use crate::verification::Verification;

/// The delay before a failed write or flush is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Why the store did not accept a write.
enum NotAccepted {
    /// The job has ended already, belongs to another owner, or has no attempt left.
    Refused(StoreError),
    /// The service is detaching.
    Detached,
}

impl JobRunner<'_> {
    /// Stores the disposition and writes the job's files. A durable end is cached.
    pub(super) async fn apply(&self, disposition: Disposition) {
        let ended = match disposition {
            Disposition::Detached => {
                if !self.context.records.were_moved() {
                    self.write_first_record();
                }
                return;
            }
            Disposition::Finished(end) => self.finish(*end).await,
            Disposition::Paused { until } => {
                let store = &self.context.store;
                let _ = self.retry_until_accepted(|| store.pause_until(&self.claim, until)).await;
                None
            }
            Disposition::Interrupted(end) => self.requeue(*end).await,
        };
        match ended {
            Some(Committed { value: Finished { job, .. }, flush }) => self.publish(job, &flush).await,
            None => self.context.records.refresh(self.job.id).await,
        }
    }

    /// Publishes an end that is committed. Files and answer are written while it is flushed; waiters return when the job is released,
    /// which is afterwards.
    async fn publish(&self, job: Job, flush: &FlushTicket) {
        let newest_run = self.last_run.as_ref().filter(|last| last.is_newest).map(|last| last.number);
        self.context.records.write(&job, newest_run);
        let job = Arc::new(job);
        self.active.publish_end(Arc::clone(&job));
        if self.wait_until_durable(flush).await {
            self.context.recent.insert(job);
            // The changes in a private checkout may be continued by another job.
            if self.checkout.is_none() {
                self.change_recorder().seal().await;
            }
        }
    }

    /// Waits until the end of the job is durable. Returns false if the service detaches first.
    async fn wait_until_durable(&self, flush: &FlushTicket) -> bool {
        let mut flushed = flush.flushed().await;
        while let Err(error) = flushed {
            tracing::warn!(job = %self.job.id, %error, "the end of the job is not durable; trying again");
            tokio::select! {
                () = self.context.shutdown.detaching() => return false,
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
            flushed = self.context.store.sync().await;
        }
        true
    }

    /// Requeues a job whose run was lost, or ends it if no attempt is left.
    async fn requeue(&self, end: JobEnd) -> Option<Committed<Finished>> {
        match self.retry_until_accepted(|| claims::requeue(&self.context.store, &self.claim)).await {
            Ok(()) => {
                self.context.wake.notify_one();
                None
            }
            Err(NotAccepted::Refused(error)) if claims::is_out_of_attempts(&error) => self.finish(end).await,
            Err(_) => None,
        }
    }

    async fn finish(&self, end: JobEnd) -> Option<Committed<Finished>> {
        self.stop_commands().await;
        let changes = self.record_changes().await?;
        let end = self.check_expected_changes(end, changes.as_ref()).await;
        let response = end.outcome.as_ref().map(|outcome| outcome.text.clone());
        let metadata = JobMetadata {
            model_spoke: self.model_spoke && !end.has_answer,
            tree: self.tree_end(),
            report: self.report(),
            changes,
            verification: self.verification.clone().or_else(|| self.missing_verification()),
        };
        let events = self.job.order.expose_stream.then_some(&self.events);
        let has_answer = end.has_answer || self.model_spoke;
        let mut end = JobEnd { metadata: metadata.to_json(events), has_answer, ..end };
        if let Some(response) = response {
            end = end.with_exchange(self.job.order.call.prompt.clone(), response);
        }
        let store = &self.context.store;
        self.retry_until_accepted(|| store.commit_end(&self.claim, end.clone())).await.ok()
    }

    /// Stops the commands of an earlier service that this one has not waited for: the job was cancelled in between.
    async fn stop_commands(&self) {
        if self.has_commands() {
            runs::stop_commands(&self.files).await;
        }
    }

    /// Returns whether the recorded changes are those of the earlier job in the same checkout.
    pub(super) async fn has_only_earlier_changes(&self) -> bool {
        let Some(earlier) = self.checkout.as_ref().and_then(|checkout| checkout.earlier) else {
            return false;
        };
        let patches = [&self.files, &self.files.of_job(earlier)].map(patch_file);
        let compared = tokio::task::spawn_blocking(move || {
            let [own, earlier] = patches.map(|patch| read_regular(&patch).ok());
            own.is_some() && own == earlier
        });
        compared.await.unwrap_or(false)
    }

    /// Returns the verification of a job whose agent never reported success.
    fn missing_verification(&self) -> Option<Verification> {
        let verify = self.job.order.call.verify.as_ref()?;
        Some(Verification::not_run(verify, "the agent did not report success"))
    }

    /// Returns whether commands beside the agent may have run.
    fn has_commands(&self) -> bool {
        self.job.order.call.verify.is_some() || self.checkout.is_some()
    }

    async fn check_expected_changes(&self, end: JobEnd, changes: Option<&JobChanges>) -> JobEnd {
        if !self.job.order.call.expect_changes {
            return end;
        }
        let changed_files = match changes {
            Some(JobChanges::Recorded(..)) if self.has_only_earlier_changes().await => Some(0),
            Some(JobChanges::Recorded(changes, _)) => Some(changes.files.len()),
            Some(JobChanges::NotRecorded { .. }) | None => None,
        };
        decide::with_expected_changes(end, changed_files)
    }

    /// Records the changes in the worktree. Returns `None` if the service detaches first: the next one records them.
    async fn record_changes(&self) -> Option<Option<JobChanges>> {
        tokio::select! {
            biased;
            changes = async { self.publish_checkout(self.change_recorder().take_after().await).await } => Some(changes),
            () = self.context.shutdown.detaching() => None,
        }
    }

    /// Returns the least certain end of all process trees of the job.
    fn tree_end(&self) -> Option<TreeEnd> {
        let is_only = |last: &&EndedRun| last.number == 1 && last.is_newest && !self.has_commands();
        if let Some(last) = self.last_run.as_ref().filter(is_only) {
            return Some(last.report.tree);
        }
        let end_of = |directory: PathBuf| match Spool::at(directory).status().ok()??.state {
            RunState::Ended(report) => Some(report.tree),
            RunState::Running { .. } => None,
        };
        let doubt = |end: &TreeEnd| match end {
            TreeEnd::ProvenEmpty => 0,
            TreeEnd::SweptByIdentity => 1,
            TreeEnd::LeftAlive { .. } => 2,
        };
        let runs = self.files.runs().into_iter().map(|number| self.files.run(number));
        runs.chain(self.files.commands()).filter_map(end_of).max_by_key(doubt)
    }

    /// Returns the report of the last run, with the quarantined paths and the counted commits of the earlier ones.
    fn report(&self) -> Option<RunReport> {
        let last = self.last_run.as_ref()?;
        let mut report = last.report.clone();
        let confined_in = |number: u32| match Spool::at(self.files.run(number)).status().ok()??.state {
            RunState::Ended(RunReport { sandbox: Some(SandboxReport::Confined(confined)), .. }) => {
                Some(confined)
            }
            _ => None,
        };
        if let Some(SandboxReport::Confined(confined)) = &mut report.sandbox {
            let mut quarantined = Vec::new();
            let earlier = self.files.runs().into_iter().filter(|number| *number != last.number);
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

    /// Repeats a write until the store accepts it or refuses it for good.
    async fn retry_until_accepted<T, F>(&self, write: impl Fn() -> F) -> Result<T, NotAccepted>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            let error = match write().await {
                Ok(accepted) => return Ok(accepted),
                Err(error) => error,
            };
            // If the store is lost, `switchboard recover` needs it. A short run has none yet.
            self.write_first_record();
            if let StoreError::NoSuchJob { job } = error {
                // The spool still holds the outcome for `switchboard recover`.
                self.context.health.note_missing_job(job);
                return Err(NotAccepted::Refused(error));
            }
            if error.refusal().is_some() {
                tracing::info!(job = %self.job.id, %error, "the store has refused the state of the job");
                return Err(NotAccepted::Refused(error));
            }
            tracing::warn!(job = %self.job.id, %error, "cannot store the state of the job; trying again");
            tokio::select! {
                // The spool still holds the outcome for the next service.
                () = self.context.shutdown.detaching() => return Err(NotAccepted::Detached),
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
        }
    }
}
