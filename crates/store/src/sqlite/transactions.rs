//! The transactions of the writing connection.
//!
//! Each write in a batch has its own savepoint, so that a failed write does not undo the others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::ffi;

use crate::error::StoreError;
use crate::sqlite::faults::Place;
use crate::sqlite::file::PATIENCE;
use crate::sqlite::log::Log;
use crate::sqlite::writer::Work;

/// How long to wait for readers of a suspect log. A write that fails because of them can be retried.
const READERS_ARE_DONE: Duration = Duration::from_millis(200);

pub struct Transactions {
    connection: Connection,
    log: Arc<dyn Log>,
    place: Place,
    /// Is true after a failed fsync of the log. The kernel then marks the pages as clean, so that a later fsync can
    /// succeed although the data never reached the disk.
    log_in_doubt: bool,
    /// The number of transactions in the log since the last checkpoint.
    in_log: u32,
}

impl fmt::Debug for Transactions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Transactions").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Transactions {
    pub fn new(connection: Connection, log: Arc<dyn Log>, place: Place) -> Self {
        Self { connection, log, place, log_in_doubt: false, in_log: 0 }
    }

    pub fn in_log(&self) -> u32 {
        self.in_log
    }

    /// Commits a batch in one transaction. If nothing was committed, all writes get an error and the batch is empty
    /// afterwards.
    pub fn carry_out(&mut self, batch: &mut Vec<Box<dyn Work>>) {
        match self.write_all(batch) {
            Ok(()) => self.in_log = self.in_log.saturating_add(1),
            Err(halt) => {
                self.take_back();
                batch.drain(..).for_each(|work| work.refuse(halt.told(&self.place)));
            }
        }
    }

    /// Commits one write without waiting for other processes. Returns the write for its reply, `None` if it already
    /// got an error, or the untouched write as `Err` if it could not start.
    pub fn carry_out_at_once(
        &mut self,
        mut work: Box<dyn Work>,
    ) -> Result<Option<Box<dyn Work>>, Box<dyn Work>> {
        // Another process may hold the lock: fail immediately instead of waiting for `BUSY_TIMEOUT`.
        let begun = !self.log_in_doubt
            && self.connection.busy_timeout(Duration::ZERO).and_then(|()| self.begin()).is_ok();
        let patient = self.connection.busy_timeout(PATIENCE);
        if !begun || patient.is_err() {
            self.take_back();
            return Err(work);
        }
        match self.write_alone(work.as_mut()) {
            Ok(()) => {
                self.in_log = self.in_log.saturating_add(1);
                Ok(Some(work))
            }
            Err(halt) => {
                self.take_back();
                work.refuse(halt.told(&self.place));
                Ok(None)
            }
        }
    }

    /// Checkpoints the log as far as readers permit.
    pub fn tidy(&mut self) {
        self.in_log = 0;
        // Pages in use by readers stay in the log until a later checkpoint.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// Marks the log as suspect after a failed fsync.
    pub fn doubt_the_log(&mut self) {
        self.log_in_doubt = true;
    }

    /// Checkpoints a suspect log into the database file, which is then synced, and truncates the log. Recovery stops
    /// at the first damaged frame, so that writes after a missing part of the log would be lost with it.
    pub fn leave_the_log(&mut self) -> rusqlite::Result<()> {
        if !self.log_in_doubt {
            return Ok(());
        }
        // Twice: the kernel reports a write error once per open descriptor, and the descriptor of SQLite has not
        // reported it yet.
        self.empty_the_log().or_else(|_| self.empty_the_log())?;
        (self.log_in_doubt, self.in_log) = (false, 0);
        Ok(())
    }

    fn empty_the_log(&self) -> rusqlite::Result<()> {
        self.connection.busy_timeout(READERS_ARE_DONE)?;
        let emptied =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
        self.connection.busy_timeout(PATIENCE)?;
        let busy = emptied?;
        if busy {
            Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None))
        } else {
            Ok(())
        }
    }

    fn begin(&self) -> rusqlite::Result<()> {
        self.execute("BEGIN IMMEDIATE")?;
        self.log.make_room();
        Ok(())
    }

    fn write_all(&mut self, batch: &mut [Box<dyn Work>]) -> Result<(), Halt> {
        self.leave_the_log().and_then(|()| self.begin()).map_err(Halt::Before)?;
        if let [alone] = batch {
            return self.write_alone(alone.as_mut());
        }
        for work in batch {
            self.run(work.as_mut()).map_err(Halt::Before)?;
        }
        self.execute("COMMIT").map_err(Halt::AtCommit)
    }

    /// Runs a single write without a savepoint, which would cost a copy of every page.
    fn write_alone(&self, work: &mut dyn Work) -> Result<(), Halt> {
        match work.run(&self.connection) {
            Ok(()) => self.execute("COMMIT").map_err(Halt::AtCommit),
            Err(Some(error)) if self.connection.is_autocommit() => Err(Halt::Before(error)),
            Err(_) => self.execute("ROLLBACK").map_err(Halt::Before),
        }
    }

    fn run(&self, work: &mut dyn Work) -> rusqlite::Result<()> {
        self.execute("SAVEPOINT work")?;
        match work.run(&self.connection) {
            Ok(()) => {}
            // After ENOSPC, SQLite rolls back the whole transaction, and every write in it has failed.
            Err(Some(error)) if self.connection.is_autocommit() => return Err(error),
            Err(_) => self.execute("ROLLBACK TO work")?,
        }
        self.execute("RELEASE work")
    }

    fn take_back(&self) {
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
enum Halt {
    Before(rusqlite::Error),
    AtCommit(rusqlite::Error),
}

impl Halt {
    /// Returns the error for each caller whose write was in the batch.
    fn told(&self, place: &Place) -> StoreError {
        match self {
            Self::Before(error) => place.failed(again(error)),
            Self::AtCommit(error) => place.commit_failed(again(error)),
        }
    }
}

/// Returns a copy of an error, as far as it can be copied.
pub fn again(error: &rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => {
            rusqlite::Error::SqliteFailure(*code, message.clone())
        }
        other => rusqlite::Error::ToSqlConversionFailure(other.to_string().into()),
    }
}
