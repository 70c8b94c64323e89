//! One message a line, over any stream of bytes.
//!
//! Owns the framing and its bounds. What cannot be read as a message is answered, because somebody may wait for it: with a tool's
//! error where a tool was called, so that the model behind it learns what to do, else with an error of the protocol. rmcp's own
//! transport drops such lines, and the caller would wait for ever.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ErrorData, RequestId, ServerJsonRpcMessage, ServerResult};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::MAX_MESSAGE_BYTES;
use super::envelope::Envelope;
use super::refusal::Refusal;

/// How long calls may still answer when the client has closed its side: it may have piped its requests in and be reading on. Less
/// than the 5 s for which rmcp keeps the other side open.
const LINGER: Duration = Duration::from_secs(3);

/// The connection of one client.
pub(crate) struct Lines<S> {
    read: BufReader<ReadHalf<S>>,
    /// The line so far. Here and not in a future: what `receive` has begun is gone on with by the next.
    line: Vec<u8>,
    /// What is known of a line that is too long to be kept.
    too_long: Option<Envelope>,
    write: Arc<Mutex<Option<WriteHalf<S>>>>,
    /// Answers to what could not be read. A write that is broken off in the middle would spoil the stream.
    answers: JoinSet<()>,
    /// Whether the first request has come: what comes before it and asks nothing is passed over.
    opened: bool,
    /// Cancelled when the client is gone.
    gone: CancellationToken,
}

/// What was read.
enum Read {
    Line,
    TooLong(Envelope),
    End,
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Lines<S> {
    pub fn new(stream: S, gone: CancellationToken) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self {
            read: BufReader::with_capacity(64 * 1024, read),
            line: Vec::new(),
            too_long: None,
            write: Arc::new(Mutex::new(Some(write))),
            answers: JoinSet::new(),
            opened: false,
            gone,
        }
    }

    /// Reads to the end of the line. Dropping the future loses nothing.
    async fn read_line(&mut self) -> Read {
        loop {
            let Ok(available) = self.read.fill_buf().await else { return Read::End };
            if available.is_empty() {
                return Read::End;
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            let (piece, taken) = match newline {
                Some(at) => (&available[..at], at + 1),
                None => (available, available.len()),
            };
            if let Some(envelope) = &mut self.too_long {
                envelope.feed(piece);
            } else if self.line.len() + piece.len() > MAX_MESSAGE_BYTES {
                let mut envelope = Envelope::of(&self.line);
                envelope.feed(piece);
                self.too_long = Some(envelope);
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(piece);
            }
            self.read.consume(taken);
            if newline.is_some() {
                return self.too_long.take().map_or(Read::Line, Read::TooLong);
            }
        }
    }

    /// Takes the line that was read apart: a message, or nothing when it was answered or is to be passed over.
    fn message(&mut self) -> Option<ClientJsonRpcMessage> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line).trim_ascii();
        if line.is_empty() {
            return None;
        }
        let error = match serde_json::from_slice::<ClientJsonRpcMessage>(line) {
            // What has such an id, rmcp takes for a notification.
            Ok(ClientJsonRpcMessage::Notification(_)) if Envelope::of(line).asks_without_usable_id() => {
                self.say(without_usable_id());
                return None;
            }
            Ok(message) => {
                let asks = matches!(message, ClientJsonRpcMessage::Request(_));
                self.opened |= asks;
                return (self.opened || asks).then_some(message);
            }
            Err(error) => error,
        };
        let envelope = Envelope::of(line);
        if std::str::from_utf8(line).is_err() {
            self.answer(&envelope, &not_text());
        } else if envelope.asks_without_usable_id() {
            self.say(without_usable_id());
        } else if envelope.id().is_some() || envelope.method().is_none() {
            self.answer(&envelope, &wrong_shape(&error));
        }
        // Else a notification that nobody here knows: nobody waits for an answer.
        None
    }

    fn answer(&mut self, envelope: &Envelope, refusal: &Refusal) {
        self.say(unread(envelope.id(), envelope.method().as_deref(), refusal));
    }

    fn say(&mut self, message: ServerJsonRpcMessage) {
        let write = Arc::clone(&self.write);
        self.answers.spawn(async move {
            // Who does not listen need not be told.
            let _ = put(&write, &message).await;
        });
        while self.answers.try_join_next().is_some() {}
    }
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Transport<RoleServer> for Lines<S> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let write = Arc::clone(&self.write);
        async move { put(&write, &message).await }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            match self.read_line().await {
                Read::Line => {
                    if let Some(message) = self.message() {
                        return Some(message);
                    }
                }
                Read::TooLong(envelope) => self.answer(&envelope, &too_long()),
                Read::End => {
                    let gone = self.gone.clone();
                    self.answers.spawn(async move {
                        tokio::time::sleep(LINGER).await;
                        gone.cancel();
                    });
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.gone.cancel();
        match self.write.lock().await.take() {
            Some(mut write) => write.shutdown().await,
            None => Ok(()),
        }
    }
}

async fn put<W: AsyncWrite + Unpin>(
    write: &Mutex<Option<W>>,
    message: &ServerJsonRpcMessage,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut write = write.lock().await;
    let write = write.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    write.write_all(&line).await?;
    write.flush().await
}

/// The answer to what could not be read.
fn unread(id: Option<RequestId>, method: Option<&str>, refusal: &Refusal) -> ServerJsonRpcMessage {
    match (id, method) {
        (Some(id), Some("tools/call")) => {
            ServerJsonRpcMessage::response(ServerResult::CallToolResult(refusal.result()), id)
        }
        (Some(id), _) => {
            ServerJsonRpcMessage::error(ErrorData::invalid_request(refusal.text(), None), Some(id))
        }
        (None, _) => ServerJsonRpcMessage::error(ErrorData::parse_error(refusal.text(), None), None),
    }
}

fn without_usable_id() -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(ErrorData::invalid_request(no_usable_id().text(), None), None)
}

/// What is said about a request that cannot be answered under its id, here and over HTTP.
pub(crate) fn no_usable_id() -> Refusal {
    Refusal::of(
        "id",
        "it is neither a string nor an integer, so the request cannot be answered; nothing was placed",
        "give every request a string or an integer as its id, and one of its own",
    )
}

/// What is said about a message over the limit, here and over HTTP.
pub(crate) fn too_long() -> Refusal {
    Refusal::of(
        "prompt",
        format!("the message has more than {MAX_MESSAGE_BYTES} bytes; nothing was placed"),
        "put the long part into a file in the working folder and name it in the prompt",
    )
}

fn not_text() -> Refusal {
    Refusal::new(
        "the message is not valid UTF-8; nothing was placed",
        "send JSON in UTF-8, one message a line",
    )
}

fn wrong_shape(error: &serde_json::Error) -> Refusal {
    Refusal::new(
        format!("the message cannot be read as JSON-RPC ({error}); nothing was placed"),
        "send one object a line, such as {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}",
    )
}
