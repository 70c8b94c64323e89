//! `switchboard serve`: the process that owns the jobs of a state directory and serves every client.
//!
//! Owns startup and shutdown: lock, log, socket and phases. Jobs are behind `backend::JobBackend`. The daemon may be killed at any moment: runs
//! continue under their supervisors, and the next daemon recovers them.

mod backend;
mod connection;
mod control;
mod group_handlers;
mod handler_error;
mod job_handlers;
mod job_lookup;
mod jobs;
mod listener;
mod log;
mod memory;
mod state;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use protocol::{
    DaemonLock, DaemonPhase, DirectoryError, HomeError, LockHolder, ProcessEnvironment, READY,
    SwitchboardHome, VERSION,
};
use regular_file::path_hint;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid};
use rustix::stdio::dup2_stdout;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use state::DaemonState;

use crate::cli;
use crate::config::{Config, ConfigError, EffectiveSettings, OptionOverride};
use crate::exit_status::ExitStatus;
use crate::failure::CommandError;
use crate::output;
use jobs::{DaemonJobs, JobsError};
use listener::SocketListener;
use log::StderrMode;

/// The maximum number of worker threads. The daemon mostly waits; agents do the work.
const MAX_THREADS: usize = 4;

/// Runs the daemon until shutdown.
pub fn serve(args: &cli::Serve) -> Result<ExitCode, DaemonError> {
    if args.detached {
        detach_from_starter().map_err(DaemonError::Detach)?;
    }
    let environment = ProcessEnvironment::current();
    let home = SwitchboardHome::from_environment(&environment)?;
    let http = args.http.iter().map(|address| OptionOverride {
        option: "--http",
        key: "http.address",
        text: address.clone(),
    });
    let settings = EffectiveSettings::read(Some(&home), &environment, &http.collect::<Vec<_>>())?;
    let config = Config::from_settings(&settings);
    raise_file_limit();
    memory::fix_mmap_threshold();
    let directory = home.create()?;
    let lock = acquire_lock(&home)?;
    let stderr = if args.detached { StderrMode::Redirect } else { StderrMode::Tee };
    let cannot_log = |source| DaemonError::Log { path: home.log_file(), source };
    log::init(&home.log_file(), &config.log, stderr).map_err(cannot_log)?;
    let threads = std::thread::available_parallelism().map_or(1, |number| number.get().min(MAX_THREADS));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(DaemonError::Runtime)?;
    runtime
        .block_on(async {
            let jobs = Arc::new(DaemonJobs::open(&home, &config, &environment).await?);
            let http = match config.http.address {
                Some(address) => Some(jobs.bind_http(&home, &config, address).await?),
                None => None,
            };
            jobs.dashboard().bind_configured_port().await;
            let state = DaemonState::new(home, &settings, jobs.owner().clone(), jobs.clone());
            if let Some(Ok(address)) = http.as_ref().map(|(listener, _)| listener.local_addr()) {
                state.set_http_address(address);
            }
            let listener = SocketListener::bind(state.home(), &directory).map_err(DaemonError::Listen)?;
            let signals = Signals::listen().map_err(DaemonError::Runtime)?;
            listener.announce(&lock, &state).map_err(DaemonError::Listen)?;
            tracing::info!(
                version = VERSION,
                pid = std::process::id(),
                owner = state.owner().as_str(),
                "ready"
            );
            if args.detached {
                report_ready(state.home()).map_err(DaemonError::Detach)?;
            }
            let stopping = CancellationToken::new();
            tokio::join!(
                async {
                    serve_until_stopped(listener, signals, &lock, &state).await;
                },
                async {
                    state.wait_for_phase(DaemonPhase::Stopping).await;
                    stopping.cancel();
                },
                async {
                    let activity = state.clone();
                    jobs.dashboard().serve(stopping.clone(), move || activity.record_activity()).await;
                },
                async {
                    if let Some((listener, gate)) = http {
                        if let Ok(address) = listener.local_addr() {
                            let token = state.home().http_token();
                            tracing::info!(%address, token = %token.display(), "serving HTTP at /mcp");
                        }
                        let activity = state.clone();
                        jobs.serve_http(listener, gate, stopping.clone(), move || activity.record_activity())
                            .await;
                    }
                },
            );
            Ok(())
        })
        .map(|()| ExitCode::SUCCESS)
    // The lock is released when the process exits.
}

/// Serves clients until a signal, a drain, the idle timeout or a stop request.
async fn serve_until_stopped(
    listener: SocketListener,
    signals: Signals,
    lock: &DaemonLock,
    state: &DaemonState,
) {
    let stop = async {
        tokio::select! {
            () = signals.wait() => tracing::info!("stopping after a signal"),
            () = drain(state) => {}
            () = idle_timeout(state) => tracing::info!("stopping after the idle timeout"),
            () = state.wait_for_phase(DaemonPhase::Stopping) => {}
        }
        state.enter_phase(DaemonPhase::Stopping);
    };
    tokio::join!(stop, listener.listen(lock, state));
    state.backend().detach().await;
    tracing::info!("stopped");
}

/// Waits for a drain request, then for the running jobs.
async fn drain(state: &DaemonState) {
    state.wait_for_phase(DaemonPhase::Draining).await;
    state.backend().drain().await;
}

/// Waits until the daemon has had neither requests nor jobs for `idle_stop`.
async fn idle_timeout(state: &DaemonState) {
    let Some(idle_stop) = state.config().idle_stop else { return std::future::pending().await };
    loop {
        let left = idle_stop.saturating_sub(state.idle_time());
        if !left.is_zero() {
            sleep(left).await;
        } else if state.backend().load().await.is_idle() {
            return;
        } else {
            // Unfinished jobs count as activity.
            state.record_activity();
        }
    }
}

/// Acquires the lock of the state directory. No other daemon runs or starts while it is held.
pub fn acquire_lock(home: &SwitchboardHome) -> Result<DaemonLock, DaemonError> {
    let cannot = |source| DaemonError::Lock { state: home.state().to_owned(), source };
    let lock = DaemonLock::try_acquire(home.state()).map_err(cannot)?;
    let lock = lock.ok_or_else(|| DaemonError::Taken {
        state: home.state().to_owned(),
        holder: LockHolder::read_last(home.state()),
    })?;
    if let Some(original) = LockHolder::find_original(home.state()) {
        return Err(DaemonError::Copied { state: home.state().to_owned(), pid: original.pid });
    }
    let holder =
        LockHolder { pid: std::process::id(), version: VERSION.to_owned(), socket: None, directory: None };
    lock.write_holder(holder).map_err(cannot)?;
    Ok(lock)
}

/// Raises `RLIMIT_NOFILE` to its hard limit: every run needs a few descriptors.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Best effort: a run that fails with EMFILE is retried.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Closes the inherited descriptors except the startup pipe, and starts a new session.
fn detach_from_starter() -> io::Result<()> {
    supervisor::close_inherited_files()?;
    setsid()?;
    Ok(())
}

/// Reports readiness on the startup pipe, then closes it.
fn report_ready(home: &SwitchboardHome) -> io::Result<()> {
    output::line(READY);
    dup2_stdout(std::fs::File::options().write(true).open("/dev/null")?)?;
    log::redirect_stderr(&home.log_file())
}

/// The signals that the daemon handles.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// Handled and ignored: the daemon survives the end of its terminal.
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

    async fn wait(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The daemon failed to start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error(transparent)]
    SwitchboardHome(#[from] HomeError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot detach the daemon")]
    Detach(#[source] io::Error),
    #[error("cannot lock `{}`", state.display())]
    Lock { state: PathBuf, source: io::Error },
    #[error("a daemon is already running for `{}` ({})", state.display(), describe_holder(holder.as_ref()))]
    Taken { state: PathBuf, holder: Option<LockHolder> },
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

fn describe_holder(holder: Option<&LockHolder>) -> String {
    holder.map_or_else(
        || "still starting".to_owned(),
        |holder| format!("pid {}, version {}", holder.pid, holder.version),
    )
}

impl CommandError for DaemonError {
    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Taken { .. } => ExitStatus::DaemonRunning,
            Self::SwitchboardHome(HomeError::Directory(DirectoryError::Unusable { .. }))
            | Self::Lock { .. }
            | Self::Log { .. } => ExitStatus::NotWritten,
            Self::Jobs(JobsError::Service(error)) if error.is_storage_failure() => ExitStatus::NotWritten,
            _ => ExitStatus::Failed,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::SwitchboardHome(error) => error.hint(),
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
            Self::Listen(source) => path_hint(source).unwrap_or_else(|| {
                "check that the state directory is on a file system that supports sockets".to_owned()
            }),
            Self::Detach(source)
            | Self::Lock { source, .. }
            | Self::Log { source, .. }
            | Self::Runtime(source) => path_hint(source)
                .unwrap_or_else(|| "check the limit on open files and the free disk space".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests;
