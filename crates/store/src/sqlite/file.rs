//! The file: made for the user alone, opened, set up, and read from.

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

/// How long a statement waits for another process to let go of the file.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How many reads go on at once.
const READERS: usize = 4;

const STATEMENTS_KEPT: usize = 64;

/// After how many pages the log is brought into the file at the latest: 16 MB.
const LONGEST_LOG: u32 = 4_000;

/// The size of the header of a database; a file that is shorter holds none.
pub const HEADER: u64 = 100;

/// Opens the file for writing; makes it and its folders when they are missing, and brings it to our version.
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

/// The log of a file that was opened, and whether it has one.
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

/// The files of an open database, to be compared with those at their paths.
#[derive(Debug)]
pub struct OpenFiles {
    path: PathBuf,
    database: Metadata,
    log: Option<Metadata>,
}

impl OpenFiles {
    /// Notes which files have just been opened.
    pub fn note(path: &Path, has_log: bool) -> io::Result<Self> {
        let log = has_log.then(|| fs::metadata(beside(path, "-wal"))).transpose()?;
        Ok(Self { path: path.to_owned(), database: fs::metadata(path)?, log })
    }

    /// Returns the error for a loss of this database.
    pub fn lost(&self, loss: Loss) -> StoreLoss {
        StoreLoss { place: Place::file(&self.path).name(), loss }
    }

    /// Compares them with those that are there now.
    pub fn verify(&self) -> Result<(), StoreLoss> {
        let lost = |loss| Err(self.lost(loss));
        let is_same = |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return lost(Loss::Removed),
            Ok(found) if !is_same(&found, &self.database) => return lost(Loss::Replaced),
            Ok(found) if found.len() < HEADER && self.database.len() >= HEADER => {
                return lost(Loss::Truncated);
            }
            // A machine that lacks memory says nothing about the file.
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

/// Looks whose file it is before anything about it is changed, be it only its mode.
pub fn refuse_foreign(path: &Path, place: &Place) -> Result<(), StoreError> {
    // What is missing or empty becomes ours; what cannot be looked at is told by the opening itself.
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

/// Opens the file for reading, and changes nothing beside it.
pub fn open_as_it_lies(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(as_it_lies(path), flags)?;
    connection.busy_timeout(PATIENCE)?;
    Ok(connection)
}

/// The file as an address. Without a log beside it, it is read as something that nobody changes: even a reader would make the
/// log's files otherwise.
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

/// Returns whether the file has a write-ahead log with something in it.
pub fn has_log(path: &Path) -> bool {
    fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0)
}

fn hex(digit: u8) -> char {
    char::from_digit(digit.into(), 16).unwrap_or('0')
}

/// Returns the path of the file that belongs to a database and has this ending.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// `SQLite` gives a new `-wal` and `-shm` the mode of the file; those that a crash left behind keep theirs.
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
    // Some file systems, and a database in memory, have no log to write ahead to: there, SQLite itself syncs within its commit.
    let mode =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
    let synchronous = if mode == "wal" { "normal" } else { "full" };
    // A log is synced by the writer, after the commit.
    connection.pragma_update(None, "synchronous", synchronous)?;
    // A checkpoint costs syncs of its own. They are made when nobody waits, or when this much has gathered.
    connection.pragma_update(None, "wal_autocheckpoint", LONGEST_LOG)?;
    // A long reader can make the log grow; afterwards it shrinks to this again.
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    Ok(())
}

/// Statements are prepared once. Without the guarantee that a plan does not depend on the values, `SQLite` would prepare one again
/// whenever its values change, which is every time.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Connections that only read, opened when they are first needed.
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
            // One that could not leave its transaction would show others the past.
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

/// All that is read is of one moment, however many statements it takes.
fn at_one_moment<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, Failed>,
) -> Result<T, Failed> {
    connection.prepare_cached("BEGIN DEFERRED")?.execute([])?;
    let answer = read(connection);
    let ended = connection.prepare_cached("ROLLBACK").and_then(|mut end| end.execute([]));
    // After some errors SQLite has already ended it.
    if answer.is_ok() {
        ended?;
    }
    answer
}
