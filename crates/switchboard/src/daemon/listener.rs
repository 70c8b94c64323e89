//! The socket: listened on, looked after, and every connection attended by a task of its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::connection::{Connection, greet, is_ours, refuse_confined, turn_away};
use super::control;
use super::lock::{DaemonLock, Holder};
use super::memory;
use super::state::DaemonState;
use crate::home::{Home, OpenFolder, socket};
use crate::wire::{Phase, Role, VERSION};

/// How many commands are served when there are as many connections as there may be.
const RESERVED_FOR_COMMANDS: usize = 16;
/// How often the socket is looked for. A runtime folder is cleared when its user logs out, and `/tmp` by age.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long last words may take.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);
/// How long what runs may take to end when the state folder is gone.
const GIVES_WAY_WITHIN: Duration = Duration::from_secs(30);
/// How long to wait when connections cannot be taken in, for want of descriptors, say.
const BREATH: Duration = Duration::from_millis(100);

/// A socket of the daemon's, with what is needed to make it again.
pub struct Listener {
    home: Home,
    name: OsString,
    path: PathBuf,
    /// The socket's inode: another one in its place is not ours.
    inode: u64,
    socket: UnixListener,
}

impl Listener {
    /// Listens in the first folder that can hold a socket. Only for the holder of the lock.
    pub fn bind(home: &Home, state: &OpenFolder) -> io::Result<Self> {
        let name = socket::name_for(state.file())?;
        let (path, inode, socket) = bind(home, &name)?;
        Ok(Self { home: home.clone(), name, path, inode, socket })
    }

    /// Says in the lock where it is.
    pub fn announce(&self, lock: &DaemonLock, desk: &DaemonState) -> io::Result<()> {
        desk.listens_at(self.path.clone());
        let socket = Some(self.path.clone());
        lock.announce(Holder {
            pid: std::process::id(),
            version: VERSION.to_owned(),
            socket,
            directory: None,
        })
    }

    /// Takes connections in until the daemon ends, and leaves no socket behind.
    pub async fn listen(mut self, lock: &DaemonLock, desk: &DaemonState) {
        let mut attended = Attended::new(desk.config().limits.max_connections);
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased; // an end is not to be put off by a crowd
                () = desk.reached(Phase::Ending) => break,
                _ = looks.tick() => {
                    // The remains of the last requests. An idle daemon has nothing to return.
                    if desk.unasked_for() < 3 * LOOK_EVERY {
                        memory::give_back_free_pages();
                    }
                    if lock.is_in(desk.home().state()) {
                        self.look_after(lock, desk);
                    } else {
                        give_way(desk).await;
                    }
                }
                taken = self.socket.accept() => match taken {
                    Ok((stream, _)) => attended.take_in(stream, desk),
                    Err(error) => {
                        tracing::warn!(%error, "cannot take a connection in");
                        sleep(BREATH).await;
                    }
                },
            }
            attended.forget_ended();
        }
        self.remove();
        drop(self.socket);
        attended.end().await;
    }

    /// Makes the socket and the file that names it again when somebody removed them.
    fn look_after(&mut self, lock: &DaemonLock, desk: &DaemonState) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            if !lock.is_announced() {
                tracing::warn!("`daemon.lock` was removed and is made again");
                if let Err(error) = self.announce(lock, desk) {
                    tracing::error!(%error, "cannot say where the socket is");
                }
            }
            return;
        }
        match bind(&self.home, &self.name) {
            Ok((path, inode, listener)) => {
                tracing::warn!(path = %path.display(), "the socket was gone and is made again");
                (self.path, self.inode, self.socket) = (path, inode, listener);
                if let Err(error) = self.announce(lock, desk) {
                    tracing::error!(%error, "cannot say where the socket is");
                }
            }
            Err(error) => tracing::error!(%error, "the socket is gone and cannot be made again"),
        }
    }

    fn remove(&self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // Left behind, it would only be in the way of nobody: the next daemon replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whoever removed the state folder took the jobs with it, and the next daemon has a lock of its own: what runs here is nobody's.
async fn give_way(desk: &DaemonState) {
    tracing::error!(state = %desk.home().state().display(), "the state folder was removed: ending all that runs");
    desk.work().cancel().await;
    desk.go_on_to(Phase::Draining);
    // Over when nothing runs any more.
    let _ = timeout(GIVES_WAY_WITHIN, desk.reached(Phase::Ending)).await;
    desk.go_on_to(Phase::Ending);
}

fn inode(path: &Path) -> io::Result<u64> {
    Ok(std::fs::symlink_metadata(path)?.ino())
}

fn bind(home: &Home, name: &OsString) -> io::Result<(PathBuf, u64, UnixListener)> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for folder in home.socket_folders() {
        let path = folder.join(name);
        let bound =
            OpenFolder::private(&folder).map_err(io::Error::other).and_then(|_| socket::listen(&path));
        match bound.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((inode(&path)?, UnixListener::from_std(listener)?))
        }) {
            Ok((inode, listener)) => return Ok((path, inode, listener)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot listen here");
                last = error;
            }
        }
    }
    Err(last)
}

/// The connections that are being attended.
struct Attended {
    room: Room,
    tasks: JoinSet<()>,
}

/// How many connections there may be.
#[derive(Clone)]
struct Room {
    all: Arc<Semaphore>,
    /// For commands, when there is no room: `switchboard stop` and `status` work even then.
    reserve: Arc<Semaphore>,
}

impl Attended {
    fn new(max_connections: usize) -> Self {
        let [all, reserve] =
            [max_connections, RESERVED_FOR_COMMANDS].map(|room| Arc::new(Semaphore::new(room)));
        Self { room: Room { all, reserve }, tasks: JoinSet::new() }
    }

    /// Attends a connection, if it is of this user and there is room. One of a confined process takes up no room: an agent must not be
    /// able to keep its user from the daemon.
    fn take_in(&mut self, stream: UnixStream, desk: &DaemonState) {
        let (room, desk) = (self.room.clone(), desk.clone());
        self.tasks.spawn(async move {
            let attended = match is_ours(&stream) {
                Ok(true) => admit(Connection::new(stream, &desk), room, &desk).await,
                Ok(false) => {
                    tracing::warn!("another user was turned away");
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = attended {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }

    /// A task that panicked has said so in the log, and takes nobody with it.
    fn forget_ended(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    /// Lets those who are being told of the end hear it; whoever waits for a job hears from the next daemon.
    async fn end(mut self) {
        let _ = timeout(LAST_WORDS_WITHIN, async { while self.tasks.join_next().await.is_some() {} }).await;
        self.tasks.shutdown().await;
    }
}

async fn admit(connection: Connection, room: Room, desk: &DaemonState) -> io::Result<()> {
    if *connection.caller() == Caller::Confined {
        tracing::warn!("a process inside a confined call was refused");
        return timeout(LAST_WORDS_WITHIN, refuse_confined(connection, desk)).await.unwrap_or(Ok(()));
    }
    if let Ok(_permit) = room.all.try_acquire_owned() {
        attend(connection, desk, false).await
    } else if let Ok(_permit) = room.reserve.try_acquire_owned() {
        attend(connection, desk, true).await
    } else {
        timeout(LAST_WORDS_WITHIN, turn_away(connection, desk)).await.unwrap_or(Ok(()))
    }
}

async fn attend(mut connection: Connection, desk: &DaemonState, is_full: bool) -> io::Result<()> {
    let greeted = tokio::select! {
        () = desk.reached(Phase::Ending) => None,
        greeted = greet(&mut connection, desk, is_full) => greeted?,
    };
    let Some((role, client)) = greeted else { return Ok(()) };
    let _counted = desk.count_connection();
    tracing::debug!(?role, pid = client.pid, version = client.version, "connected");
    match role {
        Role::Mcp => {
            // Told of the end, those who wait for a job are answered with where it stands.
            let shutdown = CancellationToken::new();
            let served = desk.work().converse(connection, client, shutdown.clone());
            let told = async {
                desk.reached(Phase::Ending).await;
                shutdown.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                served = served => served,
                () = told => Ok(()),
            }
        }
        Role::Control => control::serve(connection, desk).await,
    }
}
