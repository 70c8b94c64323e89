//! The transactions of the writing connection.
//!
//! Each write in a batch has its own savepoint, so that a failed write does not undo the others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::ffi;

use crate::error::StoreError;
use crate::sqlite::file::BUSY_TIMEOUT;
use crate::sqlite::location::StoreLocation;
use crate::sqlite::wal::WriteAheadLog;
use crate::sqlite::writer::PendingWrite;

/// The time to wait for readers of a suspect log. A write that fails because of them can be retried.
const READER_TIMEOUT: Duration = Duration::from_millis(200);

pub struct Transactions {
    connection: Connection,
    wal: Arc<dyn WriteAheadLog>,
    location: StoreLocation,
    /// Is true after a failed fsync of the log. The kernel then marks the pages as clean, so that a later fsync can
    /// succeed although the data never reached the disk.
    is_log_suspect: bool,
    /// The number of transactions in the log since the last checkpoint.
    log_length: u32,
}

impl fmt::Debug for Transactions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Transactions").field("location", &self.location).finish_non_exhaustive()
    }
}

impl Transactions {
    pub fn new(connection: Connection, wal: Arc<dyn WriteAheadLog>, location: StoreLocation) -> Self {
        Self { connection, wal, location, is_log_suspect: false, log_length: 0 }
    }

    pub fn log_length(&self) -> u32 {
        self.log_length
    }

    /// Commits a batch in one transaction. If nothing was committed, all writes get an error and the batch is empty
    /// afterwards.
    pub fn commit_batch(&mut self, batch: &mut Vec<Box<dyn PendingWrite>>) {
        match self.run_batch(batch) {
            Ok(()) => self.log_length = self.log_length.saturating_add(1),
            Err(error) => {
                self.roll_back();
                batch.drain(..).for_each(|write| write.send_error(error.to_store_error(&self.location)));
            }
        }
    }

    /// Commits one write without waiting for other processes. Returns the write for its reply, `None` if it already
    /// got an error, or the untouched write as `Err` if it could not start.
    pub fn try_commit(
        &mut self,
        mut write: Box<dyn PendingWrite>,
    ) -> Result<Option<Box<dyn PendingWrite>>, Box<dyn PendingWrite>> {
        // Another process may hold the lock: fail immediately instead of waiting for `BUSY_TIMEOUT`.
        let has_started = !self.is_log_suspect
            && self.connection.busy_timeout(Duration::ZERO).and_then(|()| self.begin()).is_ok();
        let restored = self.connection.busy_timeout(BUSY_TIMEOUT);
        if !has_started || restored.is_err() {
            self.roll_back();
            return Err(write);
        }
        match self.commit_single(write.as_mut()) {
            Ok(()) => {
                self.log_length = self.log_length.saturating_add(1);
                Ok(Some(write))
            }
            Err(error) => {
                self.roll_back();
                write.send_error(error.to_store_error(&self.location));
                Ok(None)
            }
        }
    }

    /// Checkpoints the log as far as readers permit.
    pub fn checkpoint(&mut self) {
        self.log_length = 0;
        // Pages in use by readers stay in the log until a later checkpoint.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// Marks the log as suspect after a failed fsync.
    pub fn mark_log_suspect(&mut self) {
        self.is_log_suspect = true;
    }

    /// Checkpoints a suspect log into the database file, which is then synced, and truncates the log. Recovery stops
    /// at the first damaged frame, so that writes after a missing part of the log would be lost with it.
    pub fn abandon_suspect_log(&mut self) -> rusqlite::Result<()> {
        if !self.is_log_suspect {
            return Ok(());
        }
        // Twice: the kernel reports a write error once per open descriptor, and the descriptor of SQLite has not
        // reported it yet.
        self.truncate_log().or_else(|_| self.truncate_log())?;
        (self.is_log_suspect, self.log_length) = (false, 0);
        Ok(())
    }

    fn truncate_log(&self) -> rusqlite::Result<()> {
        self.connection.busy_timeout(READER_TIMEOUT)?;
        let truncated =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
        self.connection.busy_timeout(BUSY_TIMEOUT)?;
        let is_busy = truncated?;
        if is_busy {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None))
        } else {
            Ok(())
        }
    }

    fn begin(&self) -> rusqlite::Result<()> {
        self.execute("BEGIN IMMEDIATE")?;
        self.wal.preallocate();
        Ok(())
    }

    fn run_batch(&mut self, batch: &mut [Box<dyn PendingWrite>]) -> Result<(), BatchError> {
        self.abandon_suspect_log().and_then(|()| self.begin()).map_err(BatchError::BeforeCommit)?;
        if let [single] = batch {
            return self.commit_single(single.as_mut());
        }
        for write in batch {
            self.run_in_savepoint(write.as_mut()).map_err(BatchError::BeforeCommit)?;
        }
        self.execute("COMMIT").map_err(BatchError::AtCommit)
    }

    /// Runs a single write without a savepoint, which would cost a copy of every page.
    fn commit_single(&self, write: &mut dyn PendingWrite) -> Result<(), BatchError> {
        match write.run(&self.connection) {
            Ok(()) => self.execute("COMMIT").map_err(BatchError::AtCommit),
            Err(Some(error)) if self.connection.is_autocommit() => Err(BatchError::BeforeCommit(error)),
            Err(_) => self.execute("ROLLBACK").map_err(BatchError::BeforeCommit),
        }
    }

    fn run_in_savepoint(&self, write: &mut dyn PendingWrite) -> rusqlite::Result<()> {
        self.execute("SAVEPOINT work")?;
        match write.run(&self.connection) {
            Ok(()) => {}
            // After ENOSPC, SQLite rolls back the whole transaction, and every write in it has failed.
            Err(Some(error)) if self.connection.is_autocommit() => return Err(error),
            Err(_) => self.execute("ROLLBACK TO work")?,
        }
        self.execute("RELEASE work")
    }

    fn roll_back(&self) {
        if !self.connection.is_autocommit() {
            // If this fails, the next BEGIN returns an error.
            let _ = self.execute("ROLLBACK");
        }
    }

    fn execute(&self, statement: &'static str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(|_| ())
    }
}

/// The error of a batch that was not committed.
enum BatchError {
    BeforeCommit(rusqlite::Error),
    AtCommit(rusqlite::Error),
}

impl BatchError {
    /// Returns the error for each caller whose write was in the batch.
    fn to_store_error(&self, location: &StoreLocation) -> StoreError {
        match self {
            Self::BeforeCommit(error) => location.query_error(copy_error(error)),
            Self::AtCommit(error) => location.commit_error(copy_error(error)),
        }
    }
}

/// Returns a copy of an error, as far as it can be copied.
pub fn copy_error(error: &rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => {
            rusqlite::Error::SqliteFailure(*code, message.clone())
        }
        other => rusqlite::Error::ToSqlConversionFailure(other.to_string().into()),
    }
}
