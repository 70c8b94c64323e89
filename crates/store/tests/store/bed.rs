//! A fresh store for a test, on any engine, with a clock that the test turns.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use model::Timestamp;
use store::{ManualClock, Opening, Redactor, Setting, Store};
use tempfile::TempDir;

use crate::server;

/// What the suite runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    SqliteFile,
    SqliteMemory,
    Surreal,
}

impl Engine {
    pub const ALL: [Self; 3] = [Self::SqliteFile, Self::SqliteMemory, Self::Surreal];

    pub fn name(self) -> &'static str {
        match self {
            Self::SqliteFile => "sqlite_file",
            Self::SqliteMemory => "sqlite_memory",
            Self::Surreal => "surreal",
        }
    }

    /// Why it cannot be tested here.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Surreal if !cfg!(feature = "surreal") => {
                Some("built without the feature `surreal`".to_owned())
            }
            Self::Surreal => server::missing(),
            Self::SqliteFile | Self::SqliteMemory => None,
        }
    }
}

/// A fresh store, or rather the place for one.
pub struct Bed {
    pub engine: Engine,
    pub clock: ManualClock,
    folder: TempDir,
    setting: Setting,
}

impl Bed {
    pub fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let setting = match engine {
            Engine::SqliteFile => Setting::Sqlite { path: None },
            Engine::SqliteMemory => Setting::SqliteMemory,
            Engine::Surreal => server::shared_setting(&fresh_name()),
        };
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_000_000));
        Self { engine, clock, folder, setting }
    }

    /// The file of a store that is one.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("state/jobs.db")
    }

    pub fn opening(&self) -> Opening {
        Opening {
            clock: self.clock.clock(),
            redactor: Redactor::none(),
            credentials: Some(server::credentials()),
            ..Opening::new(self.setting.clone(), self.file())
        }
    }

    pub async fn open(&self) -> Store {
        Store::open(self.opening()).await.unwrap()
    }

    /// How much of a race this engine can be asked in the time of a test; all of it in a campaign (`just races`).
    pub fn scaled(&self, races: usize) -> usize {
        let whole = self.engine != Engine::Surreal || std::env::var_os("STORE_WHOLE_RACES").is_some();
        if whole { races } else { races / 10 }
    }
}

/// A name that no other test of this process or another has.
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
