//! Converts errors of `SQLite` to errors of the store.

use std::io;
use std::path::Path;

use rusqlite::{Error, ErrorCode};

use crate::error::StoreError;
use crate::loss::{Loss, StoreLoss};

/// The location of the store, as named in errors.
#[derive(Debug, Clone)]
pub struct StoreLocation(String);

impl StoreLocation {
    pub fn file(path: &Path) -> Self {
        Self(path.display().to_string())
    }

    pub fn memory() -> Self {
        Self("sqlite::memory:".to_owned())
    }

    pub fn name(&self) -> String {
        self.0.clone()
    }

    /// Converts an error before the commit: nothing was written.
    pub fn query_error(&self, error: Error) -> StoreError {
        let location = self.name();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                StoreError::Locked { location, source: error.into() }
            }
            Some(ErrorCode::DiskFull) => StoreError::Full { location, source: error.into() },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::Damaged { location, source: error.into() }
            }
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
                StoreError::CannotOpen { location, source: error.into() }
            }
            _ if is_missing_in_schema(&error) => StoreLoss { location, loss: Loss::TablesDropped }.into(),
            _ => StoreError::Engine { location, source: error.into() },
        }
    }

    /// Converts an error of the commit itself. An I/O error can occur after the last byte was written: the next
    /// process that opens the file may recover the whole transaction.
    pub fn commit_error(&self, error: Error) -> StoreError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => {
                self.query_error(error)
            }
            _ => StoreError::Unconfirmed { location: self.name(), job: None, source: error.into() },
        }
    }

    /// Returns the error for a committed write whose flush failed.
    pub fn flush_error(&self, error: &io::Error) -> StoreError {
        StoreError::Unconfirmed { location: self.name(), job: None, source: error.to_string().into() }
    }
}

/// Returns whether a statement names a table or a column that the database lacks. `SQLite` has no code for that, and the
/// statements contain no values of users.
fn is_missing_in_schema(error: &Error) -> bool {
    let message = error.to_string();
    ["no such table: ", "no such column: ", " has no column named "].iter().any(|part| message.contains(part))
}
