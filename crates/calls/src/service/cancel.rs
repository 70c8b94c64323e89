//! Cancels jobs.

use model::{JobId, StateName};

use super::JobService;
use crate::active::StopReason;
use crate::error::CallError;
use crate::shutdown::ShutdownMode;

/// The effect of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancellation {
    /// The state before.
    pub previous: StateName,
    /// The state now. A job that is still running is being stopped.
    pub now: StateName,
}

impl JobService {
    /// Cancels a job: persists the request, then stops the run with its process tree. Idempotent; fails if the job has ended otherwise.
    pub async fn cancel(&self, job: JobId) -> Result<Cancellation, CallError> {
        let reply = match self.0.store.request_cancel(job).await {
            Ok(reply) => reply,
            Err(store::StoreError::NoSuchJob { job }) => return Err(CallError::NoSuchJob { job }),
            Err(source) => {
                let Some(active) = self.0.active.get(job) else { return Err(source.into()) };
                // A full disk must not keep the agent that fills it alive. The outcome of the run shows that it was stopped.
                active.request_stop(StopReason::User);
                return Err(CallError::StoppedUnkept { job, source });
            }
        };
        if reply.previous.ended().is_some() && reply.previous != StateName::Cancelled {
            return Err(CallError::AlreadyEnded { job, state: reply.previous });
        }
        if let Some(active) = self.0.active.get(job).filter(|_| reply.needs_stop()) {
            active.request_stop(StopReason::User);
        } else if reply.now == StateName::Cancelled && reply.previous != StateName::Cancelled {
            self.0.records.refresh(job).await;
            self.remove_unused_checkout(job).await;
        }
        Ok(Cancellation { previous: reply.previous, now: reply.now })
    }

    /// Cancels all jobs that this service holds, including those that are starting, and accepts no more calls.
    pub async fn cancel_all(&self) {
        let held = self.held();
        // Before the drain: a drain would leave blocked jobs to the next service instead of cancelling them.
        self.0.active.stop_all();
        self.0.shutdown.start(ShutdownMode::Drain);
        for job in held {
            match self.cancel(job).await {
                // It ended meanwhile.
                Ok(_) | Err(CallError::AlreadyEnded { .. } | CallError::NoSuchJob { .. }) => {}
                Err(error) => {
                    tracing::warn!(%job, error = model::error_chain(&error), "cannot store the cancellation");
                }
            }
        }
    }
}
