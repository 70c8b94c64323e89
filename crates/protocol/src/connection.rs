//! Connects to the running daemon and exchanges greetings.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use regular_file::is_not_directory;
use rustix::io::Errno;
use rustix::process::{Pid, geteuid};

use crate::directory::open_directory;
use crate::greeting::{
    ClientRole, ErrorReply, Greeting, Hello, MAX_GREETING_BYTES, PROTOCOL_VERSION, PeerVersion, Welcome,
};
use crate::home::SwitchboardHome;
use crate::lock::{LockHolder, is_locked};
use crate::socket;

/// The timeout of the daemon's greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for a live daemon without a socket. The daemon recreates a removed socket within 5 s.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(7);
/// The interval between connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A connection to a daemon, after the greetings.
#[derive(Debug)]
pub struct DaemonConnection {
    /// The reading half. It may hold buffered bytes.
    pub reader: BufReader<UnixStream>,
    /// The writing half.
    pub writer: UnixStream,
    /// The daemon's greeting.
    pub welcome: Welcome,
    /// The daemon's process, from `SO_PEERCRED`.
    pub process: Pid,
}

/// Connects to the running daemon. `environment` is passed on to the agents of submitted calls.
pub fn connect(
    home: &SwitchboardHome,
    role: ClientRole,
    environment: Option<&BTreeMap<String, String>>,
) -> Result<DaemonConnection, ConnectError> {
    let stream = connect_socket(home)?;
    let (uid, pid) = peer_credentials(&stream).map_err(ConnectError::Broken)?;
    if uid != geteuid().as_raw() {
        return Err(ConnectError::OtherUser { uid });
    }
    greet(stream, pid.ok_or(ConnectError::OtherPidNamespace)?, role, environment)
}

/// Returns the user and the process of the peer; no process if it is not visible in this PID namespace.
///
/// Not `rustix::net::sockopt::socket_peercred`: its process id cannot be zero, and a zero is undefined behavior.
#[expect(unsafe_code, reason = "there is no safe wrapper that accepts a process id of zero")]
fn peer_credentials(stream: &UnixStream) -> io::Result<(u32, Option<Pid>)> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, the size of the structure.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok((found.uid, Pid::from_raw(found.pid))) } else { Err(io::Error::last_os_error()) }
}

/// Connects like [`connect`], and waits for a daemon that holds its lock but does not listen yet.
pub fn connect_when_ready(
    home: &SwitchboardHome,
    role: ClientRole,
) -> Result<DaemonConnection, ConnectError> {
    let deadline = Instant::now() + SOCKET_TIMEOUT;
    loop {
        match connect(home, role, None) {
            Err(ConnectError::NotRunning) if is_locked(home.state()) && Instant::now() < deadline => {
                sleep(RETRY_INTERVAL);
            }
            result => return result,
        }
    }
}

/// Tries the address in the lock file, then the default directories.
fn connect_socket(home: &SwitchboardHome) -> Result<UnixStream, ConnectError> {
    let announced = LockHolder::read_last(home.state()).and_then(|holder| holder.socket);
    let name = open_directory(home.state()).and_then(|state| socket::socket_name(&state));
    let default = name.ok().into_iter().flat_map(|name| {
        home.socket_directories()
            .into_iter()
            .map(move |directory| directory.join(&name))
            .collect::<Vec<PathBuf>>()
    });
    for path in announced.clone().into_iter().chain(default) {
        match socket::connect(&path) {
            Ok(stream) => return Ok(stream),
            Err(error) if has_no_listener(&error) => {}
            Err(error) => return Err(ConnectError::Broken(error)),
        }
    }
    // The daemon cannot recreate its socket there, and no other one can start while it holds the lock.
    match announced.as_deref().and_then(find_obstacle) {
        Some(path) if is_locked(home.state()) => Err(ConnectError::SocketBlocked { path: path.to_owned() }),
        _ => Err(ConnectError::NotRunning),
    }
}

/// Returns the path that prevents a daemon from creating its socket.
fn find_obstacle(socket: &Path) -> Option<&Path> {
    if socket.is_dir() {
        Some(socket)
    } else {
        socket.parent().filter(|directory| is_not_directory(directory))
    }
}

/// Returns whether a socket is missing, stale or blocked. A daemon recreates its own.
fn has_no_listener(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | ConnectionRefused | NotADirectory | PermissionDenied)
        || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

fn greet(
    mut stream: UnixStream,
    process: Pid,
    role: ClientRole,
    environment: Option<&BTreeMap<String, String>>,
) -> Result<DaemonConnection, ConnectError> {
    stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
    stream.set_write_timeout(Some(GREETING_TIMEOUT))?;
    let cwd = env::current_dir().ok().and_then(|directory| directory.into_os_string().into_string().ok());
    let mut hello = Hello {
        peer: PeerVersion::current(),
        role,
        cwd,
        pid: std::process::id(),
        environment: environment.cloned(),
    };
    let mut line = encode_greeting(&hello)?;
    if line.len() >= MAX_GREETING_BYTES {
        // Calls then use the daemon's own variables, like those of HTTP clients.
        hello.environment = None;
        line = encode_greeting(&hello)?;
    }
    // A daemon that rejects the connection may have closed it before it read this; its reply is readable nevertheless.
    let _ = stream.write_all(&line);
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut reply = Vec::new();
    match (&mut reader).take(MAX_GREETING_BYTES as u64).read_until(b'\n', &mut reply) {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            return Err(ConnectError::Unresponsive { pid: process.as_raw_pid() });
        }
        // The daemon exited between connect and greeting; the caller may start another.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ConnectError::NotRunning),
        Ok(_) if !reply.ends_with(b"\n") => return Err(ConnectError::NotRunning),
        read => drop(read?),
    }
    let welcome = parse_welcome(&reply, process)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(DaemonConnection { reader, writer: stream, welcome, process })
}

fn encode_greeting(hello: &Hello) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Greeting { switchboard: hello })?;
    line.push(b'\n');
    Ok(line)
}

fn parse_welcome(reply: &[u8], process: Pid) -> Result<Welcome, ConnectError> {
    let not_a_daemon = || ConnectError::NotADaemon { pid: process.as_raw_pid() };
    let Greeting { switchboard: peer } =
        serde_json::from_slice::<Greeting<PeerVersion>>(reply).map_err(|_| not_a_daemon())?;
    if peer.protocol != PROTOCOL_VERSION {
        let error = ErrorReply::protocol_mismatch(&PeerVersion::current(), &peer);
        return Err(ConnectError::ProtocolMismatch { pid: process.as_raw_pid(), error });
    }
    let Greeting { switchboard: welcome } =
        serde_json::from_slice::<Greeting<Welcome>>(reply).map_err(|_| not_a_daemon())?;
    match welcome.error {
        Some(error) => Err(ConnectError::Rejected(error)),
        None => Ok(welcome),
    }
}

/// The connection to the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No process listens.
    #[error("no daemon is running")]
    NotRunning,
    /// A daemon is running, and something else is in place of its socket or of the socket's directory.
    #[error("cannot reach the running daemon: `{}` blocks its socket", path.display())]
    SocketBlocked {
        /// The path.
        path: PathBuf,
    },
    /// Another user's process listens.
    #[error("the daemon on the socket belongs to user {uid}")]
    OtherUser {
        /// The user.
        uid: u32,
    },
    /// The daemon is not visible in the PID namespace of this process.
    #[error("the daemon runs outside of the PID namespace (container) of this process")]
    OtherPidNamespace,
    /// No greeting arrived in time.
    #[error("the daemon (pid {pid}) does not respond")]
    Unresponsive {
        /// The daemon.
        pid: i32,
    },
    /// The reply is not a greeting.
    #[error("the process listening on the daemon's socket (pid {pid}) is not a Switchboard daemon")]
    NotADaemon {
        /// The process.
        pid: i32,
    },
    /// The daemon rejected the connection or the request.
    #[error("the daemon rejected the request: {}", .0.message)]
    Rejected(ErrorReply),
    /// The protocol versions differ.
    #[error("{}", error.message)]
    ProtocolMismatch {
        /// The daemon.
        pid: i32,
        /// Both versions and the remedy.
        error: ErrorReply,
    },
    /// The connection broke.
    #[error("lost the connection to the daemon")]
    Broken(#[from] io::Error),
}

impl ConnectError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::NotRunning => "start one with `switchboard serve`".to_owned(),
            Self::SocketBlocked { path } => {
                format!("move `{}` away or remove it; the daemon recreates its socket", path.display())
            }
            Self::OtherPidNamespace => {
                "run the command outside, or set SWITCHBOARD_HOME to a directory of its own for a daemon inside"
                    .to_owned()
            }
            Self::OtherUser { .. } => "set SWITCHBOARD_HOME to a directory of your own".to_owned(),
            Self::Unresponsive { pid } => {
                format!(
                    "run `kill -CONT {pid}` if it is suspended, otherwise `kill {pid}`; running jobs continue"
                )
            }
            Self::NotADaemon { pid } => format!("check what process {pid} is, and stop it"),
            Self::Rejected(error) | Self::ProtocolMismatch { error, .. } => error.hint.clone(),
            Self::Broken(_) => {
                "retry; see the daemon log for details (`switchboard config` prints its path)".to_owned()
            }
        }
    }
}
