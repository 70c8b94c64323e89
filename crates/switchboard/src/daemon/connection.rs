//! One front-end's connection: who it is, what it wants, and its lines.

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

use super::caller::Caller;
use super::state::DaemonState;
use crate::wire::{Complaint, Greeting, Hello, LONGEST_GREETING, PROTOCOL, Role, Speaker, Welcome};

/// How long a front-end may take over its greeting.
const GREETING_WITHIN: Duration = Duration::from_secs(10);

/// A front-end that has been greeted.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its version.
    pub version: String,
    /// Its process, as it says itself.
    pub pid: u32,
    /// The folder it stands in.
    pub cwd: Option<PathBuf>,
}

/// Both directions of a connection. What is read counts as being asked for something.
pub struct Connection {
    /// From the front-end.
    pub reader: BufReader<Watched>,
    /// To the front-end.
    pub writer: OwnedWriteHalf,
    /// The variables for agents that it has greeted with, and as what.
    variables: Option<(Role, BTreeMap<String, String>)>,
    /// Its process, as the kernel knows it.
    caller: Caller,
}

impl Connection {
    /// Takes a connection in.
    pub fn new(stream: UnixStream, desk: &DaemonState) -> Self {
        let caller = Caller::identify(&stream);
        let (reader, writer) = stream.into_split();
        let reader = BufReader::new(Watched { reader, desk: desk.clone() });
        Self { reader, writer, variables: None, caller }
    }

    /// The next line without its end; none when there is no more. A longer one is an error.
    pub async fn line(&mut self, longest: usize) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        (&mut self.reader).take(longest as u64).read_until(b'\n', &mut line).await?;
        match line.pop() {
            Some(b'\n') => Ok(Some(line)),
            None => Ok(None),
            Some(_) if line.len() + 1 < longest => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long")),
        }
    }

    /// Returns what the front-end's environment says about agents.
    ///
    /// It names the programs that are run. An agent inside a call could name one of its own, and have it run with fewer bounds than it
    /// has itself: such a caller gets the daemon's environment.
    pub fn caller_environment(&self) -> Option<CallerEnvironment> {
        let (role, variables) = self.variables.clone()?;
        if self.caller != Caller::Outside {
            return None;
        }
        Some(match role {
            Role::Control => CallerEnvironment::of_shell(variables),
            Role::Mcp => CallerEnvironment::of_mcp_host(variables),
        })
    }

    /// Returns the job from whose agent the connection comes.
    pub fn parent(&self, desk: &calls::JobService) -> Option<JobId> {
        match &self.caller {
            Caller::Unconfined { ancestors } => desk.job_of_processes(ancestors),
            Caller::Outside | Caller::Confined => None,
        }
    }

    /// Returns the process that has made the connection.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Says one JSON value.
    pub async fn say(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.writer.write_all(&line).await
    }
}

/// The reading half; it tells the desk that somebody asked for something.
pub struct Watched {
    reader: OwnedReadHalf,
    desk: DaemonState,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.reader).poll_read(context, buffer);
        if polled.is_ready() {
            self.desk.asked();
        }
        polled
    }
}

/// Whether the other side is this user. The folder keeps others out already; this holds also where a file system does not.
pub fn is_ours(stream: &UnixStream) -> io::Result<bool> {
    Ok(stream.peer_cred()?.uid() == geteuid().as_raw())
}

/// Exchanges greetings; none when the front-end was refused, and told why. A daemon that is full serves only commands.
pub async fn greet(
    connection: &mut Connection,
    desk: &DaemonState,
    is_full: bool,
) -> io::Result<Option<(Role, Client)>> {
    let line = timeout(GREETING_WITHIN, connection.line(LONGEST_GREETING)).await;
    let heard = match line {
        Ok(Ok(Some(line))) => match understand(&line) {
            Ok(hello) if is_full && hello.role == Role::Mcp => Err(full(desk)),
            heard => heard,
        },
        Ok(Ok(None)) => return Ok(None),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            Err(stranger("the greeting is too long"))
        }
        Ok(Err(error)) => return Err(error),
        Err(_) => Err(stranger("no greeting arrived in time")),
    };
    let error = heard.as_ref().err().cloned();
    let owner = desk.owner().as_str().to_owned();
    let welcome = Welcome { speaker: Speaker::me(), pid: std::process::id(), owner, error };
    connection.say(&Greeting { switchboard: welcome }).await?;
    Ok(heard.ok().map(|hello| {
        connection.variables = hello.environment.map(|variables| (hello.role, variables));
        let client =
            Client { version: hello.speaker.version, pid: hello.pid, cwd: hello.cwd.map(PathBuf::from) };
        (hello.role, client)
    }))
}

/// Says that nobody else can be served now.
pub async fn turn_away(connection: Connection, desk: &DaemonState) -> io::Result<()> {
    refuse(connection, desk, full(desk)).await
}

fn full(desk: &DaemonState) -> Complaint {
    let limit = desk.config().limits.max_connections;
    Complaint {
        message: format!("the daemon has reached its connection limit ({limit})"),
        hint: "close some MCP hosts, or raise `limits.max_connections`".to_owned(),
    }
}

/// Refuses a process of a confined run: any call it places would get the rights of the user.
pub async fn refuse_confined(connection: Connection, desk: &DaemonState) -> io::Result<()> {
    let error = Complaint {
        message: "the daemon does not serve processes inside a sandboxed call".to_owned(),
        hint: "place the call outside, or run the outer call with policy `off`".to_owned(),
    };
    refuse(connection, desk, error).await
}

async fn refuse(mut connection: Connection, desk: &DaemonState, error: Complaint) -> io::Result<()> {
    let owner = desk.owner().as_str().to_owned();
    let welcome = Welcome { speaker: Speaker::me(), pid: std::process::id(), owner, error: Some(error) };
    connection.say(&Greeting { switchboard: welcome }).await
}

fn understand(line: &[u8]) -> Result<Hello, Complaint> {
    // The speaker first: another protocol may have another greeting.
    let Greeting { switchboard: speaker } = serde_json::from_slice::<Greeting<Speaker>>(line)
        .map_err(|_| stranger("the first line is not a greeting"))?;
    if speaker.protocol != PROTOCOL {
        return Err(Complaint::other_protocol(&speaker, &Speaker::me()));
    }
    let hello = serde_json::from_slice::<Greeting<Hello>>(line);
    hello
        .map(|greeting| greeting.switchboard)
        .map_err(|error| stranger(&format!("invalid greeting: {error}")))
}

fn stranger(message: &str) -> Complaint {
    Complaint {
        message: message.to_owned(),
        hint: "this socket speaks Switchboard's protocol; use the `switchboard` commands".to_owned(),
    }
}
