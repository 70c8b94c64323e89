//! Detects that the open store was removed, replaced or emptied.

use std::sync::OnceLock;

use model::{JobId, Owner};
use store::{Loss, Store, StoreError, StoreLoss};

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

    /// Fails if records or tables were deleted: answers of the store would be incomplete. After any other loss the open files are complete.
    pub fn check_records(&self) -> Result<(), StoreLoss> {
        match self.loss.get() {
            Some(loss) if matches!(loss.loss, Loss::RecordsDeleted | Loss::TablesDropped) => {
                Err(loss.clone())
            }
            _ => Ok(()),
        }
    }

    /// Looks for a loss in the files and in the rows of the store. The heartbeat of this owner must have been written before.
    pub async fn verify(&self) -> Result<(), StoreError> {
        let verified = self.store.verify(&self.owner).await;
        verified.inspect_err(|error| self.note(error))
    }

    /// Notes the loss that an error of the store reports, if it does.
    pub fn note(&self, error: &StoreError) {
        if let StoreError::Lost(loss) = error {
            self.note_loss(loss);
        }
    }

    /// Notes that the record of an active job is missing.
    pub fn note_missing_job(&self, job: JobId) {
        if let Some(loss) = self.store.deleted_records() {
            tracing::error!(%job, "the record of a running job was deleted");
            self.note_loss(&loss);
        }
    }

    fn note_loss(&self, loss: &StoreLoss) {
        if self.loss.set(loss.clone()).is_ok() {
            let hint = StoreError::Lost(loss.clone()).hint();
            tracing::error!(%loss, hint, "no call is accepted any more");
        }
    }
}
