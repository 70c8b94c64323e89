//! A connection to the daemon that runs.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, geteuid};

use crate::daemon::{Holder, is_held};
use crate::home::{Home, socket};
use crate::wire::{Complaint, Greeting, Hello, LONGEST_GREETING, PROTOCOL, Role, Speaker, Welcome};

/// How long a daemon may take over its greeting.
const GREETING_WITHIN: Duration = Duration::from_secs(10);

/// How long a daemon is waited for that is alive and has no socket: one that was removed is made again within 5 s.
const SOCKET_WITHIN: Duration = Duration::from_secs(7);
/// How long to wait before the next look.
const PAUSE: Duration = Duration::from_millis(50);

/// A greeted daemon.
#[derive(Debug)]
pub struct Connection {
    /// What it says; nothing of it is lost in between.
    pub reader: BufReader<UnixStream>,
    /// What it hears.
    pub writer: UnixStream,
    /// Who it is.
    pub welcome: Welcome,
    /// Its process, as the kernel says.
    pub process: Pid,
}

/// Connects to the daemon, if there is one, with the variables that calls carry.
pub fn connect(
    home: &Home,
    role: Role,
    environment: Option<&BTreeMap<String, String>>,
) -> Result<Connection, ConnectError> {
    let stream = reach(home)?;
    let peer = socket_peercred(&stream).map_err(|errno| ConnectError::Broken(errno.into()))?;
    if peer.uid != geteuid() {
        return Err(ConnectError::NotYours { uid: peer.uid.as_raw() });
    }
    greet(stream, peer.pid, role, environment)
}

/// Connects to the daemon like [`connect`], and waits for one that is alive and cannot be reached yet.
pub fn connect_patiently(home: &Home, role: Role) -> Result<Connection, ConnectError> {
    let give_up_at = Instant::now() + SOCKET_WITHIN;
    loop {
        match connect(home, role, None) {
            Err(ConnectError::Nobody) if is_held(home.state()) && Instant::now() < give_up_at => {
                sleep(PAUSE);
            }
            connection => return connection,
        }
    }
}

/// Tries the address in the lock, then the places in which this front-end would look itself.
fn reach(home: &Home) -> Result<UnixStream, ConnectError> {
    let told = Holder::last(home.state()).and_then(|holder| holder.socket);
    let name = std::fs::File::open(home.state()).and_then(|state| socket::name_for(&state));
    let own = name.ok().into_iter().flat_map(|name| {
        home.socket_folders().into_iter().map(move |folder| folder.join(&name)).collect::<Vec<PathBuf>>()
    });
    for path in told.into_iter().chain(own) {
        match socket::connect(&path) {
            Ok(stream) => return Ok(stream),
            Err(error) if nobody_listens(&error) => {}
            Err(error) => return Err(ConnectError::Broken(error)),
        }
    }
    Err(ConnectError::Nobody)
}

fn nobody_listens(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory
    )
}

fn greet(
    mut stream: UnixStream,
    process: Pid,
    role: Role,
    environment: Option<&BTreeMap<String, String>>,
) -> Result<Connection, ConnectError> {
    stream.set_read_timeout(Some(GREETING_WITHIN))?;
    stream.set_write_timeout(Some(GREETING_WITHIN))?;
    let cwd = env::current_dir().ok().and_then(|folder| folder.into_os_string().into_string().ok());
    let mut hello = Hello {
        speaker: Speaker::me(),
        role,
        cwd,
        pid: std::process::id(),
        environment: environment.cloned(),
    };
    let mut line = greeting(&hello)?;
    if line.len() >= LONGEST_GREETING {
        // The call then uses the daemon's own variables, as those of an HTTP client do.
        hello.environment = None;
        line = greeting(&hello)?;
    }
    // A daemon that turns this one away may have done so before it listened; its words are there all the same.
    let _ = stream.write_all(&line);
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut answer = Vec::new();
    match (&mut reader).take(LONGEST_GREETING as u64).read_until(b'\n', &mut answer) {
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            return Err(ConnectError::Silent { pid: process.as_raw_pid() });
        }
        // It ended between the connection and the greeting; whoever wants one may start the next.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ConnectError::Nobody),
        Ok(_) if !answer.ends_with(b"\n") => return Err(ConnectError::Nobody),
        read => drop(read?),
    }
    let welcome = understand(&answer, process)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(Connection { reader, writer: stream, welcome, process })
}

fn greeting(hello: &Hello) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Greeting { switchboard: hello })?;
    line.push(b'\n');
    Ok(line)
}

fn understand(answer: &[u8], process: Pid) -> Result<Welcome, ConnectError> {
    let stranger = || ConnectError::Stranger { pid: process.as_raw_pid() };
    let Greeting { switchboard: speaker } =
        serde_json::from_slice::<Greeting<Speaker>>(answer).map_err(|_| stranger())?;
    if speaker.protocol != PROTOCOL {
        let complaint = Complaint::other_protocol(&Speaker::me(), &speaker);
        return Err(ConnectError::OtherProtocol { pid: process.as_raw_pid(), complaint });
    }
    let Greeting { switchboard: welcome } =
        serde_json::from_slice::<Greeting<Welcome>>(answer).map_err(|_| stranger())?;
    match welcome.error {
        Some(complaint) => Err(ConnectError::Refused(complaint)),
        None => Ok(welcome),
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no daemon is running")]
    Nobody,
    #[error("the daemon on the socket belongs to user {uid}")]
    NotYours { uid: u32 },
    #[error("the daemon (pid {pid}) does not respond")]
    Silent { pid: i32 },
    #[error("the process listening on the daemon's socket (pid {pid}) is not a Switchboard daemon")]
    Stranger { pid: i32 },
    #[error("the daemon rejected the request: {}", .0.message)]
    Refused(Complaint),
    #[error("{}", complaint.message)]
    OtherProtocol { pid: i32, complaint: Complaint },
    #[error("lost the connection to the daemon")]
    Broken(#[from] io::Error),
}

impl ConnectError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Nobody => "start one with `switchboard serve`".to_owned(),
            Self::NotYours { .. } => "set SWITCHBOARD_HOME to a directory of your own".to_owned(),
            Self::Silent { pid } => {
                format!(
                    "run `kill -CONT {pid}` if it is suspended, otherwise `kill {pid}`; running jobs continue"
                )
            }
            Self::Stranger { pid } => format!("check what process {pid} is, and stop it"),
            Self::Refused(complaint) | Self::OtherProtocol { complaint, .. } => complaint.hint.clone(),
            Self::Broken(_) => {
                "retry; see the daemon log for details (`switchboard config` prints its path)".to_owned()
            }
        }
    }
}
