//! Serves HTTP/1.1 with a bounded number of connections, and holds the bearer token.
//!
//! Every user of the machine can connect to a loopback port. A connection counts as anonymous until one of its requests carries the
//! token or the cookie. When the anonymous connections reach their limit, the oldest is closed; authenticated connections are never
//! evicted. Any number of half-sent requests therefore cannot block a client. Routes are the caller's (see `mcp-server`, `dashboard`).

mod token;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, Sleep, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

pub use token::{BearerToken, TokenError};

/// Maximum number of anonymous connections.
const MAX_ANONYMOUS: usize = 128;
/// An anonymous connection is not evicted before this age.
const EVICTION_GRACE: Duration = Duration::from_secs(1);
/// Timeout for the head of a request, and for an idle connection between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);
/// A client that reads no byte of its response for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum size of a request head, and of the response buffer.
const BUFFER_BYTES: usize = 64 * 1024;
/// Back-off after `accept` fails, for example with EMFILE.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// `Retry-After` of a rejected client, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("5");

/// The limits of an HTTP server.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Maximum number of authenticated connections.
    pub max_connections: usize,
    /// A connection without traffic is closed after this long.
    pub idle_timeout: Duration,
    /// Identifies the client of a connection. May block: it reads `/proc`.
    pub identify_client: fn(TcpEnds) -> HttpClient,
    /// Builds the response to a rejected request from its status, a message and a hint.
    pub error_response: fn(StatusCode, &str, &str) -> Response,
}

/// The client of a connection, as far as the kernel identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpClient {
    /// A process outside of all sandboxed calls, or on another machine.
    Outside,
    /// A process inside a sandboxed call. It must not gain permissions that its policy denies.
    Sandboxed,
    /// An unknown process: none has the socket visibly open, and a sandboxed process exists that may hide it.
    Unidentified,
}

/// The two addresses of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpEnds {
    /// The address of the server.
    pub server: SocketAddr,
    /// The address of the client.
    pub client: SocketAddr,
}

/// The decision about a request that carries the token or the cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Serve the request.
    Admitted,
    /// The limit of authenticated connections is reached.
    Full,
}

/// Serves HTTP/1.1 until `shutdown`, then waits for the last connection to close.
pub async fn serve_http(
    listener: TcpListener,
    router: Router,
    limits: HttpLimits,
    shutdown: CancellationToken,
) {
    let connections = Arc::new(Connections::new(limits));
    let service = TowerToHyperService::new(router);
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = tasks.join_next() => continue,
            accepted = accept(&listener, &connections) => accepted,
        };
        match accepted {
            Ok(stream) => {
                let connection = Connections::open(&connections, tcp_ends(&stream));
                let io = TimedStream::new(stream, limits.idle_timeout);
                tasks.spawn(serve_connection(io, connection, service.clone(), shutdown.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn accept(listener: &TcpListener, connections: &Connections) -> io::Result<TcpStream> {
    connections.wait_for_room().await;
    Ok(listener.accept().await?.0)
}

fn tcp_ends(stream: &TcpStream) -> Option<TcpEnds> {
    Some(TcpEnds { server: stream.local_addr().ok()?, client: stream.peer_addr().ok()? })
}

async fn serve_connection(
    io: TimedStream,
    connection: OpenConnection,
    service: TowerToHyperService<Router>,
    shutdown: CancellationToken,
) {
    let peer = connection.0.clone();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        let (peer, service) = (peer.clone(), service.clone());
        async move {
            // Checked here, not in a route: no path of any server is served to a sandboxed process.
            if let Some(rejection) = peer.reject_sandboxed().await {
                return Ok(rejection);
            }
            request.extensions_mut().insert(peer);
            service.call(request).await
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(BUFFER_BYTES);
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = connection.0.evicted.cancelled() => return,
        () = shutdown.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an HTTP connection broke");
    }
}

/// The connections of one server.
#[derive(Debug)]
struct Connections {
    /// Connections without an authenticated request, oldest first.
    anonymous: Mutex<VecDeque<HttpPeer>>,
    /// Notified when an anonymous connection closes or authenticates.
    removed: Notify,
    authenticated: Arc<Semaphore>,
    limits: HttpLimits,
}

impl Connections {
    fn new(limits: HttpLimits) -> Self {
        let authenticated = Arc::new(Semaphore::new(limits.max_connections));
        Self { anonymous: Mutex::default(), removed: Notify::new(), authenticated, limits }
    }

    fn anonymous(&self) -> MutexGuard<'_, VecDeque<HttpPeer>> {
        self.anonymous.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another anonymous connection can be accepted. Evicts the oldest once its grace period is over.
    async fn wait_for_room(&self) {
        loop {
            let removed = self.removed.notified();
            let oldest = {
                let anonymous = self.anonymous();
                if anonymous.len() < MAX_ANONYMOUS {
                    return;
                }
                anonymous.front().cloned()
            };
            let Some(oldest) = oldest else { return };
            if timeout_at(oldest.since + EVICTION_GRACE, removed).await.is_err() {
                oldest.evicted.cancel();
                self.remove(&oldest);
            }
        }
    }

    fn open(connections: &Arc<Self>, ends: Option<TcpEnds>) -> OpenConnection {
        let peer = HttpPeer {
            connections: Arc::clone(connections),
            ends,
            client: Arc::default(),
            since: Instant::now(),
            evicted: Arc::new(CancellationToken::new()),
            permit: Arc::default(),
        };
        connections.anonymous().push_back(peer.clone());
        OpenConnection(peer)
    }

    fn remove(&self, peer: &HttpPeer) {
        self.anonymous().retain(|other| !Arc::ptr_eq(&other.permit, &peer.permit));
        self.removed.notify_one();
    }
}

/// The client of a connection. Each request carries it as an extension.
#[derive(Debug, Clone)]
pub struct HttpPeer {
    connections: Arc<Connections>,
    /// None if the client closed the connection before its address was read.
    ends: Option<TcpEnds>,
    /// The cached result of [`HttpLimits::identify_client`].
    client: Arc<OnceCell<HttpClient>>,
    since: Instant,
    evicted: Arc<CancellationToken>,
    /// Held by an authenticated connection while it is open.
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl HttpPeer {
    /// Marks the connection of a request as authenticated, unless the limit is reached.
    pub fn authenticate(request: &Request) -> impl Future<Output = Admission> + use<> {
        let peer = request.extensions().get::<Self>().cloned();
        async move {
            let Some(peer) = peer else { return Admission::Admitted };
            if peer.try_admit() { Admission::Admitted } else { Admission::Full }
        }
    }

    /// Returns the response to a client that is not served, regardless of the request.
    async fn reject_sandboxed(&self) -> Option<Response> {
        let (message, hint) = match self.client().await {
            HttpClient::Outside => return None,
            HttpClient::Sandboxed => (
                "the daemon does not serve processes inside a sandboxed call",
                "make the request from outside the sandbox",
            ),
            HttpClient::Unidentified => (
                "the daemon cannot identify the process of this connection while a sandboxed call runs",
                "try again when no sandboxed call runs, or use a client whose open files your user can read",
            ),
        };
        tracing::warn!(message, "rejected an HTTP client");
        Some((self.connections.limits.error_response)(StatusCode::FORBIDDEN, message, hint))
    }

    async fn client(&self) -> HttpClient {
        let Some(ends) = self.ends else { return HttpClient::Sandboxed };
        let identify = self.connections.limits.identify_client;
        let check = || async move {
            spawn_blocking(move || identify(ends)).await.unwrap_or(HttpClient::Unidentified)
        };
        *self.client.get_or_init(check).await
    }

    fn try_admit(&self) -> bool {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            *permit = Arc::clone(&self.connections.authenticated).try_acquire_owned().ok();
            if permit.is_some() {
                self.connections.remove(self);
            }
        }
        permit.is_some()
    }
}

/// Turns a response into a 503 with `Retry-After`.
pub fn retry_later(mut response: Response) -> Response {
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    response
}

/// Removes its connection from the counters on drop.
struct OpenConnection(HttpPeer);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.remove(&self.0);
        // Handlers may hold clones of the peer for longer.
        self.0.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A TCP stream that fails with `TimedOut` when it is idle for too long, or when the client does not read.
#[derive(Debug)]
struct TimedStream {
    stream: TcpStream,
    idle_timeout: Duration,
    write_timeout: Duration,
    idle_deadline: Pin<Box<Sleep>>,
    /// Set while a write is pending.
    write_deadline: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    fn new(stream: TcpStream, idle_timeout: Duration) -> Self {
        let idle_deadline = Box::pin(sleep(idle_timeout));
        Self { stream, idle_timeout, write_timeout: WRITE_TIMEOUT, idle_deadline, write_deadline: None }
    }

    /// Extends the idle deadline after progress, and fails once it has passed.
    fn check_idle<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            let deadline = Instant::now() + self.idle_timeout;
            self.idle_deadline.as_mut().reset(deadline);
            return polled;
        }
        self.idle_deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn check_write<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.write_deadline = None;
        } else {
            let deadline = self.write_deadline.get_or_insert_with(|| Box::pin(sleep(self.write_timeout)));
            if deadline.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        self.check_idle(context, polled)
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.check_idle(context, polled)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_write(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.check_write(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const SHORT: Duration = Duration::from_millis(50);

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.unwrap(), accepted.unwrap().0)
    }

    #[tokio::test]
    async fn idle_stream_times_out() {
        let (mut client, stream) = connected().await;
        let mut stream = TimedStream::new(stream, SHORT);
        client.write_all(b"x").await.unwrap();
        let mut bytes = [0; 8];
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 1);
        let error = stream.read(&mut bytes).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn unread_response_times_out() {
        let (client, stream) = connected().await;
        let mut stream =
            TimedStream { write_timeout: SHORT, ..TimedStream::new(stream, Duration::from_mins(10)) };
        // More than the socket buffers hold.
        let error = stream.write_all(&vec![0; 64 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn oldest_anonymous_connection_is_evicted() {
        let limits = HttpLimits {
            max_connections: 1,
            idle_timeout: SHORT,
            identify_client: |_| HttpClient::Outside,
            error_response: |_, _, _| Response::default(),
        };
        let connections = Arc::new(Connections::new(limits));
        let open: Vec<OpenConnection> =
            (0..MAX_ANONYMOUS).map(|_| Connections::open(&connections, None)).collect();
        connections.wait_for_room().await;
        let evicted: Vec<bool> = open.iter().map(|open| open.0.evicted.is_cancelled()).collect();
        assert!(evicted[0] && !evicted[1..].contains(&true));
        assert!(open[1].0.try_admit() && open[1].0.try_admit() && !open[2].0.try_admit());
        drop(open);
        assert!(connections.anonymous().is_empty() && connections.authenticated.available_permits() == 1);
    }
}
