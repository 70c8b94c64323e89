//! The connection of one client: greeting, identity and lines.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use calls::CallerEnvironment;
use model::JobId;
use rustix::process::geteuid;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use protocol::{
    ClientRole, ErrorReply, Greeting, Hello, MAX_GREETING_BYTES, PROTOCOL_VERSION, PeerVersion, Welcome,
};

use super::state::DaemonState;
use crate::caller::CallerProcess;

/// The timeout of a client's greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// A client after the greeting.
#[derive(Debug, Clone)]
pub struct ConnectedClient {
    /// Its version.
    pub version: String,
    /// Its process id, as it reports it.
    pub pid: u32,
    /// Its working directory.
    pub cwd: Option<PathBuf>,
}

/// A connection to a client. Every read counts as activity.
pub struct ClientConnection {
    /// The reading half.
    pub reader: BufReader<ActivityReader>,
    /// The writing half.
    pub writer: OwnedWriteHalf,
    /// The variables for agents from its greeting, and its role.
    variables: Option<(ClientRole, BTreeMap<String, String>)>,
    /// Its process, as identified by the kernel.
    caller: CallerProcess,
}

impl ClientConnection {
    /// Identifies the peer of an accepted connection.
    pub fn new(stream: UnixStream, state: &DaemonState) -> Self {
        let caller = CallerProcess::identify(&stream);
        let (reader, writer) = stream.into_split();
        let reader = BufReader::new(ActivityReader { reader, state: state.clone() });
        Self { reader, writer, variables: None, caller }
    }

    /// Reads a line without its line feed; `None` at the end of the stream. Fails if the line exceeds `max_bytes`.
    pub async fn read_line(&mut self, max_bytes: usize) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        (&mut self.reader).take(max_bytes as u64).read_until(b'\n', &mut line).await?;
        match line.pop() {
            Some(b'\n') => Ok(Some(line)),
            None => Ok(None),
            Some(_) if line.len() + 1 < max_bytes => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "line too long")),
        }
    }

    /// Returns the client's variables for agents.
    ///
    /// They decide which programs run. A caller inside a call gets the daemon's environment instead: it could otherwise start its own
    /// program with a weaker sandbox than its own.
    pub fn caller_environment(&self) -> Option<CallerEnvironment> {
        let (role, variables) = self.variables.clone()?;
        if self.caller != CallerProcess::Outside {
            return None;
        }
        Some(match role {
            ClientRole::Control => CallerEnvironment::of_shell(variables),
            ClientRole::Mcp => CallerEnvironment::of_mcp_host(variables),
        })
    }

    /// Returns the job whose agent opened the connection.
    pub fn parent(&self, service: &calls::JobService) -> Option<JobId> {
        match &self.caller {
            CallerProcess::Unsandboxed { ancestors } => service.job_of_processes(ancestors),
            CallerProcess::Outside | CallerProcess::Sandboxed => None,
        }
    }

    /// Returns the process that opened the connection.
    pub fn caller(&self) -> &CallerProcess {
        &self.caller
    }

    /// Sends a JSON value as one line.
    pub async fn send(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.writer.write_all(&line).await
    }
}

/// The reading half of a connection, which records activity.
pub struct ActivityReader {
    reader: OwnedReadHalf,
    state: DaemonState,
}

impl AsyncRead for ActivityReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.reader).poll_read(context, buffer);
        if polled.is_ready() {
            self.state.record_activity();
        }
        polled
    }
}

/// Returns whether the peer is a process of this user. The directory mode excludes others already, unless the file system ignores it.
pub fn is_same_user(stream: &UnixStream) -> io::Result<bool> {
    Ok(stream.peer_cred()?.uid() == geteuid().as_raw())
}

/// Reads the greeting of a client; `None` at the end of the stream. An unusable greeting is returned as the error to send.
pub async fn read_hello(connection: &mut ClientConnection) -> io::Result<Option<Result<Hello, ErrorReply>>> {
    match timeout(GREETING_TIMEOUT, connection.read_line(MAX_GREETING_BYTES)).await {
        Ok(Ok(line)) => Ok(line.map(|line| parse_hello(&line))),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            Ok(Some(Err(invalid_greeting("the greeting is too long"))))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Ok(Some(Err(invalid_greeting("no greeting arrived in time")))),
    }
}

/// Accepts a client, and keeps the variables of its greeting.
pub async fn welcome(
    connection: &mut ClientConnection,
    state: &DaemonState,
    hello: Hello,
) -> io::Result<ConnectedClient> {
    send_welcome(connection, state, None).await?;
    connection.variables = hello.environment.map(|variables| (hello.role, variables));
    Ok(ConnectedClient { version: hello.peer.version, pid: hello.pid, cwd: hello.cwd.map(PathBuf::from) })
}

/// Returns the error for a client beyond the connection limit.
pub fn limit_reached(state: &DaemonState) -> ErrorReply {
    let limit = state.config().limits.max_connections;
    ErrorReply {
        message: format!("the daemon has reached its connection limit ({limit})"),
        hint: "close some MCP hosts, or raise `limits.max_connections`".to_owned(),
    }
}

/// Rejects a process of a sandboxed run: a call that it submits would run with the user's permissions.
pub async fn reject_sandboxed(mut connection: ClientConnection, state: &DaemonState) -> io::Result<()> {
    let error = ErrorReply {
        message: "the daemon does not serve processes inside a sandboxed call".to_owned(),
        hint: "place the call outside, or run the outer call with policy `off`".to_owned(),
    };
    reject(&mut connection, state, error).await
}

/// Rejects a client with an error.
pub async fn reject(
    connection: &mut ClientConnection,
    state: &DaemonState,
    error: ErrorReply,
) -> io::Result<()> {
    send_welcome(connection, state, Some(error)).await
}

async fn send_welcome(
    connection: &mut ClientConnection,
    state: &DaemonState,
    error: Option<ErrorReply>,
) -> io::Result<()> {
    let owner = state.owner().as_str().to_owned();
    let welcome = Welcome { peer: PeerVersion::current(), pid: std::process::id(), owner, error };
    connection.send(&Greeting { switchboard: welcome }).await
}

fn parse_hello(line: &[u8]) -> Result<Hello, ErrorReply> {
    // The version first: another protocol may have another greeting.
    let Greeting { switchboard: peer } = serde_json::from_slice::<Greeting<PeerVersion>>(line)
        .map_err(|_| invalid_greeting("the first line is not a greeting"))?;
    if peer.protocol != PROTOCOL_VERSION {
        return Err(ErrorReply::protocol_mismatch(&peer, &PeerVersion::current()));
    }
    let hello = serde_json::from_slice::<Greeting<Hello>>(line);
    hello
        .map(|greeting| greeting.switchboard)
        .map_err(|error| invalid_greeting(&format!("invalid greeting: {error}")))
}

fn invalid_greeting(message: &str) -> ErrorReply {
    ErrorReply {
        message: message.to_owned(),
        hint: "this socket speaks Switchboard's protocol; use the `switchboard` commands".to_owned(),
    }
}
