//! A fresh store for a test, on any engine, with a manual clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use model::Timestamp;
use store::{ManualClock, Redactor, Store, StoreOptions, StoreSetting};
use tempfile::TempDir;

use crate::server;

/// The engines of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    SqliteFile,
    SqliteMemory,
    Surreal,
    #[cfg(feature = "surreal-embedded")]
    Embedded,
}

impl EngineKind {
    pub const ALL: &[Self] = &[
        Self::SqliteFile,
        Self::SqliteMemory,
        Self::Surreal,
        #[cfg(feature = "surreal-embedded")]
        Self::Embedded,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::SqliteFile => "sqlite_file",
            Self::SqliteMemory => "sqlite_memory",
            Self::Surreal => "surreal",
            #[cfg(feature = "surreal-embedded")]
            Self::Embedded => "surreal_embedded",
        }
    }

    /// Returns why the engine cannot be tested here.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Surreal if !cfg!(feature = "surreal") => {
                Some("built without the feature `surreal`".to_owned())
            }
            Self::Surreal => server::missing(),
            _ => None,
        }
    }

    pub fn is_sqlite(self) -> bool {
        matches!(self, Self::SqliteFile | Self::SqliteMemory)
    }
}

/// The location of a fresh store.
pub struct Harness {
    pub engine: EngineKind,
    pub clock: ManualClock,
    directory: TempDir,
    setting: StoreSetting,
}

impl Harness {
    pub fn new(engine: EngineKind) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let setting = match engine {
            EngineKind::SqliteFile => StoreSetting::Sqlite { path: None },
            EngineKind::SqliteMemory => StoreSetting::SqliteMemory,
            EngineKind::Surreal => server::shared_setting(&fresh_name()),
            #[cfg(feature = "surreal-embedded")]
            EngineKind::Embedded => {
                StoreSetting::SurrealEmbedded { path: directory.path().join("state/jobs") }
            }
        };
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_000_000));
        Self { engine, clock, directory, setting }
    }

    /// Returns the path of the database file.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("state/jobs.db")
    }

    /// Returns the setting of a file or directory for another process.
    pub fn setting(&self) -> String {
        match &self.setting {
            StoreSetting::SurrealEmbedded { path } => format!("surrealkv:{}", path.display()),
            _ => format!("sqlite:{}", self.file().display()),
        }
    }

    /// Returns all files of the store.
    pub fn files(&self) -> Vec<PathBuf> {
        files_in(self.directory.path())
    }

    pub fn options(&self) -> StoreOptions {
        StoreOptions {
            clock: self.clock.clock(),
            redactor: Redactor::none(),
            credentials: Some(server::credentials()),
            ..StoreOptions::new(self.setting.clone(), self.file())
        }
    }

    pub async fn open(&self) -> Store {
        Store::open(self.options()).await.unwrap()
    }

    /// Scales a race down for a slow engine, unless the full size is requested (`just races`).
    pub fn scaled(&self, races: usize) -> usize {
        let is_full_size = self.engine.is_sqlite() || std::env::var_os("STORE_WHOLE_RACES").is_some();
        if is_full_size { races } else { races / 10 }
    }
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_in(&path)) } else { files.push(path) }
    }
    files
}

/// Returns a name that is unique across processes.
pub fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
