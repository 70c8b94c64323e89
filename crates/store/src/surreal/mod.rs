//! The shared engine: a `SurrealDB` server, which several machines can use.
//!
//! Owns all `SurrealQL`. Conflicts are retried. After a lost connection the outcome of a write is read back; if that
//! is impossible, the error is [`StoreError::Unconfirmed`].

mod claim;
mod client;
mod connect;
mod delivery;
#[cfg(feature = "surreal-embedded")]
mod directory;
#[cfg(feature = "surreal-embedded")]
mod embedded;
mod jobs;
mod reads;
mod records;
mod schema;
mod sweep;
mod tls;
mod watch;

use std::sync::Arc;

use async_trait::async_trait;
use model::{
    AgentKind, Claim, Exchange, Job, JobId, JobIdPrefix, Owner, Placement, SessionId, Timestamp, Transition,
};
use tokio::sync::Mutex;

use crate::committed::Committed;
use crate::engine::{Engine, InsertedJob, StateChange};
use crate::error::{StoreError, SweepError};
use crate::requests::{
    ClaimRequest, HeldClaim, JobFilter, LastSession, Page, PageRequest, PrefixMatch, RescueRequest,
    RetentionLimits,
};
use crate::row::EndRow;
use crate::setting::StoreSetting;
use crate::stats::{Stats, StatsRange};
use crate::watch::ChangeStream;
use client::{SurrealClient, Vars};
pub use connect::Trust;

/// A store in a `SurrealDB` database.
#[derive(Debug)]
pub struct Surreal {
    client: Arc<SurrealClient>,
    /// Serializes the claims of this process, so that an owner never exceeds its capacity and does not race itself.
    claim_lock: Arc<Mutex<()>>,
    is_shared: bool,
}

impl Surreal {
    pub async fn open(setting: StoreSetting, trust: Trust) -> Result<Self, StoreError> {
        let client = connect::connect(&setting, &trust).await?;
        schema::migrate(&client).await?;
        // A directory has one owner, a server has any number.
        let is_shared = matches!(setting, StoreSetting::Surreal { .. });
        Ok(Self { client: Arc::new(client), claim_lock: Arc::default(), is_shared })
    }
}

/// Returns a random name for one write, which identifies it in the record.
fn new_write_name() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::NoRandomness(Box::new(error)))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
}

#[async_trait]
impl Engine for Surreal {
    async fn submit(
        &self,
        job: Job,
        _request: Option<ClaimRequest>,
    ) -> Result<Committed<InsertedJob>, StoreError> {
        let (job, is_new) = jobs::submit(&self.client, job).await?;
        Ok(Committed::already_flushed(InsertedJob { job, is_new, claimed: None }))
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
        delivery::claim(self.client.clone(), self.claim_lock.clone(), request, now).await
    }

    async fn renew(&self, owner: Owner, expires_at: Timestamp) -> Result<Vec<HeldClaim>, StoreError> {
        claim::renew(&self.client, &owner, expires_at).await
    }

    async fn live_owners(&self, prefix: String, after: Timestamp) -> Result<Vec<Owner>, StoreError> {
        claim::live_owners(&self.client, &prefix, after).await
    }

    async fn step(
        &self,
        job: JobId,
        step: Transition,
        end: Option<EndRow>,
        now: Timestamp,
    ) -> Result<StateChange, StoreError> {
        jobs::apply_transition(&self.client, job, &step, end.as_ref(), now).await
    }

    async fn note_session(&self, claim: Claim, session: SessionId, now: Timestamp) -> Result<(), StoreError> {
        jobs::note_session(&self.client, &claim, &session, now).await
    }

    async fn rescue(&self, request: RescueRequest, now: Timestamp) -> Result<Vec<Job>, StoreError> {
        claim::rescue_jobs(&self.client, &request, now).await
    }

    async fn get(&self, job: JobId) -> Result<Option<Job>, StoreError> {
        reads::job(&self.client, job).await
    }

    async fn find_by_key(&self, home: Placement, key: String) -> Result<Option<Job>, StoreError> {
        reads::job_by_key(&self.client, &home, &key).await
    }

    async fn find(&self, prefix: JobIdPrefix) -> Result<PrefixMatch, StoreError> {
        reads::find(&self.client, prefix).await
    }

    async fn list(&self, filter: JobFilter, page: PageRequest) -> Result<Page, StoreError> {
        reads::list(&self.client, &filter, page).await
    }

    async fn count(&self, filter: JobFilter) -> Result<u64, StoreError> {
        reads::count(&self.client, &filter).await
    }

    async fn exchange(&self, job: JobId) -> Result<Option<Exchange>, StoreError> {
        reads::exchange(&self.client, job).await
    }

    async fn last_session(
        &self,
        agent: AgentKind,
        task: String,
        home: Placement,
    ) -> Result<Option<LastSession>, StoreError> {
        reads::last_session(&self.client, agent, &task, &home).await
    }

    async fn stats(&self, range: StatsRange) -> Result<Stats, StoreError> {
        reads::stats(&self.client, range).await
    }

    async fn watch(&self) -> Result<ChangeStream, StoreError> {
        watch::watch(self.client.clone()).await
    }

    async fn sweep(&self, retention: RetentionLimits, now: Timestamp) -> Result<Vec<JobId>, SweepError> {
        let mut removed = Vec::new();
        loop {
            match sweep::sweep_batch(&self.client, retention, now).await {
                Ok(batch) if batch.jobs.is_empty() => break,
                Ok(batch) => match batch.result {
                    Ok(()) => removed.extend(batch.jobs),
                    Err(source) => return Err(SweepError::new(removed, batch.jobs, source)),
                },
                Err(source) => return Err(SweepError::new(removed, Vec::new(), source)),
            }
        }
        match sweep::remove_expired_owners(&self.client, now).await {
            Ok(()) => Ok(removed),
            Err(source) => Err(SweepError::new(removed, Vec::new(), source)),
        }
    }

    /// Checks that the server replies; its files are its own responsibility.
    async fn check(&self) -> Result<(), StoreError> {
        self.client.run("SELECT version FROM switchboard:schema;", Vars::new()).await.map(|_| ())
    }
}
