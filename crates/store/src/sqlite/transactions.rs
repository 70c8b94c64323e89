//! The transactions of the one connection that writes.
//!
//! Each piece of work in a transaction has a savepoint of its own, so that one that fails takes nothing with it.

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

/// How long those who read from a log that is to be left are waited for. Whoever is refused over it tries again.
const READERS_ARE_DONE: Duration = Duration::from_millis(200);

pub struct Transactions {
    connection: Connection,
    log: Arc<dyn Log>,
    place: Place,
    /// Whether a sync has failed. The kernel then takes for written what the disk may not have, and a later sync that succeeds
    /// says nothing about it.
    log_in_doubt: bool,
    /// How many transactions are in the log since it was last brought into the file.
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

    /// Writes a batch in one transaction. Leaves those whose answer is due; when nothing was written, all have theirs.
    pub fn carry_out(&mut self, batch: &mut Vec<Box<dyn Work>>) {
        match self.write_all(batch) {
            Ok(()) => self.in_log = self.in_log.saturating_add(1),
            Err(halt) => {
                self.take_back();
                batch.drain(..).for_each(|work| work.refuse(halt.told(&self.place)));
            }
        }
    }

    /// Writes one piece of work without waiting for anybody. Answers it when its answer is due, or untouched when it cannot be done
    /// like this.
    pub fn carry_out_at_once(
        &mut self,
        mut work: Box<dyn Work>,
    ) -> Result<Option<Box<dyn Work>>, Box<dyn Work>> {
        // Another process may have the file: whoever does not want to wait for it must not.
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

    /// Brings into the file what can be brought there now.
    pub fn tidy(&mut self) {
        self.in_log = 0;
        // What somebody still reads stays in the log, and is brought there later.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// The log could not be synced.
    pub fn doubt_the_log(&mut self) {
        self.log_in_doubt = true;
    }

    /// Brings all that the log holds into the file itself, which is then synced, and begins the log anew: what comes after a part
    /// that may be missing on the disk would be lost with it.
    pub fn leave_the_log(&mut self) -> rusqlite::Result<()> {
        if !self.log_in_doubt {
            return Ok(());
        }
        // Twice: an error of the disk is told once to everybody who has the file open, and SQLite's own handle has not heard it yet.
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

    /// With nobody else in the transaction, it is the savepoint. One of its own would cost a copy of every page.
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
            // A full disk makes SQLite take back the whole transaction, and all who share it have to know.
            Err(Some(error)) if self.connection.is_autocommit() => return Err(error),
            Err(_) => self.execute("ROLLBACK TO work")?,
        }
        self.execute("RELEASE work")
    }

    fn take_back(&self) {
        if !self.connection.is_autocommit() {
            // When even this fails, the next BEGIN says so.
            let _ = self.execute("ROLLBACK");
        }
    }

    fn execute(&self, statement: &'static str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(|_| ())
    }
}

/// What kept a whole batch from being written.
enum Halt {
    Before(rusqlite::Error),
    AtCommit(rusqlite::Error),
}

impl Halt {
    /// For each of the callers who shared the transaction.
    fn told(&self, place: &Place) -> StoreError {
        match self {
            Self::Before(error) => place.failed(again(error)),
            Self::AtCommit(error) => place.commit_failed(again(error)),
        }
    }
}

/// The same error once more.
pub fn again(error: &rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => {
            rusqlite::Error::SqliteFailure(*code, message.clone())
        }
        other => rusqlite::Error::ToSqlConversionFailure(other.to_string().into()),
    }
}
