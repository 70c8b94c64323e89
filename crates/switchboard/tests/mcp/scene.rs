//! A place for one test: a state folder, a desk with the scripted agent, and clients of its server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agents::doctor::Lookup;
use calls::{JobService, Settings, ShutdownMode};
use model::AgentKind;
use supervisor::Supervisor;
use switchboard::mcp::{self, Options};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Client;

/// Long enough for a slow machine, short enough for a test that fails.
pub const LONG: Duration = Duration::from_mins(1);

pub struct Scene {
    pub folder: TempDir,
    pub desk: JobService,
    pub options: Arc<Options>,
    pub shutdown: CancellationToken,
    pub served: tokio::sync::Mutex<JoinSet<()>>,
}

impl Scene {
    /// Plays a test, and then looks whether anything of its jobs is alive.
    pub fn play<F: AsyncFnOnce(&Scene)>(test: F) {
        Self::play_with(Options { rehearsal: true, ..Options::default() }, test);
    }

    pub fn play_with<F: AsyncFnOnce(&Scene)>(options: Options, test: F) {
        Self::play_at(settings, options, test);
    }

    /// At a desk that is set up in its own way.
    pub fn play_at<F: AsyncFnOnce(&Scene)>(
        settings: impl FnOnce(&Path) -> Settings,
        options: Options,
        test: F,
    ) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("work")).unwrap();
            let desk = JobService::open(settings(folder.path())).await.unwrap();
            let scene = Scene {
                folder,
                desk,
                options: Arc::new(options),
                shutdown: CancellationToken::new(),
                served: tokio::sync::Mutex::default(),
            };
            tokio::time::timeout(3 * LONG, test(&scene)).await.expect("the test hangs");
            scene.close().await;
        });
    }

    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// A client over a pipe, introduced and ready.
    pub async fn client(&self) -> Client {
        let mut client = self.stranger().await;
        client.initialize().await;
        client
    }

    /// A client over a pipe that has not said a word.
    pub async fn stranger(&self) -> Client {
        let (here, there) = tokio::io::duplex(64 * 1024);
        self.serve(there).await;
        Client::over(here)
    }

    /// Serves whoever is at the other end of a stream.
    pub async fn serve<S>(&self, stream: S)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
    {
        let client = mcp::Client { cwd: Some(self.work()), ..mcp::Client::default() };
        let (desk, options, shutdown) = (self.desk.clone(), Arc::clone(&self.options), self.shutdown.clone());
        self.served.lock().await.spawn(async move {
            mcp::serve(stream, client, desk, options, shutdown).await.unwrap();
        });
    }

    /// How many jobs there are.
    pub async fn jobs(&self) -> u64 {
        self.desk.count(&calls::JobFilter::default()).await.unwrap()
    }

    async fn close(&self) {
        let filter = calls::JobFilter::default();
        for job in self.desk.list(&filter, calls::PageRequest::default()).await.unwrap().jobs {
            // One that has ended cannot be cancelled, and need not be.
            let _ = self.desk.cancel(job.id).await;
        }
        self.shutdown.cancel();
        tokio::time::timeout(LONG, self.desk.close(ShutdownMode::Drain)).await.expect("a job does not end");
        eventually("a process of a job is alive", || processes_of(self.folder.path()).is_empty()).await;
    }
}

/// A desk in that folder whose only agent is the scripted one.
pub fn settings(folder: &Path) -> Settings {
    let supervisor = Supervisor::at(env!("CARGO_BIN_EXE_switchboard-supervisor"));
    let lookup = Lookup {
        inherited: BTreeMap::from([(
            "PATH".to_owned(),
            folder.join("no-programs").to_str().unwrap().to_owned(),
        )]),
        programs: BTreeMap::from([(AgentKind::Rehearsal, PathBuf::from(env!("CARGO_BIN_EXE_rehearsal")))]),
        ..Lookup::default()
    };
    Settings { lookup, at_once: 4, ..Settings::new(folder.join("state"), supervisor) }
}

/// The processes that name a folder in their command line, as supervisors do.
fn processes_of(folder: &Path) -> Vec<i32> {
    let needle = folder.to_str().unwrap().as_bytes();
    let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(needle.len()).any(|window| window == needle)
    })
    .collect()
}

/// Waits for a thing that must come true soon.
pub async fn eventually(otherwise: &str, mut is_true: impl FnMut() -> bool) {
    let patience = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < patience, "{otherwise}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
