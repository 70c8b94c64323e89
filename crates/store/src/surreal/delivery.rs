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
use crate::surreal::wire::Wire;
use crate::surreal::{claim, jobs};

/// Claims the oldest job that the owner can serve. Cancel-safe: dropping this future leaks no claim.
pub async fn claim(
    wire: Arc<Wire>,
    turns: Arc<Mutex<()>>,
    request: ClaimRequest,
    now: Timestamp,
) -> Result<Option<Job>, StoreError> {
    let (reply, answer) = oneshot::channel();
    let place = wire.place();
    // Detached on purpose: the task must outlive a dropped caller, and ends with its last query.
    Handle::current().spawn(async move {
        let _turn = turns.lock_owned().await;
        if reply.is_closed() {
            return;
        }
        let taken = claim::oldest(&wire, &request, now).await;
        let taken = taken.map(|job| job.map(|job| Undelivered { job: Some(Box::new(job)), wire, now }));
        // Sent while the lock is held: the next claim finds the job delivered or being released.
        drop(reply.send(taken));
    });
    let lost =
        |gone: oneshot::error::RecvError| StoreError::Unconfirmed { place, job: None, source: gone.into() };
    Ok(answer.await.map_err(lost)??.and_then(Undelivered::deliver))
}

/// A claimed job before its delivery to the caller.
struct Undelivered {
    job: Option<Box<Job>>,
    wire: Arc<Wire>,
    now: Timestamp,
}

impl Undelivered {
    fn deliver(mut self) -> Option<Job> {
        self.job.take().map(|job| *job)
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let Some(claim) = self.job.take().and_then(|job| job.claim()) else { return };
        // Without a runtime the process is about to exit, and its leases expire.
        let Ok(runtime) = Handle::try_current() else { return };
        let (wire, now) = (self.wire.clone(), self.now);
        runtime.spawn(async move {
            // If the server is unavailable for long, the owner's heartbeat still lists the job.
            let _ = jobs::put_back(&wire, &claim, now).await;
        });
    }
}
