//! The connections of browsers and of clients over HTTP: not too many, and none that says nothing for long.
//!
//! Every user of the machine can reach a port of the loopback. Whoever opens connections and leaves them open must not use up the
//! daemon's files: what is lost then is the page or HTTP, and not the jobs.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// How many connections there may be; the next waits for one to end.
const MOST: usize = 256;

/// A listener with so much room.
#[derive(Debug)]
pub struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
    silence: Duration,
}

impl Bounded {
    /// On a connection, nothing may pass in either direction for so long.
    pub fn new(listener: TcpListener, silence: Duration) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(MOST)), silence }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let permit = Arc::clone(&self.room).acquire_owned().await.ok();
        // Tries again by itself when descriptors are short.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let (patience, end) = (self.silence, Box::pin(sleep(self.silence)));
        (Connection { stream, patience, end, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when it is silent for too long.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    patience: Duration,
    /// When it has been silent for so long.
    end: Pin<Box<Sleep>>,
    /// The semaphore is never closed, so there is one.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// What passed puts the end off; what is waited for does not.
    fn passed<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            let end = Instant::now() + self.patience;
            self.end.as_mut().reset(end);
            return polled;
        }
        self.end.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.passed(context, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.passed(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.passed(context, polled)
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

    #[tokio::test]
    async fn a_connection_that_says_nothing_is_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = Bounded::new(listener, Duration::from_millis(50));
        let mut silent = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = bounded.accept().await;
        silent.write_all(b"x").await.unwrap();
        let mut bytes = [0; 8];
        assert_eq!(connection.read(&mut bytes).await.unwrap(), 1);
        let error = connection.read(&mut bytes).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn there_is_room_for_so_many_and_for_the_next_when_one_has_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded =
            Bounded { room: Arc::new(Semaphore::new(1)), ..Bounded::new(listener, Duration::from_mins(1)) };
        let (_one, _other) =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let (first, _) = bounded.accept().await;
        let waits = tokio::time::timeout(Duration::from_millis(50), bounded.accept()).await;
        assert!(waits.is_err(), "there is no room");
        drop(first);
        bounded.accept().await;
    }
}
