//! `switchboard serve`: the one process of a user that owns the jobs and answers every front-end.
//!
//! Owns its own beginning and end: the lock, the log, the socket, the phases. Knows neither what a job is (see [`Work`]) nor what
//! MCP says (see `mcp`). It may be killed at any moment: runs go on under their supervisors, and the next daemon takes them up.

mod asking;
mod caller;
mod connection;
mod control;
mod jobs;
mod listener;
mod lock;
mod log;
mod memory;
mod state;
pub mod sums;
mod work;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid};
use rustix::stdio::dup2_stdout;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub use caller::is_confined_client;
pub use lock::{Holder, exclusive, is_held};
pub use state::DaemonState;
pub use work::Work;

use crate::cli;
use crate::config::{Config, ConfigError, Given, Settings};
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::home::{FolderError, Home, HomeError};
use crate::output;
use crate::wire::{Phase, VERSION};
use jobs::{Jobs, JobsError};
use listener::Listener;
use lock::DaemonLock;
use log::Beside;

/// What a daemon says to whoever started it once it answers.
pub const READY: &str = "ready";

/// More would not help: the daemon waits, and agents do the work.
const MOST_THREADS: usize = 4;

/// Is the daemon, until it is to end.
pub fn serve(order: &cli::Serve) -> Result<ExitCode, DaemonError> {
    if order.detached {
        leave_the_starter().map_err(DaemonError::Detach)?;
    }
    let environment = Environment::of_this_process();
    let home = Home::find(&environment)?;
    let http = order.http.iter().map(|address| Given {
        option: "--http",
        key: "http.address",
        text: address.clone(),
    });
    let settings = Settings::read(Some(&home), &environment, &http.collect::<Vec<_>>())?;
    let config = Config::of(&settings);
    open_many_files();
    memory::give_back_large_blocks();
    let state = home.make()?;
    let lock = take_lock(&home)?;
    let beside = if order.detached { Beside::TakesStderr } else { Beside::Terminal };
    let cannot_log = |source| DaemonError::Log { path: home.log_file(), source };
    log::begin(&home.log_file(), &config.log, beside).map_err(cannot_log)?;
    let threads = std::thread::available_parallelism().map_or(1, |number| number.get().min(MOST_THREADS));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(DaemonError::Runtime)?;
    runtime
        .block_on(async {
            let jobs = Arc::new(Jobs::open(&home, &config, &environment).await?);
            let http = match config.http.address {
                Some(address) => Some(jobs::listen(&home, &config, address).await?),
                None => None,
            };
            jobs.web().begin().await;
            let desk = DaemonState::new(home, &settings, jobs.owner().clone(), jobs.clone());
            if let Some(Ok(address)) = http.as_ref().map(|(listener, _)| listener.local_addr()) {
                desk.note_http(address);
            }
            let listener = Listener::bind(desk.home(), &state).map_err(DaemonError::Listen)?;
            let signals = Signals::listen().map_err(DaemonError::Runtime)?;
            listener.announce(&lock, &desk).map_err(DaemonError::Listen)?;
            tracing::info!(
                version = VERSION,
                pid = std::process::id(),
                owner = desk.owner().as_str(),
                "ready"
            );
            if order.detached {
                say_ready(desk.home()).map_err(DaemonError::Detach)?;
            }
            let ended = CancellationToken::new();
            tokio::join!(
                async {
                    live(listener, signals, &lock, &desk).await;
                },
                async {
                    desk.reached(Phase::Ending).await;
                    ended.cancel();
                },
                async {
                    let asked = desk.clone();
                    jobs.web().serve(ended.clone(), move || asked.asked()).await;
                },
                async {
                    if let Some((listener, gate)) = http {
                        if let Ok(address) = listener.local_addr() {
                            let token = desk.home().http_token();
                            tracing::info!(%address, token = %token.display(), "serving HTTP at /mcp");
                        }
                        let asked = desk.clone();
                        jobs.serve_http(listener, gate, ended.clone(), move || asked.asked()).await;
                    }
                },
            );
            Ok(())
        })
        .map(|()| ExitCode::SUCCESS)
    // The lock goes with the process, after everything else.
}

/// Everything between the first and the last moment.
async fn live(listener: Listener, signals: Signals, lock: &DaemonLock, desk: &DaemonState) {
    let ends = async {
        tokio::select! {
            () = signals.ask_to_end() => tracing::info!("a signal asks to end"),
            () = drained(desk) => {}
            () = idle_for_too_long(desk) => tracing::info!("nobody has asked for anything for long enough"),
            () = desk.reached(Phase::Ending) => {}
        }
        desk.go_on_to(Phase::Ending);
    };
    tokio::join!(ends, listener.listen(lock, desk));
    desk.work().let_go().await;
    tracing::info!("ended");
}

/// Over when the daemon was asked to wait for its jobs, and none runs any more.
async fn drained(desk: &DaemonState) {
    desk.reached(Phase::Draining).await;
    desk.work().drain().await;
}

/// Over when nothing is to be done and nobody has asked for anything for as long as the configuration says.
async fn idle_for_too_long(desk: &DaemonState) {
    let Some(patience) = desk.config().idle_stop else { return std::future::pending().await };
    loop {
        let left = patience.saturating_sub(desk.unasked_for());
        if !left.is_zero() {
            sleep(left).await;
        } else if desk.work().load().await.is_nothing() {
            return;
        } else {
            // Being at work counts as being asked for.
            desk.asked();
        }
    }
}

/// Takes the lock of the state directory: nobody else is or becomes the daemon while it is held.
pub fn take_lock(home: &Home) -> Result<DaemonLock, DaemonError> {
    let cannot = |source| DaemonError::Lock { state: home.state().to_owned(), source };
    let lock = DaemonLock::take(home.state()).map_err(cannot)?;
    let lock = lock.ok_or_else(|| DaemonError::Taken {
        state: home.state().to_owned(),
        holder: Holder::last(home.state()),
    })?;
    if let Some(original) = Holder::of_original(home.state()) {
        return Err(DaemonError::Copied { state: home.state().to_owned(), pid: original.pid });
    }
    let holder =
        Holder { pid: std::process::id(), version: VERSION.to_owned(), socket: None, directory: None };
    lock.announce(holder).map_err(cannot)?;
    Ok(lock)
}

/// Every run costs a few open files, and the usual limit is made for programs that have no use for more.
fn open_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // What cannot be raised is as it was; a run that finds no file left is tried again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The first thing that a detached daemon does: nothing of its starter is left to it but the pipe on which it says how it goes.
fn leave_the_starter() -> io::Result<()> {
    supervisor::close_inherited_files()?;
    setsid()?;
    Ok(())
}

/// The last thing that the starter hears.
fn say_ready(home: &Home) -> io::Result<()> {
    output::line(READY);
    dup2_stdout(std::fs::File::options().write(true).open("/dev/null")?)?;
    log::take_stderr(&home.log_file())
}

/// The signals that a daemon listens to.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// Listened to and not acted on: a terminal that closes ends no daemon.
    _hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn ask_to_end(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Why the daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot detach the daemon")]
    Detach(#[source] io::Error),
    #[error("cannot lock `{}`", state.display())]
    Lock { state: PathBuf, source: io::Error },
    #[error("a daemon is already running for `{}` ({})", state.display(), who(holder.as_ref()))]
    Taken { state: PathBuf, holder: Option<Holder> },
    #[error("the state directory `{}` is a copy of one whose daemon is running (pid {pid})", state.display())]
    Copied { state: PathBuf, pid: u32 },
    #[error(transparent)]
    Jobs(#[from] JobsError),
    #[error("cannot write log file `{}`", path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("cannot bind the daemon socket")]
    Listen(#[source] io::Error),
    #[error("cannot start the async runtime")]
    Runtime(#[source] io::Error),
}

fn who(holder: Option<&Holder>) -> String {
    holder.map_or_else(
        || "still starting".to_owned(),
        |holder| format!("pid {}, version {}", holder.pid, holder.version),
    )
}

impl DaemonError {
    /// Returns the exit status of `switchboard serve`.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Taken { .. } => ExitStatus::DaemonRunning,
            Self::Home(HomeError::Folder(FolderError::Cannot { .. }))
            | Self::Lock { .. }
            | Self::Log { .. } => ExitStatus::NotWritten,
            Self::Jobs(JobsError::Service(error)) if error.is_storage_failure() => ExitStatus::NotWritten,
            _ => ExitStatus::Failed,
        }
    }

    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Home(error) => error.hint(),
            Self::Config(error) => error.hint(),
            Self::Taken { .. } => {
                "use the running daemon, stop it with `switchboard stop`, or set SWITCHBOARD_HOME to another directory"
                    .to_owned()
            }
            Self::Copied { .. } => {
                "stop the original daemon first (run `switchboard stop` with its SWITCHBOARD_HOME); otherwise both would run its unfinished jobs"
                    .to_owned()
            }
            Self::Jobs(error) => error.hint(),
            Self::Listen(_) => {
                "check that the state directory is on a file system that supports sockets".to_owned()
            }
            Self::Detach(_) | Self::Lock { .. } | Self::Log { .. } | Self::Runtime(_) => {
                "check the limit on open files and the free disk space".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests;
