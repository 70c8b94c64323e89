//! `SurrealDB` inside this process: a folder that one process has open at a time.
//!
//! Made of the client's own parts and not by its address: an engine made by that takes as much memory as half of the machine
//! allows, and closes at some later time, or never when its runtime ends first.

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
use crate::surreal::folder;
use crate::surreal::wire::{FarEnd, Pause, Wire};

/// The namespace, and the database in it. Nobody else is in the folder.
const OURS: &str = "switchboard";

/// How long another owner may take to let go: one that was just told to end still writes down what it has in memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the engine says that somebody else has the folder. It hands on nothing but words.
const LOCKED: &str = "already locked";

/// What is written since the last table, in memory and in the log. It bounds what is read after a crash, and a single write.
const MEMTABLE: usize = 128 << 20;
const BLOCK_CACHE: usize = 64 << 20;

/// How many changes wait to be told to the watchers.
const NOTIFICATIONS: usize = 4_096;

/// How long the drop of a store waits for its files to be closed. A current runtime may be needed for that, and be ours to hold up.
const LONGEST_CLOSE: Duration = Duration::from_secs(2);

/// An engine, and its files. Dropping it closes them.
pub struct Embedded {
    db: Surreal<Db>,
    datastore: Arc<Datastore>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

/// Opens the folder; makes it when it is missing.
pub async fn wire(path: &Path) -> Result<Wire, StoreError> {
    let place = format!("surrealkv:{}", path.display());
    let cannot = |source: Cause| StoreError::CannotOpen { place: place.clone(), source };
    if folder::is_foreign(path).map_err(|error| cannot(error.into()))? {
        return Err(StoreError::Foreign { place });
    }
    folder::make_private(path).map_err(|error| cannot(error.into()))?;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Pause::default();
    loop {
        match Embedded::open(path).await {
            Ok(engine) => return Ok(Wire::to(FarEnd::Embedded(engine), place)),
            Err(source) if !source.to_string().contains(LOCKED) => return Err(cannot(source)),
            Err(source) if Instant::now() >= deadline => return Err(StoreError::Locked { place, source }),
            Err(_) => pause.wait().await,
        }
    }
}

impl Embedded {
    async fn open(path: &Path) -> Result<Self, Cause> {
        let config = ConfigMap::empty()
            .with_key_value("surrealkv_max_memtable_size", MEMTABLE.to_string())
            .with_key_value("surrealkv_block_cache_capacity", BLOCK_CACHE.to_string());
        let (changes, told) = async_channel::bounded(NOTIFICATIONS);
        let datastore = Datastore::builder()
            .with_config(config)
            .with_notify(changes)
            // They write, and must not before the version is written.
            .without_maintenance_tasks()
            .build_with_path(&format!("surrealkv://{}", path.display()))
            .await?;
        let db = Surreal::unstable_from_datastore(datastore.clone(), Some(told)).await?;
        // From here on it is closed whatever happens.
        let engine = Self { db, datastore };
        engine.datastore.check_version().await?;
        engine.datastore.bootstrap().await?;
        engine.datastore.start_maintenance_tasks();
        engine.db.use_ns(OURS).use_db(OURS).await?;
        Ok(engine)
    }

    pub fn db(&self) -> &Surreal<Db> {
        &self.db
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let datastore = self.datastore.clone();
        let (closed, wait) = mpsc::channel();
        // A thread with a runtime of its own: the one that this is dropped in may be about to end, and cannot be waited in.
        let closing = thread::Builder::new().name("store-closing".to_owned()).spawn(move || {
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
                // What was answered is in the log by now; the next to open it reads that, should this fail.
                let _ = runtime.block_on(datastore.shutdown());
            }
            let _ = closed.send(());
        });
        if closing.is_ok() {
            let _ = wait.recv_timeout(LONGEST_CLOSE);
        }
    }
}
