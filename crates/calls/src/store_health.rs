//! Detects that the open store was removed, replaced or emptied.

use std::sync::OnceLock;

use model::Owner;
use store::{Store, StoreError, StoreLoss};

/// Checks the store and remembers its loss: afterwards no call is accepted and no job is claimed.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    store: Store,
    owner: Owner,
    loss: OnceLock<StoreLoss>,
}

impl StoreHealth {
    pub fn new(store: Store, owner: Owner) -> Self {
        Self { store, owner, loss: OnceLock::new() }
    }

    /// Fails if the store was removed, replaced or emptied.
    pub fn check(&self) -> Result<(), StoreLoss> {
        match self.loss.get() {
            Some(loss) => Err(loss.clone()),
            None => self.store.verify_files(),
        }
    }

    /// Returns whether a loss was found before. Reads nothing.
    pub fn is_lost(&self) -> bool {
        self.loss.get().is_some()
    }

    /// Looks for a loss, also in the rows of the store once this owner has a heartbeat there.
    pub async fn verify(&self, has_heartbeat: bool) {
        let verified = if has_heartbeat {
            self.store.verify(&self.owner).await
        } else {
            self.store.verify_files().map_err(StoreError::from)
        };
        // Any other error is reported by the next write.
        let Err(error @ StoreError::Lost(_)) = verified else { return };
        let hint = error.hint();
        if let StoreError::Lost(loss) = error
            && self.loss.set(loss.clone()).is_ok()
        {
            tracing::error!(%loss, hint, "no call is accepted any more");
        }
    }
}
