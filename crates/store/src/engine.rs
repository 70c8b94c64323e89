//! What an engine has to do. Both do it alike: the conformance suite in `tests/` holds them to it.
//!
//! An engine keeps records; it decides nothing. Where a job may go is [`model::Progress::apply`]; an engine reads where it
//! stands, asks that function, and writes the answer only if nobody else has written in between.

use async_trait::async_trait;
use model::{
    AgentKind, Claim, Exchange, Job, JobId, JobIdPrefix, Owner, Placement, Progress, SessionId, Timestamp,
    Transition,
};

use crate::committed::Committed;
use crate::error::{StoreError, SweepError};
use crate::loss::StoreLoss;
use crate::requests::{
    ClaimRequest, Found, Held, JobFilter, LastSession, Page, PageRequest, RescueRequest, Retention,
};
use crate::row::EndRow;
use crate::stats::{Stats, StatsRange};
use crate::watch::Watch;

/// A step of a job that was taken: where it stood, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub before: Progress,
    pub after: Progress,
}

/// A job that was placed, or found by its key, and one that was claimed with it.
#[derive(Debug)]
pub struct Begun {
    pub job: Job,
    pub is_new: bool,
    pub claimed: Option<Job>,
}

#[async_trait]
pub trait Engine: Send + Sync + std::fmt::Debug {
    /// Keeps a new job, or finds the earlier one with the same key. With a request, the owner may also be given a job, this one
    /// or an older one; an engine that cannot do both at once leaves the claim to be made.
    /// Answers once it is written; an engine that answers no sooner than the disk says so.
    async fn submit(&self, job: Job, request: Option<ClaimRequest>) -> Result<Committed<Begun>, StoreError>;
    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError>;
    async fn renew(&self, owner: Owner, expires_at: Timestamp) -> Result<Vec<Held>, StoreError>;
    /// Notes that an owner closes the store. Only an engine that can lose its log needs to know.
    async fn release(&self, _owner: Owner) -> Result<(), StoreError> {
        Ok(())
    }
    /// The owners whose leases end later than that, and whose names begin like this.
    async fn owners(&self, prefix: String, after: Timestamp) -> Result<Vec<Owner>, StoreError>;
    /// Takes a step; with what a `Finish` brings along.
    async fn step(
        &self,
        job: JobId,
        step: Transition,
        end: Option<EndRow>,
        now: Timestamp,
    ) -> Result<Taken, StoreError>;
    /// Takes the last step, and answers the job as it is kept.
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
    async fn keyed(&self, home: Placement, key: String) -> Result<Option<Job>, StoreError>;
    async fn find(&self, prefix: JobIdPrefix) -> Result<Found, StoreError>;
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
    async fn watch(&self) -> Result<Watch, StoreError>;

    async fn sweep(&self, retention: Retention, now: Timestamp) -> Result<Vec<JobId>, SweepError>;
    /// Whether others write to it, too, whose changes a watcher is told.
    fn is_shared(&self) -> bool {
        false
    }
    /// Brings all that was written to the disk; an engine that answers no sooner has nothing to do.
    async fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Checks that the files of the store are those that were opened. Fast enough for every call.
    fn verify_files(&self) -> Result<(), StoreLoss> {
        Ok(())
    }
    /// Checks that the heartbeat of an owner, which has been written, is still there.
    async fn verify_heartbeat(&self, _owner: Owner) -> Result<(), StoreError> {
        Ok(())
    }
    async fn check(&self) -> Result<(), StoreError>;
}
