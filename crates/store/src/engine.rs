//! The interface of a database engine. The conformance suite in `tests/` runs against every engine.
//!
//! An engine stores records and decides nothing. [`model::Progress::apply`] decides about transitions: an engine
//! reads the state of a job, calls that function and writes the result only if the job is unchanged.

use async_trait::async_trait;
use model::{
    AgentKind, Claim, Exchange, Job, JobId, JobIdPrefix, Owner, Placement, Progress, SessionId, Timestamp,
    Transition,
};

use crate::committed::Committed;
use crate::error::{StoreError, SweepError};
use crate::loss::StoreLoss;
use crate::requests::{
    ClaimRequest, HeldClaim, JobFilter, LastSession, Page, PageRequest, PrefixMatch, RescueRequest,
    RetentionLimits,
};
use crate::row::EndRow;
use crate::stats::{Stats, StatsRange};
use crate::watch::ChangeStream;

/// The effect of a transition: the progress of a job before and after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    pub before: Progress,
    pub after: Progress,
}

/// A submitted job, or the earlier one with the same key, and a job that was claimed in the same transaction.
#[derive(Debug)]
pub struct InsertedJob {
    pub job: Job,
    pub is_new: bool,
    pub claimed: Option<Job>,
}

#[async_trait]
pub trait Engine: Send + Sync + std::fmt::Debug {
    /// Inserts a new job, or finds the earlier one with the same key. With a claim request, may also claim a job for
    /// the owner: this one or an older one. An engine that cannot do both in one transaction claims nothing.
    /// Returns after the commit; the returned ticket resolves once the commit is durable.
    async fn submit(
        &self,
        job: Job,
        request: Option<ClaimRequest>,
    ) -> Result<Committed<InsertedJob>, StoreError>;
    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError>;
    async fn renew(&self, owner: Owner, expires_at: Timestamp) -> Result<Vec<HeldClaim>, StoreError>;
    /// Records that an owner closes the store. Only an engine that can lose its log stores this.
    async fn release(&self, _owner: Owner) -> Result<(), StoreError> {
        Ok(())
    }
    /// Returns the owners whose leases expire after a time and whose names start with a prefix.
    async fn live_owners(&self, prefix: String, after: Timestamp) -> Result<Vec<Owner>, StoreError>;
    /// Applies a step. A `Finish` comes with the result to store.
    async fn step(
        &self,
        job: JobId,
        step: Transition,
        end: Option<EndRow>,
        now: Timestamp,
    ) -> Result<StateChange, StoreError>;
    /// Applies the final step and returns the job as stored.
    async fn finish(
        &self,
        job: JobId,
        step: Transition,
        end: EndRow,
        now: Timestamp,
    ) -> Result<Committed<Job>, StoreError> {
        self.step(job, step, Some(end), now).await?;
        self.get(job).await?.map(Committed::already_flushed).ok_or(StoreError::NoSuchJob { job })
    }
    async fn note_session(&self, claim: Claim, session: SessionId, now: Timestamp) -> Result<(), StoreError>;
    async fn rescue(&self, request: RescueRequest, now: Timestamp) -> Result<Vec<Job>, StoreError>;

    async fn get(&self, job: JobId) -> Result<Option<Job>, StoreError>;
    async fn find_by_key(&self, home: Placement, key: String) -> Result<Option<Job>, StoreError>;
    async fn find(&self, prefix: JobIdPrefix) -> Result<PrefixMatch, StoreError>;
    async fn list(&self, filter: JobFilter, page: PageRequest) -> Result<Page, StoreError>;
    async fn count(&self, filter: JobFilter) -> Result<u64, StoreError>;
    async fn exchange(&self, job: JobId) -> Result<Option<Exchange>, StoreError>;
    async fn last_session(
        &self,
        agent: AgentKind,
        task: String,
        home: Placement,
    ) -> Result<Option<LastSession>, StoreError>;
    async fn stats(&self, range: StatsRange) -> Result<Stats, StoreError>;
    async fn watch(&self) -> Result<ChangeStream, StoreError>;

    async fn sweep(&self, retention: RetentionLimits, now: Timestamp) -> Result<Vec<JobId>, SweepError>;
    /// Returns whether other processes write to this store and watchers are notified of their changes.
    fn is_shared(&self) -> bool {
        false
    }
    /// Flushes all committed writes. An engine whose commits are durable has nothing to do.
    async fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Checks that the files of the store are the opened ones. Cheap enough for every call.
    fn verify_files(&self) -> Result<(), StoreLoss> {
        Ok(())
    }
    /// Checks that the stored heartbeat of an owner still exists.
    async fn verify_heartbeat(&self, _owner: Owner) -> Result<(), StoreError> {
        Ok(())
    }
    /// Returns the loss to report when a record that must exist is missing; `None` if others may delete records.
    fn deleted_records(&self) -> Option<StoreLoss> {
        None
    }
    async fn check(&self) -> Result<(), StoreError>;
}
