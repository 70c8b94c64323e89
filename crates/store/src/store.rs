//! The public interface of the store, independent of the engine.
//!
//! Owns the parts that both engines share: clock, ids and the redaction of secrets. Exposes no queries: SQL and
//! `SurrealQL` stay inside this crate.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use model::{
    AgentKind, CallSpec, Claim, Exchange, Job, JobEnd, JobId, JobIdPrefix, JobState, NewJob, Owner,
    Placement, SessionId, Timestamp, Transition, TransitionError,
};

use crate::clock::Clock;
use crate::committed::Committed;
use crate::credentials::Credentials;
use crate::engine::{Engine, InsertedJob};
use crate::error::{StoreError, SweepError};
use crate::ids::IdGenerator;
use crate::loss::StoreLoss;
use crate::options::StoreOptions;
use crate::redact::Redactor;
use crate::requests::{
    CancelReply, ClaimRequest, Finished, HeldClaim, JobFilter, LastSession, Page, PageRequest, PrefixMatch,
    RescueRequest, RetentionLimits, Submitted,
};
use crate::row::EndRow;
use crate::setting::StoreSetting;
use crate::sqlite::Sqlite;
use crate::stats::{Stats, StatsRange};
use crate::watch::ChangeStream;

/// The durable record of calls and their queue.
///
/// Clones share one store. Dropping the last clone closes it; all confirmed writes are durable by then.
#[derive(Debug, Clone)]
pub struct Store {
    engine: Arc<dyn Engine>,
    clock: Clock,
    redactor: Arc<RwLock<Arc<Redactor>>>,
    ids: Arc<IdGenerator>,
}

impl Store {
    /// Opens the store. Creates it if it is missing and migrates it if it is older than this program.
    ///
    /// Must be called within a tokio runtime.
    pub async fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let StoreOptions { setting, default_file, credentials, ca_file, redactor, clock } = options;
        // The store's own password must not be stored either.
        let redactor = redactor.with_values(credentials.as_ref().map(|login| &login.password).as_slice());
        let engine: Arc<dyn Engine> = match setting {
            StoreSetting::Sqlite { path } => {
                let path = path.unwrap_or(default_file);
                if let Some(path) = crate::sqlite::find_irregular_file(&path) {
                    return Err(StoreError::NotAFile { path });
                }
                Arc::new(Sqlite::open(path).await?)
            }
            StoreSetting::SqliteMemory => Arc::new(Sqlite::in_memory().await?),
            server => open_surreal(server, credentials, ca_file).await?,
        };
        Ok(Self { engine, clock, redactor: Arc::new(RwLock::new(Arc::new(redactor))), ids: Arc::default() })
    }

    /// Returns whether [`Self::watch`] also reports writes of other processes.
    pub fn is_shared(&self) -> bool {
        self.engine.is_shared()
    }

    /// Returns the current time of this store's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Stores a call as a queued job. The job is durable when this returns.
    ///
    /// Idempotent by key: a call with a known idempotency key returns the earlier job, even if the two calls differ.
    /// After [`StoreError::Unconfirmed`] the job may exist: retry with the same key, or look up the id in the error.
    pub async fn submit(&self, new_job: NewJob) -> Result<Submitted, StoreError> {
        self.submit_as(self.new_id()?, new_job, None).await?.flushed().await
    }

    /// Adds values to redact from all texts that are stored from now on.
    pub fn redact_values(&self, values: &[&str]) {
        let known = self.redactor();
        if values.iter().all(|value| known.has_value(value)) {
            return;
        }
        let mut redactor = self.redactor.write().unwrap_or_else(PoisonError::into_inner);
        *redactor = Arc::new(Redactor::clone(&redactor).with_values(values));
    }

    /// Redacts a text like a stored text and returns the number of secrets in it.
    pub fn redact(&self, text: &mut String) -> usize {
        self.redactor().redact(text)
    }

    fn redactor(&self) -> Arc<Redactor> {
        Arc::clone(&self.redactor.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns an id for [`Self::submit_as`] that is greater than all ids before it.
    pub fn new_id(&self) -> Result<JobId, StoreError> {
        self.ids.next_job_id(self.now())
    }

    /// Submits a job and, in the same transaction, may claim the owner's next job: this one or an older one
    /// ([`Submitted::claimed`]). If none was claimed, there may still be one: call [`Self::claim`].
    ///
    /// Returns after the commit, so that the owner can prepare the run during the flush. No process may start and no
    /// caller may get a reply before the flush ([`Committed::flush`]).
    pub async fn submit_and_claim(
        &self,
        new_job: NewJob,
        request: ClaimRequest,
    ) -> Result<Committed<Submitted>, StoreError> {
        self.submit_as(self.new_id()?, new_job, Some(request)).await
    }

    /// Submits a job under an id from [`Self::new_id`], with or without a claim. If the idempotency key is known, the
    /// returned job has the earlier id.
    pub async fn submit_as(
        &self,
        id: JobId,
        mut new_job: NewJob,
        request: Option<ClaimRequest>,
    ) -> Result<Committed<Submitted>, StoreError> {
        reject_empty_names(&new_job)?;
        let redactions = self.redactor().redact_job(&mut new_job)?;
        let now = self.now();
        let job = Job::new(id, new_job, now);
        let submitted = |InsertedJob { job, is_new, claimed }| {
            let claimed = claimed.map(Box::new);
            Submitted { job, is_new, redactions, claimed }
        };
        Ok(self.engine.submit(job, request).await?.map(submitted))
    }

    /// Claims the oldest job that the owner can serve. Returns `None` if there is none or the owner is at its
    /// capacity. No job is ever claimed twice. Renews the owner's lease.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Option<Job>, StoreError> {
        self.engine.claim(request, self.now()).await
    }

    /// Renews the lease of an owner and returns its claims: the owner learns which ones it has lost and which jobs to
    /// cancel.
    pub async fn renew(&self, owner: &Owner, lease: Duration) -> Result<Vec<HeldClaim>, StoreError> {
        self.engine.renew(owner.clone(), self.now().plus(lease)).await
    }

    /// Records that the owner closes the store and writes nothing more. Without this record, a missing write-ahead
    /// log counts as lost ([`crate::DatabaseFile::find_loss`]).
    pub async fn release(&self, owner: &Owner) -> Result<(), StoreError> {
        self.engine.release(owner.clone()).await
    }

    /// Returns the owners with a valid lease whose names start with a prefix.
    pub async fn live_owners(&self, prefix: &str) -> Result<Vec<Owner>, StoreError> {
        self.engine.live_owners(prefix.to_owned(), self.now()).await
    }

    /// Stores the vendor's session as soon as it is known, so that the job can resume it after a crash.
    pub async fn note_session(&self, claim: &Claim, session: &SessionId) -> Result<(), StoreError> {
        self.redactor().check_session(session)?;
        self.engine.note_session(claim.clone(), session.clone(), self.now()).await
    }

    /// Finishes a job and returns it as stored. The end time is that of the last run, if given. Rejects a stale
    /// claim: the first terminal state wins.
    pub async fn finish(&self, claim: &Claim, end: JobEnd) -> Result<Finished, StoreError> {
        self.commit_end(claim, end).await?.flushed().await
    }

    /// Finishes a job like [`Self::finish`] but returns after the commit, so that the caller can do its other work
    /// during the flush. Waiters must not get a reply before the flush.
    pub async fn commit_end(&self, claim: &Claim, end: JobEnd) -> Result<Committed<Finished>, StoreError> {
        let mut end = end;
        let redactions = self.redactor().redact_end(&mut end);
        let step = Transition::Finish { claim: claim.clone(), how: end.how };
        let now = self.now();
        // A run may exit while no daemon is running. A time in the future comes from a wrong clock.
        let ended_at = end.ended_at.map_or(now, |ended_at| ended_at.min(now));
        let end = EndRow::new(end, self.ids.next_exchange_id(now)?)?;
        let committed = self.engine.finish(claim.job, step, end, ended_at).await?;
        Ok(committed.map(|job| Finished { job, redactions }))
    }

    /// Requests the cancellation of a job. A queued or paused job is cancelled immediately. For a claimed job the
    /// request is stored and the owner must be signaled ([`CancelReply::needs_stop`]). Idempotent; a finished job is
    /// not changed.
    pub async fn request_cancel(&self, job: JobId) -> Result<CancelReply, StoreError> {
        match self.engine.step(job, Transition::Cancel, None, self.now()).await {
            Ok(change) => {
                Ok(CancelReply { previous: change.before.state.name(), now: change.after.state.name() })
            }
            Err(StoreError::Refused { refusal: TransitionError::Ended(how), .. }) => {
                Ok(CancelReply { previous: how.name(), now: how.name() })
            }
            Err(error) => Err(error),
        }
    }

    /// Pauses a job until a time, such as the reset of a quota; it is queued again afterwards. If its cancellation
    /// was requested, it is cancelled instead.
    pub async fn pause_until(&self, claim: &Claim, until: Timestamp) -> Result<JobState, StoreError> {
        self.step(claim, Transition::Pause { claim: claim.clone(), until }).await
    }

    /// Marks a running job as interrupted; the owner keeps its claim until cleanup is done.
    pub async fn interrupt(&self, claim: &Claim) -> Result<JobState, StoreError> {
        self.step(claim, Transition::Interrupt { claim: claim.clone() }).await
    }

    /// Queues an interrupted job after the cleanup of its run. Rejected if no attempt is left: finish the job
    /// instead. If its cancellation was requested, it is cancelled instead.
    pub async fn requeue(&self, claim: &Claim) -> Result<JobState, StoreError> {
        self.step(claim, Transition::Requeue { claim: claim.clone() }).await
    }

    /// Transfers the claim on a live run from a dead owner to a new one, in the same attempt. The old claim authorizes
    /// this: the caller must know that its owner is dead. `lease` is the lease of the new owner.
    pub async fn adopt(&self, claim: &Claim, owner: &Owner, lease: Duration) -> Result<Claim, StoreError> {
        // Renew the lease first: the job must not have an owner without a valid lease.
        self.renew(owner, lease).await?;
        self.step(claim, Transition::Adopt { claim: claim.clone(), owner: owner.clone() }).await?;
        Ok(Claim { owner: owner.clone(), ..claim.clone() })
    }

    /// Takes over the jobs of owners that are proven dead or have an expired lease. The jobs become interrupted and
    /// are claimed by the rescuer, which cleans up their runs and then requeues, finishes or adopts them. If the
    /// rescuer dies, its jobs are rescued in turn.
    pub async fn rescue(&self, request: RescueRequest) -> Result<Vec<Job>, StoreError> {
        self.engine.rescue(request, self.now()).await
    }

    /// Submits a finished job again as a new job, as a child of the old one. Redacted secrets stay redacted.
    pub async fn retry(&self, job: JobId) -> Result<Submitted, StoreError> {
        self.submit(self.new_job_for_retry(job).await?).await
    }

    /// Returns the job to submit for a retry of a finished job.
    pub async fn new_job_for_retry(&self, job: JobId) -> Result<NewJob, StoreError> {
        let old = self.get(job).await?.ok_or(StoreError::NoSuchJob { job })?;
        if old.completed_at.is_none() {
            let refusal =
                TransitionError::NoSuchTransition { from: old.progress.state.name(), step: "retry" };
            return Err(StoreError::Refused { job, refusal });
        }
        // The reviewers of a group have read the old job.
        let call = CallSpec { group: None, ..old.order.call };
        Ok(NewJob { call, idempotency_key: None, parent: Some(job), ..old.order })
    }

    /// Returns a job with all its fields.
    pub async fn get(&self, job: JobId) -> Result<Option<Job>, StoreError> {
        self.engine.get(job).await
    }

    /// Returns the job that was submitted for this home with this idempotency key.
    pub async fn find_by_key(&self, home: &Placement, key: &str) -> Result<Option<Job>, StoreError> {
        self.engine.find_by_key(home.clone(), key.to_owned()).await
    }

    /// Finds the job with this id prefix.
    pub async fn find(&self, prefix: JobIdPrefix) -> Result<PrefixMatch, StoreError> {
        self.engine.find(prefix).await
    }

    /// Lists the jobs that match a filter, newest first.
    pub async fn list(&self, filter: &JobFilter, page: PageRequest) -> Result<Page, StoreError> {
        self.engine.list(filter.clone(), page).await
    }

    /// Counts the jobs that match a filter.
    pub async fn count(&self, filter: &JobFilter) -> Result<u64, StoreError> {
        self.engine.count(filter.clone()).await
    }

    /// Returns the prompt and the response of a finished job.
    pub async fn exchange(&self, job: JobId) -> Result<Option<Exchange>, StoreError> {
        self.engine.exchange(job).await
    }

    /// Returns the last session of a task with this agent and at this home: sessions belong to one agent and one
    /// machine.
    pub async fn last_session(
        &self,
        agent: AgentKind,
        task: &str,
        home: &Placement,
    ) -> Result<Option<LastSession>, StoreError> {
        self.engine.last_session(agent, task.to_owned(), home.clone()).await
    }

    /// Returns counts, durations, tokens and cost.
    pub async fn stats(&self, range: StatsRange) -> Result<Stats, StoreError> {
        self.engine.stats(range).await
    }

    /// Watches for changes from now on.
    pub async fn watch(&self) -> Result<ChangeStream, StoreError> {
        self.engine.watch().await
    }

    /// Removes finished jobs past their retention and returns their ids, so that their spool directories can be
    /// removed ([`crate::remove_job_directories`]). An error also lists the jobs that were removed before it.
    pub async fn sweep(&self, retention: RetentionLimits) -> Result<Vec<JobId>, SweepError> {
        self.engine.sweep(retention, self.now()).await
    }

    /// Flushes all committed writes to disk. Retries an unconfirmed flush ([`Committed::flush`]): when this returns,
    /// that write is durable, too.
    pub async fn sync(&self) -> Result<(), StoreError> {
        self.engine.sync().await
    }

    /// Checks that the files of the store are still the opened ones: not removed, replaced or truncated. Takes a few
    /// microseconds.
    pub fn verify_files(&self) -> Result<(), StoreLoss> {
        self.engine.verify_files()
    }

    /// Checks the files, and that the stored heartbeat of a live owner still exists.
    pub async fn verify(&self, owner: &Owner) -> Result<(), StoreError> {
        self.engine.verify_files()?;
        self.engine.verify_heartbeat(owner.clone()).await
    }

    /// Returns the loss to report when the record of an active job is missing. An embedded store has one only if somebody else
    /// deleted it.
    pub fn deleted_records(&self) -> Option<StoreLoss> {
        self.engine.deleted_records()
    }

    /// Checks the integrity of the whole store.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.engine.check().await
    }

    async fn step(&self, claim: &Claim, step: Transition) -> Result<JobState, StoreError> {
        Ok(self.engine.step(claim.job, step, None, self.now()).await?.after.state)
    }
}

/// Rejects empty names, which an engine could not distinguish from missing ones.
fn reject_empty_names(new_job: &NewJob) -> Result<(), StoreError> {
    let (Placement::Host(home) | Placement::Label(home)) = &new_job.home;
    if home.is_empty() {
        return Err(StoreError::Empty { field: "home" });
    }
    if new_job.idempotency_key.as_deref() == Some("") {
        return Err(StoreError::Empty { field: "idempotency key" });
    }
    Ok(())
}

#[cfg(feature = "surreal")]
async fn open_surreal(
    setting: StoreSetting,
    credentials: Option<Credentials>,
    ca_file: Option<PathBuf>,
) -> Result<Arc<dyn Engine>, StoreError> {
    let trust = crate::surreal::Trust { credentials, ca_file };
    Ok(Arc::new(crate::surreal::Surreal::open(setting, trust).await?))
}

#[cfg(not(feature = "surreal"))]
#[expect(clippy::unused_async, reason = "the same signature as with the engine")]
async fn open_surreal(
    _: StoreSetting,
    _: Option<Credentials>,
    _: Option<PathBuf>,
) -> Result<Arc<dyn Engine>, StoreError> {
    Err(crate::SettingError::NotBuiltIn { engine: "SurrealDB" }.into())
}
