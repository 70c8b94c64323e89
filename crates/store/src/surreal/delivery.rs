//! Brings a claimed job to who asked for it, or puts it back.
//!
//! A caller can go away at any moment, be it between the server's word and ours. Its owner lives, and would renew the lease of
//! a job that it does not know of: so the claim is made by a task of its own, and what nobody takes from it is queued again.

use std::sync::Arc;

use model::{Job, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, oneshot};

use crate::error::StoreError;
use crate::requests::ClaimRequest;
use crate::surreal::wire::Wire;
use crate::surreal::{claim, jobs};

/// Takes the oldest job that the owner can serve. Dropping this future at any moment leaves no job behind.
pub async fn claim(
    wire: Arc<Wire>,
    turns: Arc<Mutex<()>>,
    request: ClaimRequest,
    now: Timestamp,
) -> Result<Option<Job>, StoreError> {
    let (reply, answer) = oneshot::channel();
    let place = wire.place();
    // Nobody awaits it: it has to outlive a caller that is gone, and ends by itself with the last of its questions.
    Handle::current().spawn(async move {
        let _turn = turns.lock_owned().await;
        if reply.is_closed() {
            return;
        }
        let taken = claim::oldest(&wire, &request, now).await;
        let taken = taken.map(|job| job.map(|job| Undelivered { job: Some(Box::new(job)), wire, now }));
        // Within the turn: whoever has the next one finds the job given or on its way back.
        drop(reply.send(taken));
    });
    let lost =
        |gone: oneshot::error::RecvError| StoreError::Unconfirmed { place, job: None, source: gone.into() };
    Ok(answer.await.map_err(lost)??.and_then(Undelivered::deliver))
}

/// A claimed job on its way to who asked.
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
        // Without a runtime the process is about to end, and its leases with it.
        let Ok(runtime) = Handle::try_current() else { return };
        let (wire, now) = (self.wire.clone(), self.now);
        runtime.spawn(async move {
            // Should the server be away for long, a heartbeat still shows the job to its owner.
            let _ = jobs::put_back(&wire, &claim, now).await;
        });
    }
}
