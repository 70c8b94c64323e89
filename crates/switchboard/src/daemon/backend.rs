//! The interface between the daemon and its job service.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use protocol::{DaemonRequest, ErrorReply};

use super::connection::{ClientConnection, ConnectedClient};

/// A boxed future.
pub type BoxFuture<'a, T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The number of unfinished jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Jobs that run under this daemon.
    pub running: u64,
    /// Jobs that wait for a slot, a quota or a lock.
    pub queued: u64,
}

impl Load {
    /// Returns whether no job is running or queued.
    pub fn is_idle(self) -> bool {
        self == Self::default()
    }
}

/// The job service as the daemon uses it. Tests replace it.
pub trait JobBackend: Send + Sync {
    /// Returns the number of unfinished jobs.
    fn load(&self) -> BoxFuture<'_, Load>;
    /// Returns the reason why calls are rejected.
    fn problem(&self) -> Option<ErrorReply> {
        None
    }
    /// Starts no further job and waits for the running ones. Queued jobs stay for the next daemon.
    fn drain(&self) -> BoxFuture<'_>;
    /// Cancels the running jobs. Returns when the request is durable; [`JobBackend::drain`] waits for their end.
    fn cancel(&self) -> BoxFuture<'_>;
    /// Detaches from all jobs. Their runs continue under their supervisors.
    fn detach(&self) -> BoxFuture<'_>;
    /// Handles a request about jobs and sends all lines of the reply.
    fn handle_control<'a>(
        &'a self,
        request: DaemonRequest,
        connection: &'a mut ClientConnection,
    ) -> BoxFuture<'a, io::Result<()>>;
    /// Serves MCP on a connection until the client disconnects, or until `shutdown`.
    fn serve_mcp(
        &self,
        connection: ClientConnection,
        client: ConnectedClient,
        shutdown: CancellationToken,
    ) -> BoxFuture<'_, io::Result<()>>;
}
