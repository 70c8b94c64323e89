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
use crate::sqlite::location::StoreLocation;
use crate::sqlite::wal::{NoWal, WalFile, WriteAheadLog};
use crate::sqlite::{QueryError, schema};

/// The time that a statement waits for a lock of another process.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of concurrent reads.
const MAX_READERS: usize = 4;

const STATEMENT_CACHE_SIZE: usize = 64;

/// The number of pages after which `SQLite` checkpoints the log itself: 16 MB.
const AUTOCHECKPOINT_PAGES: u32 = 4_000;

/// The size of the database header; a shorter file is no database.
pub const HEADER_SIZE: u64 = 100;

/// Opens the file for writing. Creates it with its parent directories if it is missing, and migrates it.
pub fn open(path: &Path) -> Result<Connection, StoreError> {
    let location = StoreLocation::file(path);
    let cannot =
        |source: io::Error| StoreError::CannotOpen { location: location.name(), source: source.into() };
    reject_foreign(path, &location)?;
    create_private(path).map_err(cannot)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection =
        Connection::open_with_flags(path, flags).map_err(|error| location.query_error(error))?;
    configure(&connection).map_err(|error| location.query_error(error))?;
    schema::migrate(&mut connection, &location)?;
    Ok(connection)
}

pub fn in_memory() -> Result<Connection, StoreError> {
    let location = StoreLocation::memory();
    let mut connection = Connection::open_in_memory().map_err(|error| location.query_error(error))?;
    configure(&connection).map_err(|error| location.query_error(error))?;
    schema::migrate(&mut connection, &location)?;
    Ok(connection)
}

/// Opens the write-ahead log of an open database, if it has one. Also returns whether it has.
pub fn open_wal(connection: &Connection, path: &Path) -> Result<(Arc<dyn WriteAheadLog>, bool), StoreError> {
    let location = StoreLocation::file(path);
    let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
    if mode.map_err(|error| location.query_error(error))? != "wal" {
        return Ok((Arc::new(NoWal), false));
    }
    let wal = WalFile::open(&sibling_path(path, "-wal"));
    let wal =
        wal.map_err(|source| StoreError::CannotOpen { location: location.name(), source: source.into() })?;
    Ok((Arc::new(wal), true))
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
    pub fn record(path: &Path, has_wal: bool) -> io::Result<Self> {
        let log = has_wal.then(|| fs::metadata(sibling_path(path, "-wal"))).transpose()?;
        Ok(Self { path: path.to_owned(), database: fs::metadata(path)?, log })
    }

    /// Returns the error for a loss of this database.
    pub fn loss(&self, loss: Loss) -> StoreLoss {
        StoreLoss { location: StoreLocation::file(&self.path).name(), loss }
    }

    /// Compares the open files with those at their paths.
    pub fn verify(&self) -> Result<(), StoreLoss> {
        let lost = |loss| Err(self.loss(loss));
        let is_same = |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return lost(Loss::Removed),
            Ok(found) if !is_same(&found, &self.database) => return lost(Loss::Replaced),
            Ok(found) if found.len() < HEADER_SIZE && self.database.len() >= HEADER_SIZE => {
                return lost(Loss::Truncated);
            }
            // Other errors, such as ENOMEM, prove no loss.
            Ok(_) | Err(_) => {}
        }
        let Some(log) = &self.log else { return Ok(()) };
        match fs::metadata(sibling_path(&self.path, "-wal")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => lost(Loss::LogLost),
            Ok(found) if !is_same(&found, log) => lost(Loss::LogLost),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Rejects a database of another program before anything about it is changed, even its mode.
pub fn reject_foreign(path: &Path, location: &StoreLocation) -> Result<(), StoreError> {
    // A missing or empty file will be ours; an inaccessible one fails when it is opened.
    if fs::metadata(path).map_or(0, |found| found.len()) == 0 {
        return Ok(());
    }
    let failed = |error| location.query_error(error);
    let connection = open_read_only(path).map_err(failed)?;
    if schema::is_ours(&connection).map_err(failed)? {
        return Ok(());
    }
    Err(StoreError::Foreign { location: location.name() })
}

/// Opens the file read-only and creates no files beside it.
pub fn open_read_only(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(read_only_uri(path), flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Returns a URI for a read-only open. Without a log the file is opened as immutable: otherwise even a reader would
/// create the `-wal` and `-shm` files.
fn read_only_uri(path: &Path) -> String {
    let mut address = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => address.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => address.push(char::from(*byte)),
            byte => address.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 0xf)]),
        }
    }
    address.push_str(if has_wal(path) { "?mode=ro" } else { "?immutable=1" });
    address
}

/// Returns whether the database has a write-ahead log that is not empty.
pub fn has_wal(path: &Path) -> bool {
    fs::metadata(sibling_path(path, "-wal")).is_ok_and(|log| log.len() > 0)
}

fn hex_digit(digit: u8) -> char {
    char::from_digit(digit.into(), 16).unwrap_or('0')
}

/// Returns the database or a companion file if it is not a regular file. `SQLite` would report an I/O error that names no path. Only the
/// database itself may be a link.
pub fn find_irregular_file(path: &Path) -> Option<PathBuf> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Some(path.to_owned());
    }
    let companions = ["-wal", "-shm"].map(|suffix| sibling_path(path, suffix));
    companions.into_iter().find(|path| fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()))
}

/// Returns the path of a companion file of the database, such as `-wal`.
pub fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates the file with mode 0600 and its directories with 0700. `SQLite` gives new `-wal` and `-shm` files the mode
/// of the database; those that a crash left behind are restricted here.
fn create_private(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => restrict_to_owner(path)?,
        Err(error) => return Err(error),
    }
    for suffix in ["-wal", "-shm"] {
        match restrict_to_owner(&sibling_path(path, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn restrict_to_owner(path: &Path) -> io::Result<()> {
    let is_accessible = fs::metadata(path)?.permissions().mode() & 0o077 != 0;
    if is_accessible { fs::set_permissions(path, PermissionsExt::from_mode(0o600)) } else { Ok(()) }
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    enable_statement_cache(connection)?;
    // Some file systems and databases in memory have no WAL: there, SQLite must fsync within its commit.
    let mode =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
    let synchronous = if mode == "wal" { "normal" } else { "full" };
    // The writer flushes the log after the commit.
    connection.pragma_update(None, "synchronous", synchronous)?;
    // A checkpoint has its own fsyncs. The writer runs one when idle; this is the upper bound.
    connection.pragma_update(None, "wal_autocheckpoint", AUTOCHECKPOINT_PAGES)?;
    // A long read can make the log grow; the next checkpoint truncates it to this size.
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    Ok(())
}

/// Enables the statement cache. Without QPSG, which makes plans independent of the bound values, `SQLite` would
/// prepare a statement again whenever its values change.
fn enable_statement_cache(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_SIZE);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// A pool of read-only connections, opened on demand.
#[derive(Debug)]
pub struct ReaderPool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Semaphore,
}

impl ReaderPool {
    pub fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default(), permits: Semaphore::new(MAX_READERS) }
    }

    pub async fn read<T, F>(self: Arc<Self>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, QueryError> + Send + 'static,
    {
        let pool = self.clone();
        let _permit = self.permits.acquire().await.map_err(|_| StoreError::Closed)?;
        let task = tokio::task::spawn_blocking(move || {
            let location = StoreLocation::file(&pool.path);
            let connection = pool.connection().map_err(|error| location.query_error(error))?;
            let result = read_in_transaction(&connection, read);
            // A connection with an open transaction would return stale data to later reads.
            if connection.is_autocommit() {
                pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
            result.map_err(|error| match error {
                QueryError::Sqlite(error) => location.query_error(error),
                QueryError::Store(error) => error,
            })
        });
        task.await.map_err(|_| StoreError::Closed)?
    }

    fn connection(&self) -> rusqlite::Result<Connection> {
        if let Some(idle) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(idle);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        enable_statement_cache(&connection)?;
        Ok(connection)
    }
}

/// Runs a read in a transaction, so that all its statements see the same snapshot.
fn read_in_transaction<T>(
    connection: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, QueryError>,
) -> Result<T, QueryError> {
    connection.prepare_cached("BEGIN DEFERRED")?.execute([])?;
    let result = read(connection);
    let rolled_back = connection.prepare_cached("ROLLBACK").and_then(|mut rollback| rollback.execute([]));
    // After some errors SQLite has already rolled back.
    if result.is_ok() {
        rolled_back?;
    }
    result
}
