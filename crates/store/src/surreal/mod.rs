//! The shared engine: a `SurrealDB` server, which several machines can use.
//!
//! Owns all `SurrealQL`. Conflicts are retried. After a lost connection the outcome of a write is read back; if that
//! is impossible, the error is [`StoreError::Unconfirmed`].

mod claim;
mod connecting;
mod delivery;
#[cfg(feature = "surreal-embedded")]
mod embedded;
#[cfg(feature = "surreal-embedded")]
mod folder;
mod jobs;
mod reads;
mod records;
mod schema;
mod sweep;
mod tls;
mod watching;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;
use model::{
    AgentKind, Claim, Exchange, Job, JobId, JobIdPrefix, Owner, Placement, SessionId, Timestamp, Transition,
};
use tokio::sync::Mutex;

use crate::committed::Committed;
use crate::engine::{Begun, Engine, Taken};
use crate::error::{StoreError, SweepError};
use crate::requests::{
    ClaimRequest, Found, Held, JobFilter, LastSession, Page, PageRequest, RescueRequest, Retention,
};
use crate::row::EndRow;
use crate::setting::Setting;
use crate::stats::{Stats, StatsRange};
use crate::watch::Watch;
pub use connecting::Trust;
use wire::{Vars, Wire};

/// A store in a `SurrealDB` database.
#[derive(Debug)]
pub struct Surreal {
    wire: Arc<Wire>,
    /// Serializes the claims of this process, so that an owner never exceeds its capacity and does not race itself.
    claiming: Arc<Mutex<()>>,
    is_shared: bool,
}

impl Surreal {
    pub async fn open(setting: Setting, trust: Trust) -> Result<Self, StoreError> {
        let wire = connecting::wire(&setting, &trust).await?;
        schema::bring_up_to_date(&wire).await?;
        // A directory has one owner, a server has any number.
        let is_shared = matches!(setting, Setting::Surreal { .. });
        Ok(Self { wire: Arc::new(wire), claiming: Arc::default(), is_shared })
    }
}

/// Returns a random name for one write, which identifies it in the record.
fn op_name() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::NoRandomness(Box::new(error)))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
}

#[async_trait]
impl Engine for Surreal {
    async fn submit(&self, job: Job, _request: Option<ClaimRequest>) -> Result<Committed<Begun>, StoreError> {
        let (job, is_new) = jobs::place(&self.wire, job).await?;
        Ok(Committed::already_flushed(Begun { job, is_new, claimed: None }))
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    async fn claim(&self, request: ClaimRequest, now: Timestamp) -> Result<Option<Job>, StoreError> {
        delivery::claim(self.wire.clone(), self.claiming.clone(), request, now).await
    }

    async fn renew(&self, owner: Owner, expires_at: Timestamp) -> Result<Vec<Held>, StoreError> {
        claim::renew(&self.wire, &owner, expires_at).await
    }

    async fn owners(&self, prefix: String, after: Timestamp) -> Result<Vec<Owner>, StoreError> {
        claim::owners(&self.wire, &prefix, after).await
    }

    async fn step(
        &self,
        job: JobId,
        step: Transition,
        end: Option<EndRow>,
        now: Timestamp,
    ) -> Result<Taken, StoreError> {
        jobs::take_step(&self.wire, job, &step, end.as_ref(), now).await
    }

    async fn note_session(&self, claim: Claim, session: SessionId, now: Timestamp) -> Result<(), StoreError> {
        jobs::note_session(&self.wire, &claim, &session, now).await
    }

    async fn rescue(&self, request: RescueRequest, now: Timestamp) -> Result<Vec<Job>, StoreError> {
        claim::take_over(&self.wire, &request, now).await
    }

    async fn get(&self, job: JobId) -> Result<Option<Job>, StoreError> {
        reads::job(&self.wire, job).await
    }

    async fn keyed(&self, home: Placement, key: String) -> Result<Option<Job>, StoreError> {
        reads::job_of_key(&self.wire, &home, &key).await
    }

    async fn find(&self, prefix: JobIdPrefix) -> Result<Found, StoreError> {
        reads::find(&self.wire, prefix).await
    }

    async fn list(&self, filter: JobFilter, page: PageRequest) -> Result<Page, StoreError> {
        reads::list(&self.wire, &filter, page).await
    }

    async fn count(&self, filter: JobFilter) -> Result<u64, StoreError> {
        reads::count(&self.wire, &filter).await
    }

    async fn exchange(&self, job: JobId) -> Result<Option<Exchange>, StoreError> {
        reads::exchange(&self.wire, job).await
    }

    async fn last_session(
        &self,
        agent: AgentKind,
        task: String,
        home: Placement,
    ) -> Result<Option<LastSession>, StoreError> {
        reads::last_session(&self.wire, agent, &task, &home).await
    }

    async fn stats(&self, range: StatsRange) -> Result<Stats, StoreError> {
        reads::stats(&self.wire, range).await
    }

    async fn watch(&self) -> Result<Watch, StoreError> {
        watching::watch(self.wire.clone()).await
    }

    async fn sweep(&self, retention: Retention, now: Timestamp) -> Result<Vec<JobId>, SweepError> {
        let mut removed = Vec::new();
        loop {
            match sweep::part(&self.wire, retention, now).await {
                Ok(part) if part.jobs.is_empty() => break,
                Ok(part) => match part.removed {
                    Ok(()) => removed.extend(part.jobs),
                    Err(source) => return Err(SweepError::after(removed, part.jobs, source)),
                },
                Err(source) => return Err(SweepError::after(removed, Vec::new(), source)),
            }
        }
        match sweep::forget_owners(&self.wire, now).await {
            Ok(()) => Ok(removed),
            Err(source) => Err(SweepError::after(removed, Vec::new(), source)),
        }
    }

    /// Checks that the server replies; its files are its own responsibility.
    async fn check(&self) -> Result<(), StoreError> {
        self.wire.read("SELECT version FROM switchboard:schema;", Vars::new()).await.map(|_| ())
    }
}
