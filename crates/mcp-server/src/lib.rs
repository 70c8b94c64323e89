//! The MCP server: the tools, resources and tasks through which other agents submit calls.
//!
//! [`serve`] serves one client over any byte stream (the daemon's socket, a test's pipe), [`http`] serves streamable HTTP. Owns the
//! protocol: schemas, descriptions, argument errors, results. Makes no decision about jobs (see `calls`), opens no socket and reads no
//! configuration (see the daemon).
//!
//! | module | responsibility |
//! | --- | --- |
//! | `server` | routes requests, declares the capabilities |
//! | `tools/` | one file per tool; `tools/call_parameters` is shared by the tools that call agents |
//! | `options`, `context` | the operator's options; the state of one client, shared by the handlers |
//! | `arguments`, `schema` | JSON to parameters: blank values, unknown names, wrong types |
//! | `rejection`, `hints`, `results`, `group_report` | errors that a caller can fix; results as text and as structured content |
//! | `waiting`, `cancellation` | waits with progress; requests that their client has cancelled |
//! | `capacity` | limits on open requests, long messages and waits |
//! | `resources`, `tasks` | jobs as resources and as SEP-2663 tasks, read from the store |
//! | `stream`, `envelope`, `message_errors` | one message per line; replies to unreadable messages |
//! | `http`, `http_errors`, `cors` | streamable HTTP behind a bearer token |
//! | `sessions`, `request_body` | limits on HTTP sessions and request bodies |

mod arguments;
mod cancellation;
mod capacity;
mod context;
mod cors;
mod envelope;
mod group_report;
mod hints;
pub mod http;
mod http_errors;
mod job_ids;
mod message_errors;
mod millis;
mod options;
mod rejection;
mod request_body;
mod resources;
mod results;
mod schema;
mod server;
mod sessions;
mod stream;
mod tasks;
mod tools;
mod waiting;

use std::sync::Arc;

use calls::JobService;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub use capacity::RequestCapacity;
pub use message_errors::MAX_MESSAGE_BYTES;
pub use options::{CallDefaults, McpClient, McpOptions};
pub use tools::reference;

/// A connection that failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client did not complete the handshake.
    #[error("the client did not initialize the connection")]
    Initialize(#[source] Box<ServerInitializeError>),
    /// The task of the connection panicked or was aborted.
    #[error("the task of the connection failed")]
    Task(#[source] tokio::task::JoinError),
}

/// Serves one client until it disconnects or until `shutdown`, when waiting calls return the status of their jobs.
///
/// Jobs belong to `service` and survive the connection, unless [`McpOptions::cancel_on_disconnect`] is set.
pub async fn serve<S>(
    stream: S,
    client: McpClient,
    service: JobService,
    options: Arc<McpOptions>,
    shutdown: CancellationToken,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let disconnected = CancellationToken::new();
    let transport = stream::LineTransport::new(stream, disconnected.clone(), Arc::clone(&options.capacity));
    let server = server::McpHandler::new(service, client, options, shutdown.clone(), disconnected.clone());
    // A child token: rmcp cancels its token when the connection closes.
    let running = match rmcp::service::serve_server_with_ct(server, transport, shutdown.child_token()).await {
        Ok(running) => running,
        // A client that only probed the socket.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(ServeError::Initialize(Box::new(error))),
    };
    let finished = running.waiting().await;
    disconnected.cancel();
    finished.map(drop).map_err(ServeError::Task)
}
