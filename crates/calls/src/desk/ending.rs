//! Cancels jobs and closes the desk.

use model::{JobId, StateName};

use super::JobService;
use crate::error::CallError;

/// What a cancellation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled {
    /// The state before.
    pub previous: StateName,
    /// The state now. One that is still running is being stopped.
    pub now: StateName,
}

/// How a desk closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Waits for running jobs; queued jobs stay queued.
    Drain,
    /// At once: running jobs go on under their supervisors, and the next desk adopts them.
    Detach,
}

impl JobService {
    /// Wants a job to end: durable first, signalled second. One that runs is stopped with everything that it has started. Asked
    /// again, it is the same; a job that has ended otherwise is an error.
    pub async fn cancel(&self, job: JobId) -> Result<Cancelled, CallError> {
        let reply = match self.0.store.request_cancel(job).await {
            Ok(reply) => reply,
            Err(store::StoreError::NoSuchJob { job }) => return Err(CallError::NoSuchJob { job }),
            Err(source) => {
                let Some(live) = self.0.board.get(job) else { return Err(source.into()) };
                // Nobody has to watch an agent go on because the disk that it fills cannot keep the wish. Whoever judges the run finds
                // that it was stopped.
                live.stop.cancel();
                return Err(CallError::StoppedUnkept { job, source });
            }
        };
        if reply.previous.ended().is_some() && reply.previous != StateName::Cancelled {
            return Err(CallError::AlreadyEnded { job, state: reply.previous });
        }
        if let Some(live) = self.0.board.get(job).filter(|_| reply.needs_stop()) {
            live.stop.cancel();
        } else if reply.now == StateName::Cancelled && reply.previous != StateName::Cancelled {
            self.0.record(job).await;
        }
        Ok(Cancelled { previous: reply.previous, now: reply.now })
    }

    /// Takes no more calls, and wants everything to end that this desk holds, also what it is just beginning.
    pub async fn cancel_all(&self) {
        let held = self.held();
        // First: what only waits would be left to the next desk by a close, and not be ended.
        self.0.board.stop_all();
        self.0.closing.cancel();
        for job in held {
            match self.cancel(job).await {
                // One that has just ended need not be cancelled.
                Ok(_) | Err(CallError::AlreadyEnded { .. } | CallError::NoSuchJob { .. }) => {}
                Err(error) => tracing::warn!(%job, error = model::error_chain(&error), "it is stopped"),
            }
        }
    }

    /// Closes the desk. Afterwards every job is in the store or under a supervisor.
    pub async fn close(&self, how: ShutdownMode) {
        self.0.closing.cancel();
        if how == ShutdownMode::Detach {
            self.0.leaving.cancel();
        }
        let mut tasks = self.0.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
        if let Err(error) = self.0.store.release(&self.0.owner).await {
            tracing::warn!(%error, "cannot note that the store was closed");
        }
    }
}
