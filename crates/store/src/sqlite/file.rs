//! Creates, opens and configures the database file, with access for its user only.

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use crate::error::StoreError;
use crate::loss::{Loss, StoreLoss};
use crate::sqlite::faults::Place;
use crate::sqlite::log::{Log, LogFile, NoLog};
use crate::sqlite::{Failed, schema};

/// How long a statement waits for a lock of another process.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The maximum number of concurrent reads.
const READERS: usize = 4;

const STATEMENTS_KEPT: usize = 64;

/// The number of pages after which `SQLite` checkpoints the log itself: 16 MB.
const LONGEST_LOG: u32 = 4_000;

/// The size of the database header; a shorter file is no database.
pub const HEADER: u64 = 100;

/// Opens the file for writing. Creates it with its parent directories if it is missing, and migrates it.
pub fn open(path: &Path) -> Result<Connection, StoreError> {
    let place = Place::file(path);
    let cannot = |source: io::Error| StoreError::CannotOpen { place: place.name(), source: source.into() };
    refuse_foreign(path, &place)?;
    make_private(path).map_err(cannot)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(|error| place.failed(error))?;
    set_up(&connection).map_err(|error| place.failed(error))?;
    schema::bring_up_to_date(&mut connection, &place)?;
    Ok(connection)
}

pub fn in_memory() -> Result<Connection, StoreError> {
    let place = Place::memory();
    let mut connection = Connection::open_in_memory().map_err(|error| place.failed(error))?;
    set_up(&connection).map_err(|error| place.failed(error))?;
    schema::bring_up_to_date(&mut connection, &place)?;
    Ok(connection)
}

/// Opens the write-ahead log of an open database, if it has one. Also returns whether it has.
pub fn log_of(connection: &Connection, path: &Path) -> Result<(Arc<dyn Log>, bool), StoreError> {
    let place = Place::file(path);
    let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
    if mode.map_err(|error| place.failed(error))? != "wal" {
        return Ok((Arc::new(NoLog), false));
    }
    let log = LogFile::open(&beside(path, "-wal"));
    let log = log.map_err(|source| StoreError::CannotOpen { place: place.name(), source: source.into() })?;
    Ok((Arc::new(log), true))
}

/// The identities of the files of an open database, to be compared with the files at their paths.
#[derive(Debug)]
pub struct OpenFiles {
    path: PathBuf,
    database: Metadata,
    log: Option<Metadata>,
}

impl OpenFiles {
    /// Records the files that were just opened.
    pub fn note(path: &Path, has_log: bool) -> io::Result<Self> {
        let log = has_log.then(|| fs::metadata(beside(path, "-wal"))).transpose()?;
        Ok(Self { path: path.to_owned(), database: fs::metadata(path)?, log })
    }

    /// Returns the error for a loss of this database.
    pub fn lost(&self, loss: Loss) -> StoreLoss {
        StoreLoss { place: Place::file(&self.path).name(), loss }
    }

    /// Compares the open files with those at their paths.
    pub fn verify(&self) -> Result<(), StoreLoss> {
        let lost = |loss| Err(self.lost(loss));
        let is_same = |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return lost(Loss::Removed),
            Ok(found) if !is_same(&found, &self.database) => return lost(Loss::Replaced),
            Ok(found) if found.len() < HEADER && self.database.len() >= HEADER => {
                return lost(Loss::Truncated);
            }
            // Other errors, such as ENOMEM, prove no loss.
            Ok(_) | Err(_) => {}
        }
        let Some(log) = &self.log else { return Ok(()) };
        match fs::metadata(beside(&self.path, "-wal")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => lost(Loss::LogLost),
            Ok(found) if !is_same(&found, log) => lost(Loss::LogLost),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Rejects a database of another program before anything about it is changed, even its mode.
pub fn refuse_foreign(path: &Path, place: &Place) -> Result<(), StoreError> {
    // A missing or empty file will be ours; an inaccessible one fails when it is opened.
    if fs::metadata(path).map_or(0, |found| found.len()) == 0 {
        return Ok(());
    }
    let failed = |error| place.failed(error);
    let connection = open_as_it_lies(path).map_err(failed)?;
    if schema::is_ours(&connection).map_err(failed)? {
        return Ok(());
    }
    Err(StoreError::Foreign { place: place.name() })
}

/// Opens the file read-only and creates no files beside it.
pub fn open_as_it_lies(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(as_it_lies(path), flags)?;
    connection.busy_timeout(PATIENCE)?;
    Ok(connection)
}

/// Returns a URI for a read-only open. Without a log the file is opened as immutable: otherwise even a reader would
/// create the `-wal` and `-shm` files.
fn as_it_lies(path: &Path) -> String {
    let mut address = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => address.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => address.push(char::from(*byte)),
            byte => address.extend(['%', hex(byte >> 4), hex(byte & 0xf)]),
        }
    }
    address.push_str(if has_log(path) { "?mode=ro" } else { "?immutable=1" });
    address
}

/// Returns whether the database has a write-ahead log that is not empty.
pub fn has_log(path: &Path) -> bool {
    fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0)
}

fn hex(digit: u8) -> char {
    char::from_digit(digit.into(), 16).unwrap_or('0')
}

/// Returns the path of a companion file of the database, such as `-wal`.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Creates the file with mode 0600 and its directories with 0700. `SQLite` gives new `-wal` and `-shm` files the mode
/// of the database; those that a crash left behind are restricted here.
fn make_private(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => shut_out_others(path)?,
        Err(error) => return Err(error),
    }
    for ending in ["-wal", "-shm"] {
        match shut_out_others(&beside(path, ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn shut_out_others(path: &Path) -> io::Result<()> {
    let others_may = fs::metadata(path)?.permissions().mode() & 0o077 != 0;
    if others_may { fs::set_permissions(path, PermissionsExt::from_mode(0o600)) } else { Ok(()) }
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(PATIENCE)?;
    keep_statements(connection)?;
    // Some file systems and databases in memory have no WAL: there, SQLite must fsync within its commit.
    let mode =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
    let synchronous = if mode == "wal" { "normal" } else { "full" };
    // The writer flushes the log after the commit.
    connection.pragma_update(None, "synchronous", synchronous)?;
    // A checkpoint has its own fsyncs. The writer runs one when idle; this is the upper bound.
    connection.pragma_update(None, "wal_autocheckpoint", LONGEST_LOG)?;
    // A long read can make the log grow; the next checkpoint truncates it to this size.
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    Ok(())
}

/// Enables the statement cache. Without QPSG, which makes plans independent of the bound values, `SQLite` would
/// prepare a statement again whenever its values change.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// A pool of read-only connections, opened on demand.
#[derive(Debug)]
pub struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    at_once: Semaphore,
}

impl Readers {
    pub fn of(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default(), at_once: Semaphore::new(READERS) }
    }

    pub async fn read<T, F>(self: Arc<Self>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Failed> + Send + 'static,
    {
        let own = self.clone();
        let _turn = self.at_once.acquire().await.map_err(|_| StoreError::Closed)?;
        let reading = tokio::task::spawn_blocking(move || {
            let place = Place::file(&own.path);
            let connection = own.connection().map_err(|error| place.failed(error))?;
            let answer = at_one_moment(&connection, read);
            // A connection with an open transaction would return stale data to later reads.
            if connection.is_autocommit() {
                own.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
            answer.map_err(|failed| match failed {
                Failed::Sqlite(error) => place.failed(error),
                Failed::Store(error) => error,
            })
        });
        reading.await.map_err(|_| StoreError::Closed)?
    }

    fn connection(&self) -> rusqlite::Result<Connection> {
        if let Some(idle) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(idle);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        keep_statements(&connection)?;
        Ok(connection)
    }
}

/// Runs a read in a transaction, so that all its statements see the same snapshot.
fn at_one_moment<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, Failed>,
) -> Result<T, Failed> {
    connection.prepare_cached("BEGIN DEFERRED")?.execute([])?;
    let answer = read(connection);
    let ended = connection.prepare_cached("ROLLBACK").and_then(|mut end| end.execute([]));
    // After some errors SQLite has already rolled back.
    if answer.is_ok() {
        ended?;
    }
    answer
}
