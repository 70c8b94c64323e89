//! Ways to give up the claim on a job.

use model::{Claim, TransitionError};
use store::{Store, StoreError};

/// Requeues a job whose run is lost. Refused if the job has no attempt left ([`is_out_of_attempts`]).
pub(crate) async fn requeue(store: &Store, claim: &Claim) -> Result<(), StoreError> {
    match store.interrupt(claim).await {
        // Refused for a job that was rescued from a dead owner: it is interrupted already.
        Err(error) if error.refusal().is_none() => return Err(error),
        _ => {}
    }
    store.requeue(claim).await.map(drop)
}

pub(crate) fn is_out_of_attempts(error: &StoreError) -> bool {
    matches!(error.refusal(), Some(TransitionError::NoAttemptLeft { .. }))
}

/// Releases a job that has not started. It becomes a pause that is already over, which costs no attempt.
pub(crate) async fn release(store: &Store, claim: &Claim) -> Result<(), StoreError> {
    store.pause_until(claim, store.now()).await.map(drop)
}
