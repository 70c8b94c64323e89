//! The fixture of one test: a state directory, a job service with the scripted agent, and clients of its MCP server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agents::doctor::Lookup;
use calls::{JobService, Settings, ShutdownMode};
use mcp_server::{McpClient, McpOptions};
use model::AgentKind;
use supervisor::Supervisor;
use tempfile::TempDir;
use testkit::{LONGEST_WAIT, eventually_async};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Client;

pub struct McpHarness {
    pub directory: TempDir,
    pub service: JobService,
    pub options: Arc<McpOptions>,
    pub shutdown: CancellationToken,
    pub served: tokio::sync::Mutex<JoinSet<()>>,
}

impl McpHarness {
    /// Runs a test, then checks that no process of its jobs is left.
    pub fn run<F: AsyncFnOnce(&McpHarness)>(test: F) {
        Self::run_with(McpOptions { rehearsal: true, ..McpOptions::default() }, test);
    }

    pub fn run_with<F: AsyncFnOnce(&McpHarness)>(options: McpOptions, test: F) {
        Self::run_at(settings, options, test);
    }

    /// Runs a test with custom settings of the job service.
    pub fn run_at<F: AsyncFnOnce(&McpHarness)>(
        settings: impl FnOnce(&Path) -> Settings,
        options: McpOptions,
        test: F,
    ) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            std::fs::create_dir(directory.path().join("work")).unwrap();
            let service = JobService::open(settings(directory.path())).await.unwrap();
            let harness = McpHarness {
                directory,
                service,
                options: Arc::new(options),
                shutdown: CancellationToken::new(),
                served: tokio::sync::Mutex::default(),
            };
            tokio::time::timeout(3 * LONGEST_WAIT, test(&harness)).await.expect("the test hangs");
            harness.close().await;
        });
    }

    pub fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// Connects an initialized client over a pipe.
    pub async fn client(&self) -> Client {
        let mut client = self.uninitialized_client().await;
        client.initialize().await;
        client
    }

    /// Connects a client over a pipe that has not sent `initialize`.
    pub async fn uninitialized_client(&self) -> Client {
        let (here, there) = tokio::io::duplex(64 * 1024);
        self.serve(there).await;
        Client::new(here)
    }

    /// Connects an initialized client that is a process inside of a run.
    pub async fn client_inside_a_run(&self) -> Client {
        let (here, there) = tokio::io::duplex(64 * 1024);
        self.serve_as(there, McpClient { is_inside_run: true, ..McpClient::default() }).await;
        let mut client = Client::new(here);
        client.initialize().await;
        client
    }

    /// Serves the client at the other end of a stream.
    pub async fn serve<S>(&self, stream: S)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
    {
        self.serve_as(stream, McpClient::default()).await;
    }

    async fn serve_as<S>(&self, stream: S, client: McpClient)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static,
    {
        let client = McpClient { cwd: Some(self.work()), ..client };
        let (service, options, shutdown) =
            (self.service.clone(), Arc::clone(&self.options), self.shutdown.clone());
        self.served.lock().await.spawn(async move {
            mcp_server::serve(stream, client, service, options, shutdown).await.unwrap();
        });
    }

    /// Returns the number of jobs.
    pub async fn job_count(&self) -> u64 {
        self.service.count(&calls::JobFilter::default()).await.unwrap()
    }

    async fn close(&self) {
        let filter = calls::JobFilter::default();
        for job in self.service.list(&filter, calls::PageRequest::default()).await.unwrap().jobs {
            // Fails for a finished job.
            let _ = self.service.cancel(job.id).await;
        }
        self.shutdown.cancel();
        tokio::time::timeout(LONGEST_WAIT, self.service.close(ShutdownMode::Drain))
            .await
            .expect("a job does not end");
        eventually_async("a process of a job is alive", async || {
            processes_of(self.directory.path()).is_empty()
        })
        .await;
    }
}

/// Returns settings in which the scripted agent is the only agent.
/// Creates a git repository without commits.
#[expect(clippy::disallowed_methods, reason = "a test may")]
pub fn create_repository(directory: &Path) {
    let status = std::process::Command::new("git").args(["init", "-q"]).current_dir(directory).status();
    assert!(status.unwrap().success());
}

pub fn settings(directory: &Path) -> Settings {
    let supervisor = Supervisor::this_program().unwrap();
    // There is a git, but no agent.
    let programs = directory.join("programs");
    if std::fs::create_dir(&programs).is_ok() {
        let git = agents::doctor::find_in_path("git", &std::env::var("PATH").unwrap()).unwrap();
        std::os::unix::fs::symlink(git, programs.join("git")).unwrap();
    }
    let lookup = Lookup {
        inherited: BTreeMap::from([("PATH".to_owned(), programs.to_str().unwrap().to_owned())]),
        programs: BTreeMap::from([(AgentKind::Rehearsal, std::env::current_exe().unwrap())]),
        ..Lookup::default()
    };
    Settings { lookup, at_once: 4, ..Settings::new(directory.join("state"), supervisor) }
}

/// Returns the processes with a directory in their command line, such as supervisors.
fn processes_of(directory: &Path) -> Vec<i32> {
    let directory = directory.to_str().unwrap();
    testkit::all_pids().filter(|pid| testkit::command_line(*pid).contains(directory)).collect()
}
