//! The file: made for the user alone, opened, set up, and read from.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use crate::error::StoreError;
use crate::sqlite::faults::Place;
use crate::sqlite::{Failed, schema};

/// How long a statement waits for another process to let go of the file.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many reads go on at once.
const READERS: usize = 4;

const STATEMENTS_KEPT: usize = 64;

/// Opens the file for writing; makes it and its folders when they are missing, and brings it to our version.
pub fn open(path: &Path) -> Result<Connection, StoreError> {
    let place = Place::file(path);
    let cannot = |source: io::Error| StoreError::CannotOpen { place: place.name(), source: source.into() };
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

/// `SQLite` gives its `-wal` and `-shm` the mode of the file, so that is all there is to protect.
fn make_private(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let others_may = fs::metadata(path)?.permissions().mode() & 0o077 != 0;
            if others_may { fs::set_permissions(path, PermissionsExt::from_mode(0o600)) } else { Ok(()) }
        }
        Err(error) => Err(error),
    }
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    // A long reader can make the log grow; afterwards it shrinks to this again.
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "temp_store", "memory")?;
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

    pub async fn read<T, F>(self: std::sync::Arc<Self>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Failed> + Send + 'static,
    {
        let own = self.clone();
        let _turn = self.at_once.acquire().await.map_err(|_| StoreError::Closed)?;
        let reading = tokio::task::spawn_blocking(move || {
            let place = Place::file(&own.path);
            let connection = own.connection().map_err(|error| place.failed(error))?;
            let answer = read(&connection);
            own.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
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
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        Ok(connection)
    }
}
