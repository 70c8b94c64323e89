//! The phases of a shutdown: draining, detaching, stopped.

use tokio_util::sync::CancellationToken;

/// The mode of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Waits for running jobs; queued jobs stay queued.
    Drain,
    /// Returns at once. Running jobs continue under their supervisors, and the next service adopts them.
    Detach,
}

/// The phases that a shutdown has reached. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shutdown {
    draining: CancellationToken,
    detaching: CancellationToken,
    stopped: CancellationToken,
}

impl Shutdown {
    /// Starts a shutdown, or turns a drain into a detach.
    pub fn start(&self, mode: ShutdownMode) {
        self.draining.cancel();
        if mode == ShutdownMode::Detach {
            self.detaching.cancel();
        }
    }

    /// Reports that no job task is left.
    pub fn mark_stopped(&self) {
        self.stopped.cancel();
    }

    /// Is true once no job is claimed and no run is started any more.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Is true once every job task returns as soon as it can.
    pub fn is_detaching(&self) -> bool {
        self.detaching.is_cancelled()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    pub async fn detaching(&self) {
        self.detaching.cancelled().await;
    }

    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }
}
