//! Renews the lease of this service, and handles lost claims and cancellation requests.

use std::sync::Arc;
use std::time::Duration;

use model::{Claim, Owner};
use store::{HeldClaim, Store, StoreError};
use tokio::time::sleep;

use crate::active::{ActiveJob, ActiveJobs, StopReason};
use crate::orphans::OrphanKeeper;
use crate::shutdown::Shutdown;
use crate::store_health::StoreHealth;

/// Keeps the claims of this service alive.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    pub store: Store,
    pub owner: Owner,
    pub lease: Duration,
    pub active: Arc<ActiveJobs>,
    pub health: Arc<StoreHealth>,
    pub orphans: Arc<OrphanKeeper>,
    pub shutdown: Shutdown,
}

impl Heartbeat {
    /// Beats three times per lease until the service has stopped.
    pub async fn run(&self) {
        let mut unknown: Vec<Claim> = Vec::new();
        loop {
            tokio::select! {
                () = self.shutdown.stopped() => return,
                () = sleep(self.lease / 3) => {}
            }
            // Errors other than a loss are reported by the next write.
            let _ = self.health.verify().await;
            if !self.health.is_lost() {
                self.orphans.rescue_expired().await;
            }
            let held = match self.store.renew(&self.owner, self.lease).await {
                Ok(held) => held,
                Err(StoreError::Lost(_)) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the lease");
                    continue;
                }
            };
            for active in self.active.all() {
                match held.iter().find(|held| held.claim == active.claim) {
                    Some(held) if !held.cancel_requested => {}
                    Some(_) => active.request_stop(StopReason::User),
                    None => self.stop_if_lost(&active).await,
                }
            }
            unknown = self.requeue_unknown(held, &unknown).await;
        }
    }

    /// Requeues the claims that no task runs, and returns those found for the first time: they may be about to be registered, or have
    /// ended since.
    async fn requeue_unknown(&self, held: Vec<HeldClaim>, unknown: &[Claim]) -> Vec<Claim> {
        let is_active =
            |claim: &Claim| self.active.get(claim.job).is_some_and(|active| active.claim == *claim);
        let inactive: Vec<HeldClaim> = held.into_iter().filter(|held| !is_active(&held.claim)).collect();
        for held in &inactive {
            if !self.shutdown.is_draining() && unknown.contains(&held.claim) && !is_active(&held.claim) {
                self.orphans.requeue_orphan(held).await;
            }
        }
        inactive.into_iter().map(|held| held.claim).collect()
    }

    /// Stops a job that another owner holds. A job that nobody holds may have ended a moment ago; its record exists in any case.
    async fn stop_if_lost(&self, active: &ActiveJob) {
        let job = match self.store.get(active.claim.job).await {
            Ok(Some(job)) => job,
            Ok(None) => return self.health.note_missing_job(active.claim.job),
            Err(_) => return,
        };
        if job.claim().is_some_and(|claim| claim != active.claim) {
            tracing::warn!(job = %job.id, "another owner holds the job: stopping the run");
            active.request_stop(StopReason::LostClaim);
        }
    }
}
