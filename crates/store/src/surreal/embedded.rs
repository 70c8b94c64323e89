//! `SurrealDB` inside this process, in a directory that one process can open at a time.
//!
//! Built from the parts of the client library and not by its connection string: that engine would use up to half of
//! the machine's memory, and would be closed at an undefined time, or never if its runtime is dropped first.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use surrealdb::Surreal;
use surrealdb::engine::local::Db;
use surrealdb_cnf::ConfigMap;
use surrealdb_engine_local::Datastore;
use tokio::time::Instant;

use crate::error::{Cause, StoreError};
use crate::surreal::client::{Backoff, SurrealClient, SurrealConnection};
use crate::surreal::directory;

/// The namespace and the database. The directory holds no others.
const DATABASE: &str = "switchboard";

/// The time to wait for another owner: after SIGTERM it still flushes its memory to disk.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The engine's message for a locked directory. The engine returns no error code.
const LOCKED_MESSAGE: &str = "already locked";

/// The size of the memtable and of the log. It limits the recovery time after a crash and the size of a single write.
const MEMTABLE_SIZE: usize = 128 << 20;
const BLOCK_CACHE_SIZE: usize = 64 << 20;

/// The capacity of the channel for change notifications.
const NOTIFICATION_CAPACITY: usize = 4_096;

/// The time that dropping a store waits for its files to be closed. The drop may block the runtime that the close needs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// An embedded engine. Dropping it closes its files.
pub struct Embedded {
    db: Surreal<Db>,
    datastore: Arc<Datastore>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

/// Opens the directory; creates it if it is missing.
pub async fn open(path: &Path) -> Result<SurrealClient, StoreError> {
    let location = format!("surrealkv:{}", path.display());
    let cannot = |source: Cause| StoreError::CannotOpen { location: location.clone(), source };
    if directory::is_foreign(path).map_err(|error| cannot(error.into()))? {
        return Err(StoreError::Foreign { location });
    }
    directory::create_private(path).map_err(|error| cannot(error.into()))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let mut backoff = Backoff::default();
    loop {
        match Embedded::open(path).await {
            Ok(engine) => return Ok(SurrealClient::new(SurrealConnection::Embedded(engine), location)),
            Err(source) if !source.to_string().contains(LOCKED_MESSAGE) => return Err(cannot(source)),
            Err(source) if Instant::now() >= deadline => return Err(StoreError::Locked { location, source }),
            Err(_) => backoff.wait().await,
        }
    }
}

impl Embedded {
    async fn open(path: &Path) -> Result<Self, Cause> {
        let config = ConfigMap::empty()
            .with_key_value("surrealkv_max_memtable_size", MEMTABLE_SIZE.to_string())
            .with_key_value("surrealkv_block_cache_capacity", BLOCK_CACHE_SIZE.to_string());
        let (sender, receiver) = async_channel::bounded(NOTIFICATION_CAPACITY);
        let datastore = Datastore::builder()
            .with_config(config)
            .with_notify(sender)
            // They write, and must not do so before the version is written.
            .without_maintenance_tasks()
            .build_with_path(&format!("surrealkv://{}", path.display()))
            .await?;
        let db = Surreal::unstable_from_datastore(datastore.clone(), Some(receiver)).await?;
        // From here on, drop closes the files.
        let engine = Self { db, datastore };
        engine.datastore.check_version().await?;
        engine.datastore.bootstrap().await?;
        engine.datastore.start_maintenance_tasks();
        engine.db.use_ns(DATABASE).use_db(DATABASE).await?;
        Ok(engine)
    }

    pub fn db(&self) -> &Surreal<Db> {
        &self.db
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let datastore = self.datastore.clone();
        let (closed_sender, closed) = mpsc::channel();
        // A thread with its own runtime: the current one may be shutting down, and a drop must not block on it.
        let thread = thread::Builder::new().name("store-closing".to_owned()).spawn(move || {
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
                // Confirmed writes are in the log; if this fails, the next open recovers them.
                let _ = runtime.block_on(datastore.shutdown());
            }
            let _ = closed_sender.send(());
        });
        if thread.is_ok() {
            let _ = closed.recv_timeout(CLOSE_TIMEOUT);
        }
    }
}
