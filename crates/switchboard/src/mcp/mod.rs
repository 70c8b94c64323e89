//! The MCP server: the tools, resources and tasks with which other agents place calls.
//!
//! One implementation for every way in: [`serve`] speaks over any stream of bytes (the daemon's socket, a test's pipe),
//! [`http`] over streamable HTTP. Owns the words of the protocol: schemas, descriptions, what a bad argument is told, how a job
//! reads as an answer. Decides nothing about jobs (see `calls`), opens no socket and reads no configuration (see the daemon).
//!
//! | file | what it owns |
//! | --- | --- |
//! | `server` | which request goes where; what is declared and what is not |
//! | `tools/` | the tools, one file each; what the calls share is in `tools/call` |
//! | `arguments`, `schema` | from JSON to parameters: blanks, unknown names, wrong types |
//! | `refusal` | what a caller is told that can be mended: field, message, hint |
//! | `waiting` | waiting for jobs, with progress, until somebody loses patience |
//! | `capacity` | how many requests, long messages and waits clients may have open |
//! | `cancelled` | which requests their client has cancelled, and did not merely leave |
//! | `resources`, `tasks` | jobs as resources and as SEP-2663 tasks: views of the store, no records of their own |
//! | `stream`, `envelope` | one message a line, bounded; what cannot be read is answered all the same |
//! | `http`, `origins` | streamable HTTP behind a token; what browsers want to know before a page may use it |
//! | `sessions`, `request_body` | how many sessions there may be over HTTP, and how long a request may be and take |

mod arguments;
mod cancelled;
mod capacity;
mod envelope;
pub mod http;
mod job_ids;
mod millis;
mod origins;
mod refusal;
mod render;
mod request_body;
mod resources;
mod schema;
mod server;
mod sessions;
mod stream;
mod tasks;
mod tools;
mod waiting;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use calls::{CallerEnvironment, JobService};
use model::CallPolicy;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub use capacity::RequestCapacity;
pub use tools::reference;

/// How long a message may be: a prompt of the longest kind, and what JSON makes of it.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// What the operator has decided about the tools.
#[derive(Debug, Clone)]
pub struct Options {
    /// Short names of folders that may stand for `cwd`.
    pub cwd_aliases: BTreeMap<String, PathBuf>,
    /// What `~` stands for.
    pub home: Option<PathBuf>,
    /// Whether the scripted agent can be called (`call_rehearsal`).
    pub rehearsal: bool,
    /// What the agent of a call may touch that names no policy. One that does is enforced as strictly.
    pub policy: CallPolicy,
    /// Whether confined agents obey the settings of their workspace.
    pub trust_workspaces: bool,
    /// Whether a call is cancelled when its client goes away without a word.
    pub cancel_on_disconnect: bool,
    /// How long a client that wants to be told of progress hears nothing at most.
    pub heartbeat: Duration,
    /// What a call gets that does not say otherwise.
    pub defaults: Defaults,
    /// How much clients may have open, all together.
    pub capacity: Arc<RequestCapacity>,
}

impl Default for Options {
    /// No alias, no home, real agents only, confined to their folders as far as the machine can, jobs that outlive their clients, a word every 15 s.
    fn default() -> Self {
        Self {
            policy: CallPolicy::default(),
            trust_workspaces: false,
            cwd_aliases: BTreeMap::new(),
            home: None,
            rehearsal: false,
            cancel_on_disconnect: false,
            heartbeat: Duration::from_secs(15),
            defaults: Defaults::default(),
            capacity: Arc::default(),
        }
    }
}

/// What a call gets that does not say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// How long the agent may take.
    pub timeout: Duration,
    /// How long it may stay silent.
    pub idle: Option<Duration>,
    /// How long it may take until its first word; none for as long as it may stay silent.
    pub start: Option<Duration>,
    /// How long a call blocks before it answers that the job runs.
    pub wait: Duration,
    /// How many characters of the agent's words are passed on.
    pub max_response_chars: usize,
}

impl Default for Defaults {
    /// An hour, silent or not; 50 s, because hosts give up at 60 s; 100,000.
    fn default() -> Self {
        Self {
            timeout: Duration::from_hours(1),
            idle: None,
            start: None,
            wait: Duration::from_secs(50),
            max_response_chars: calls::MAX_RESPONSE_CHARS,
        }
    }
}

/// Who is at the other end.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// The folder that it was started in: where its calls work that name none.
    pub cwd: Option<PathBuf>,
    /// What its environment says about agents; none for the daemon's own.
    pub environment: Option<CallerEnvironment>,
    /// The job whose agent it belongs to; none for a client outside of all calls.
    pub parent: Option<model::JobId>,
}

/// A connection that never came to be one.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client never introduced itself.
    #[error("the client did not initialize the connection")]
    Initialize(#[source] Box<ServerInitializeError>),
    /// The task that served it broke off.
    #[error("the connection's task broke off")]
    Broken(#[source] tokio::task::JoinError),
}

/// Serves one client until it goes away, or until `shutdown`; calls that still wait then answer where their jobs stand.
///
/// The jobs are the desk's: they go on, whatever becomes of the connection, unless [`Options::cancel_on_disconnect`] is set.
pub async fn serve<S>(
    stream: S,
    client: Client,
    desk: JobService,
    options: Arc<Options>,
    shutdown: CancellationToken,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let gone = CancellationToken::new();
    let transport = stream::Lines::new(stream, gone.clone(), Arc::clone(&options.capacity));
    let server = server::Server::new(desk, client, options, shutdown.clone(), gone.clone());
    // A token of its own: rmcp cancels what it was given when the connection ends.
    let running = match rmcp::service::serve_server_with_ct(server, transport, shutdown.child_token()).await {
        Ok(running) => running,
        // A client that only looked whether somebody is there.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(ServeError::Initialize(Box::new(error))),
    };
    let ended = running.waiting().await;
    gone.cancel();
    ended.map(drop).map_err(ServeError::Broken)
}
