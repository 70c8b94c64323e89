//! The socket listener. Runs one task per connection and recreates a removed socket.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use protocol::{
    ClientRole, DaemonLock, DaemonPhase, Hello, LockHolder, PrivateDirectory, SwitchboardHome, VERSION,
    socket,
};

use super::connection::{
    ClientConnection, is_same_user, limit_reached, read_hello, reject, reject_sandboxed, welcome,
};
use super::control;
use super::memory;
use super::state::DaemonState;
use crate::caller::CallerProcess;

/// The number of commands that are served beyond the connection limit.
const RESERVED_FOR_COMMANDS: usize = 16;
/// The interval at which the socket is checked. Runtime directories are cleared at logout, and `/tmp` by age.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The timeout of the last replies.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout for running jobs after the state directory was removed.
const REMOVED_STATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The backoff after a failed `accept`, for example with EMFILE.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The daemon's socket, which can be recreated.
pub struct SocketListener {
    home: SwitchboardHome,
    name: OsString,
    path: PathBuf,
    /// The inode of the socket; another inode at its path is not ours.
    inode: u64,
    socket: UnixListener,
}

impl SocketListener {
    /// Binds the socket in the first usable directory. Only the holder of the lock may call this.
    pub fn bind(home: &SwitchboardHome, directory: &PrivateDirectory) -> io::Result<Self> {
        let name = socket::socket_name(directory.file())?;
        let (path, inode, socket) = bind(home, &name)?;
        Ok(Self { home: home.clone(), name, path, inode, socket })
    }

    /// Writes the path of the socket to the lock file.
    pub fn announce(&self, lock: &DaemonLock, state: &DaemonState) -> io::Result<()> {
        state.set_socket(self.path.clone());
        let socket = Some(self.path.clone());
        lock.write_holder(LockHolder {
            pid: std::process::id(),
            version: VERSION.to_owned(),
            socket,
            directory: None,
        })
    }

    /// Accepts connections until the daemon stops, then removes the socket.
    pub async fn listen(mut self, lock: &DaemonLock, state: &DaemonState) {
        let mut connections = Connections::new(state.config().limits.max_connections);
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased; // many connections must not delay a stop
                () = state.wait_for_phase(DaemonPhase::Stopping) => break,
                _ = checks.tick() => {
                    // Only after recent activity: an idle daemon has no free pages to return.
                    if state.idle_time() < 3 * CHECK_INTERVAL {
                        memory::trim_heap();
                    }
                    if lock.covers(state.home().state()) {
                        self.restore(lock, state);
                    } else if lock.is_removed() {
                        stop_without_state(state).await;
                    } else {
                        // The runs have moved with it. The next daemon there, or here once it is back, re-attaches to them.
                        tracing::error!(state = %state.home().state().display(), "the state directory was moved: detaching");
                        state.enter_phase(DaemonPhase::Stopping);
                    }
                }
                accepted = self.socket.accept() => match accepted {
                    Ok((stream, _)) => connections.serve(stream, state),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_BACKOFF).await;
                    }
                },
            }
            connections.reap_finished();
        }
        self.remove();
        drop(self.socket);
        connections.shut_down().await;
    }

    /// Recreates the socket and the lock file if they were removed, and a socket that clients cannot open.
    fn restore(&mut self, lock: &DaemonLock, state: &DaemonState) {
        let is_usable = |found: Metadata| found.ino() == self.inode && found.mode() & 0o600 == 0o600;
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_usable) {
            if !lock.has_file() {
                tracing::warn!("`daemon.lock` was removed; recreating it");
                if let Err(error) = self.announce(lock, state) {
                    tracing::error!(%error, "cannot write the socket path to `daemon.lock`");
                }
            }
            return;
        }
        match bind(&self.home, &self.name) {
            Ok((path, inode, listener)) => {
                tracing::warn!(path = %path.display(), "the socket was removed or locked; recreated it");
                (self.path, self.inode, self.socket) = (path, inode, listener);
                if let Err(error) = self.announce(lock, state) {
                    tracing::error!(%error, "cannot write the socket path to `daemon.lock`");
                }
            }
            Err(error) => tracing::error!(%error, "the socket was removed and cannot be recreated"),
        }
    }

    fn remove(&self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // Best effort: the next daemon replaces a stale socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Cancels all jobs after the state directory was removed: their records are gone, and another daemon may already run.
async fn stop_without_state(state: &DaemonState) {
    tracing::error!(state = %state.home().state().display(), "the state directory was removed: canceling all jobs");
    state.backend().cancel().await;
    state.enter_phase(DaemonPhase::Draining);
    let _ = timeout(REMOVED_STATE_TIMEOUT, state.wait_for_phase(DaemonPhase::Stopping)).await;
    state.enter_phase(DaemonPhase::Stopping);
}

fn inode(path: &Path) -> io::Result<u64> {
    Ok(std::fs::symlink_metadata(path)?.ino())
}

fn bind(home: &SwitchboardHome, name: &OsString) -> io::Result<(PathBuf, u64, UnixListener)> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in home.socket_directories() {
        let path = directory.join(name);
        let bound = PrivateDirectory::open_private(&directory)
            .map_err(io::Error::other)
            .and_then(|_| socket::listen(&path));
        match bound.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((inode(&path)?, UnixListener::from_std(listener)?))
        }) {
            Ok((inode, listener)) => return Ok((path, inode, listener)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot bind the socket");
                last = error;
            }
        }
    }
    Err(last)
}

/// The tasks of all connections.
struct Connections {
    limits: ConnectionLimits,
    /// The clients that have not greeted yet, oldest first. They hold no permit: silent connections must not lock out commands.
    silent: VecDeque<SilentClient>,
    max_silent: usize,
    tasks: JoinSet<()>,
}

/// A client before its greeting.
struct SilentClient {
    evicted: CancellationToken,
    is_waiting: Weak<()>,
}

/// The place of a client among the silent ones, dropped with its greeting or its connection.
struct SilentPlace {
    evicted: CancellationToken,
    waiting: Arc<()>,
}

/// The connection limits.
#[derive(Clone)]
struct ConnectionLimits {
    all: Arc<Semaphore>,
    /// For commands at the limit: `switchboard stop` and `status` always work.
    reserve: Arc<Semaphore>,
}

impl Connections {
    fn new(max_connections: usize) -> Self {
        let [all, reserve] =
            [max_connections, RESERVED_FOR_COMMANDS].map(|permits| Arc::new(Semaphore::new(permits)));
        let limits = ConnectionLimits { all, reserve };
        Self { limits, silent: VecDeque::new(), max_silent: max_connections, tasks: JoinSet::new() }
    }

    /// Adds a client that has not greeted yet. Beyond the limit, the oldest one is evicted: clients greet at once.
    fn admit_silent(&mut self) -> SilentPlace {
        self.silent.retain(|client| client.is_waiting.strong_count() > 0);
        if self.silent.len() >= self.max_silent
            && let Some(oldest) = self.silent.pop_front()
        {
            oldest.evicted.cancel();
        }
        let place = SilentPlace { evicted: CancellationToken::new(), waiting: Arc::new(()) };
        let is_waiting = Arc::downgrade(&place.waiting);
        self.silent.push_back(SilentClient { evicted: place.evicted.clone(), is_waiting });
        place
    }

    /// Serves a connection of this user within the limits. A sandboxed process takes no permit: an agent must not be able to block
    /// its user.
    fn serve(&mut self, stream: UnixStream, state: &DaemonState) {
        let (limits, state) = (self.limits.clone(), state.clone());
        let place = self.admit_silent();
        self.tasks.spawn(async move {
            let served = match is_same_user(&stream) {
                Ok(true) => admit(ClientConnection::new(stream, &state), place, limits, &state).await,
                Ok(false) => {
                    tracing::warn!("rejected a connection of another user");
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                tracing::debug!(%error, "connection failed");
            }
        });
    }

    /// Removes finished tasks. A panic is in the log and affects no other task.
    fn reap_finished(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    /// Lets the tasks send their last replies, then aborts them. Waiting clients reconnect to the next daemon.
    async fn shut_down(mut self) {
        let _ = timeout(LAST_REPLY_TIMEOUT, async { while self.tasks.join_next().await.is_some() {} }).await;
        self.tasks.shutdown().await;
    }
}

impl ConnectionLimits {
    /// Returns a permit for a greeted client. At the limit, only commands get one.
    fn try_acquire(self, role: ClientRole) -> Option<OwnedSemaphorePermit> {
        let permit = self.all.try_acquire_owned().ok();
        permit.or_else(|| self.reserve.try_acquire_owned().ok().filter(|_| role == ClientRole::Control))
    }
}

/// Reads the greeting of a client and serves it within the limits.
async fn admit(
    mut connection: ClientConnection,
    place: SilentPlace,
    limits: ConnectionLimits,
    state: &DaemonState,
) -> io::Result<()> {
    if *connection.caller() == CallerProcess::Sandboxed {
        tracing::warn!("rejected a process inside a sandboxed call");
        return timeout(LAST_REPLY_TIMEOUT, reject_sandboxed(connection, state)).await.unwrap_or(Ok(()));
    }
    let hello = tokio::select! {
        biased;
        hello = read_hello(&mut connection) => hello?,
        () = place.evicted.cancelled() => None,
        () = state.wait_for_phase(DaemonPhase::Stopping) => None,
    };
    drop(place);
    let Some(hello) = hello else { return Ok(()) };
    let admitted = hello.and_then(|hello| {
        let permit = limits.try_acquire(hello.role).ok_or_else(|| limit_reached(state))?;
        Ok((hello, permit))
    });
    match admitted {
        Ok((hello, _permit)) => serve_connection(connection, hello, state).await,
        Err(error) => {
            timeout(LAST_REPLY_TIMEOUT, reject(&mut connection, state, error)).await.unwrap_or(Ok(()))
        }
    }
}

async fn serve_connection(
    mut connection: ClientConnection,
    hello: Hello,
    state: &DaemonState,
) -> io::Result<()> {
    let role = hello.role;
    let client = welcome(&mut connection, state, hello).await?;
    let _guard = state.count_connection();
    tracing::debug!(?role, pid = client.pid, version = client.version, "connected");
    match role {
        ClientRole::Mcp => {
            // On shutdown, waiting tool calls return the current status of their jobs.
            let shutdown = CancellationToken::new();
            let served = state.backend().serve_mcp(connection, client, shutdown.clone());
            let stopping = async {
                state.wait_for_phase(DaemonPhase::Stopping).await;
                shutdown.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                served = served => served,
                () = stopping => Ok(()),
            }
        }
        ClientRole::Control => control::serve(connection, state).await,
    }
}
