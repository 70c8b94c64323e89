//! HTTP connections: a bounded number, none that stalls for long, and room for clients that authenticate.
//!
//! Every user of the machine can reach a port of the loopback. A connection counts as anonymous until a request on it brings the token
//! or the cookie. When there are too many anonymous ones, the oldest is closed for the next; authenticated ones are never closed for
//! others. So half-sent requests hold up nobody, however many there are.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
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

/// How many anonymous connections there may be.
const MAX_ANONYMOUS: usize = 128;
/// How long an anonymous connection is left alone, however many others wait.
const GRACE: Duration = Duration::from_secs(1);
/// How long the head of a request may take, and a connection may be idle between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);
/// For how long a client may fail to read its answer.
const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// How large a head may be, and how much of an answer is buffered.
const BUFFER_BYTES: usize = 64 * 1024;
/// How long to wait when a connection cannot be accepted, for want of descriptors, say.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// When a client that is turned away may try again.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("5");

/// The bounds of an HTTP server.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// How many authenticated connections there may be.
    pub max_connections: usize,
    /// How long nothing may pass on a connection while a request is handled.
    pub silence: Duration,
    /// Tells whether the client is a process inside a confined call. It may read `/proc`.
    pub is_confined: fn(TcpEnds) -> bool,
}

/// The addresses of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpEnds {
    /// The address of the server.
    pub server: SocketAddr,
    /// The address of the client.
    pub client: SocketAddr,
}

/// The decision about a request that brings the token or the cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is served.
    Admitted,
    /// There are as many authenticated connections as there may be.
    Full,
    /// Its client runs inside a confined call, which must not get more rights than it has.
    Confined,
}

/// Serves HTTP/1.1 until `shutdown`, and then until the last connection is closed.
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
                let connection = Connections::open(&connections, ends_of(&stream));
                let io = TimedStream::new(stream, limits.silence);
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
    connections.make_room().await;
    Ok(listener.accept().await?.0)
}

fn ends_of(stream: &TcpStream) -> Option<TcpEnds> {
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
        request.extensions_mut().insert(peer.clone());
        service.call(request)
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
    /// Those without a request that authenticated, the oldest first.
    anonymous: Mutex<VecDeque<HttpPeer>>,
    /// Told when one of them is closed or authenticates.
    left: Notify,
    authenticated: Arc<Semaphore>,
    is_confined: fn(TcpEnds) -> bool,
}

impl Connections {
    fn new(limits: HttpLimits) -> Self {
        let authenticated = Arc::new(Semaphore::new(limits.max_connections));
        let is_confined = limits.is_confined;
        Self { anonymous: Mutex::default(), left: Notify::new(), authenticated, is_confined }
    }

    fn anonymous(&self) -> MutexGuard<'_, VecDeque<HttpPeer>> {
        self.anonymous.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more anonymous connection can be accepted; closes the oldest when its grace is over.
    async fn make_room(&self) {
        loop {
            let left = self.left.notified();
            let oldest = {
                let anonymous = self.anonymous();
                if anonymous.len() < MAX_ANONYMOUS {
                    return;
                }
                anonymous.front().cloned()
            };
            let Some(oldest) = oldest else { return };
            if timeout_at(oldest.since + GRACE, left).await.is_err() {
                oldest.evicted.cancel();
                self.remove(&oldest);
            }
        }
    }

    fn open(connections: &Arc<Self>, ends: Option<TcpEnds>) -> OpenConnection {
        let peer = HttpPeer {
            connections: Arc::clone(connections),
            ends,
            is_confined: Arc::default(),
            since: Instant::now(),
            evicted: Arc::new(CancellationToken::new()),
            permit: Arc::default(),
        };
        connections.anonymous().push_back(peer.clone());
        OpenConnection(peer)
    }

    fn remove(&self, peer: &HttpPeer) {
        self.anonymous().retain(|other| !Arc::ptr_eq(&other.permit, &peer.permit));
        self.left.notify_one();
    }
}

/// The other end of a connection, as an extension of each of its requests.
#[derive(Debug, Clone)]
pub struct HttpPeer {
    connections: Arc<Connections>,
    /// None when the client has closed the connection already.
    ends: Option<TcpEnds>,
    /// Whether the client is confined, once it was asked.
    is_confined: Arc<OnceCell<bool>>,
    since: Instant,
    evicted: Arc<CancellationToken>,
    /// Of an authenticated connection, for as long as it is open.
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl HttpPeer {
    /// Counts the connection of a request as authenticated, if it may be.
    pub fn authenticate(request: &axum::extract::Request) -> impl Future<Output = Admission> + use<> {
        let peer = request.extensions().get::<Self>().cloned();
        async move {
            let Some(peer) = peer else { return Admission::Admitted };
            if peer.is_confined().await {
                tracing::warn!("an HTTP client inside a confined call was refused");
                return Admission::Confined;
            }
            if peer.is_admitted() { Admission::Admitted } else { Admission::Full }
        }
    }

    async fn is_confined(&self) -> bool {
        let Some(ends) = self.ends else { return true };
        let is_confined = self.connections.is_confined;
        let look_up = || async move { spawn_blocking(move || is_confined(ends)).await.unwrap_or(true) };
        *self.is_confined.get_or_init(look_up).await
    }

    fn is_admitted(&self) -> bool {
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

/// Tells a client that is turned away when to come again.
pub fn retry_later(mut response: Response) -> Response {
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    response
}

/// A connection that is being served.
struct OpenConnection(HttpPeer);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.remove(&self.0);
        // Handlers may keep the peer for longer.
        self.0.permit.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A stream that fails when nothing passes for too long, or when its reader does not read.
#[derive(Debug)]
struct TimedStream {
    stream: TcpStream,
    silence: Duration,
    write_timeout: Duration,
    silent_until: Pin<Box<Sleep>>,
    /// While a write is pending.
    write_until: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    fn new(stream: TcpStream, silence: Duration) -> Self {
        let silent_until = Box::pin(sleep(silence));
        Self { stream, silence, write_timeout: WRITE_TIMEOUT, silent_until, write_until: None }
    }

    /// Puts the deadlines off when something passed; fails when one is over.
    fn check<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            let until = Instant::now() + self.silence;
            self.silent_until.as_mut().reset(until);
            return polled;
        }
        self.silent_until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn check_write<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.write_until = None;
        } else {
            let until = self.write_until.get_or_insert_with(|| Box::pin(sleep(self.write_timeout)));
            if until.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        self.check(context, polled)
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.check(context, polled)
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
    async fn silent_stream_times_out() {
        let (mut client, stream) = connected().await;
        let mut stream = TimedStream::new(stream, SHORT);
        client.write_all(b"x").await.unwrap();
        let mut bytes = [0; 8];
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 1);
        let error = stream.read(&mut bytes).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn stream_whose_reader_does_not_read_times_out() {
        let (client, stream) = connected().await;
        let mut stream =
            TimedStream { write_timeout: SHORT, ..TimedStream::new(stream, Duration::from_mins(10)) };
        // More than the kernel takes.
        let error = stream.write_all(&vec![0; 64 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn oldest_anonymous_connection_makes_room() {
        let limits = HttpLimits { max_connections: 1, silence: SHORT, is_confined: |_| false };
        let connections = Arc::new(Connections::new(limits));
        let open: Vec<OpenConnection> =
            (0..MAX_ANONYMOUS).map(|_| Connections::open(&connections, None)).collect();
        connections.make_room().await;
        let evicted: Vec<bool> = open.iter().map(|open| open.0.evicted.is_cancelled()).collect();
        assert!(evicted[0] && !evicted[1..].contains(&true));
        assert!(open[1].0.is_admitted() && open[1].0.is_admitted() && !open[2].0.is_admitted());
        drop(open);
        assert!(connections.anonymous().is_empty() && connections.authenticated.available_permits() == 1);
    }
}
