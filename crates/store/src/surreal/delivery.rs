//! Delivers a claimed job to its caller, or releases the claim.
//!
//! A caller can be dropped at any time, even between the reply of the server and its delivery. Its owner is alive and
//! would renew the lease of a job that it does not know. The claim therefore runs in its own task, and an undelivered
//! job is queued again.

use std::sync::Arc;

use model::{Job, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};

use crate::error::StoreError;
use crate::requests::ClaimRequest;
use crate::surreal::client::SurrealClient;
use crate::surreal::{claim, jobs};

/// Claims the oldest job that the owner can serve. Cancel-safe: dropping this future leaks no claim.
pub async fn claim(
    client: Arc<SurrealClient>,
    claim_lock: Arc<Mutex<()>>,
    request: ClaimRequest,
    now: Timestamp,
) -> Result<Option<Job>, StoreError> {
    let (reply_sender, reply) = oneshot::channel();
    let location = client.location();
    // Detached on purpose: the task must outlive a dropped caller, and ends with its last query.
    Handle::current().spawn(async move {
        let _guard = claim_lock.lock_owned().await;
        if reply_sender.is_closed() {
            return;
        }
        let claimed = claim::claim_oldest(&client, &request, now).await;
        let claimed =
            claimed.map(|job| job.map(|job| UndeliveredClaim { job: Some(Box::new(job)), client, now }));
        // Sent while the lock is held: the next claim finds the job delivered or being released.
        drop(reply_sender.send(claimed));
    });
    let dropped = |error: oneshot::error::RecvError| StoreError::Unconfirmed {
        location,
        job: None,
        source: error.into(),
    };
    Ok(reply.await.map_err(dropped)??.and_then(UndeliveredClaim::deliver))
}

/// A claimed job before its delivery to the caller.
struct UndeliveredClaim {
    job: Option<Box<Job>>,
    client: Arc<SurrealClient>,
    now: Timestamp,
}

impl UndeliveredClaim {
    fn deliver(mut self) -> Option<Job> {
        self.job.take().map(|job| *job)
    }
}

impl Drop for UndeliveredClaim {
    fn drop(&mut self) {
        let Some(claim) = self.job.take().and_then(|job| job.claim()) else { return };
        // Without a runtime the process is about to exit, and its leases expire.
        let Ok(runtime) = Handle::try_current() else { return };
        let (client, now) = (self.client.clone(), self.now);
        runtime.spawn(async move {
            // If the server is unavailable for long, the owner's heartbeat still lists the job.
            let _ = jobs::release_claim(&client, &claim, now).await;
        });
    }
}
