//! Renews the lease of this service, and handles lost claims and cancellation requests.

use std::sync::Arc;
use std::time::Duration;

use model::{Claim, Owner};
use store::{HeldClaim, Store};
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
        let mut has_renewed = false;
        loop {
            tokio::select! {
                () = self.shutdown.stopped() => return,
                () = sleep(self.lease / 3) => {}
            }
            self.health.verify(has_renewed).await;
            self.orphans.rescue_expired().await;
            let held = match self.store.renew(&self.owner, self.lease).await {
                Ok(held) => held,
                Err(error) => {
                    tracing::warn!(%error, "cannot renew the lease");
                    continue;
                }
            };
            has_renewed = true;
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

    /// Stops a job that another owner holds. A job that nobody holds may have ended a moment ago.
    async fn stop_if_lost(&self, active: &ActiveJob) {
        let Ok(Some(job)) = self.store.get(active.claim.job).await else { return };
        if job.claim().is_some_and(|claim| claim != active.claim) {
            tracing::warn!(job = %job.id, "another owner holds the job: stopping the run");
            active.request_stop(StopReason::LostClaim);
        }
    }
}
