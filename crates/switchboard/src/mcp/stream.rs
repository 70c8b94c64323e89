//! One message a line, over any stream of bytes.
//!
//! Owns the framing and its bounds. Reads nothing while the connection has no free slot (see `capacity`). What cannot be read as a
//! message is answered, because somebody may wait for it: with a tool's error where a tool was called, so that the model behind it learns
//! what to do, else with an error of the protocol. rmcp's own transport drops such lines, and the caller would wait for ever.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorData, GetExtensions, JsonRpcNotification, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::MAX_MESSAGE_BYTES;
use super::capacity::{ConnectionSlots, MessageBytes, RequestCapacity, RequestSlot};
use super::envelope::Envelope;
use super::refusal::Refusal;

/// How long calls may still answer when the client has closed its side: it may have piped its requests in and be reading on. Less
/// than the 5 s for which rmcp keeps the other side open.
const LINGER: Duration = Duration::from_secs(3);

/// How much is read at once. Every connection has a buffer of this size.
const READ_BYTES: usize = 16 * 1024;
/// For how long the rest of a long message may fail to come.
const STALLED_AFTER: Duration = Duration::from_mins(1);

/// The connection of one client.
pub(crate) struct Lines<S> {
    read: BufReader<ReadHalf<S>>,
    /// The line so far. Here and not in a future: what `receive` has begun is gone on with by the next.
    line: PartialLine,
    slots: ConnectionSlots,
    /// The slot of the next request.
    slot: Option<RequestSlot>,
    /// The slots of the requests that have no answer yet.
    open: HashMap<RequestId, RequestSlot>,
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
    Line(Vec<u8>, MessageBytes),
    Skipped(Envelope, Refusal),
    End,
}

/// A line whose end has not been read.
struct PartialLine {
    capacity: Arc<RequestCapacity>,
    text: Vec<u8>,
    /// The memory that is reserved for it.
    bytes: MessageBytes,
    /// When its last piece came.
    grew: Instant,
    /// What is known of a line that is not kept, and why it is not.
    skipped: Option<(Envelope, Refusal)>,
}

impl PartialLine {
    fn new(capacity: Arc<RequestCapacity>) -> Self {
        let bytes = MessageBytes::new(Arc::clone(&capacity));
        Self { capacity, text: Vec::new(), bytes, grew: Instant::now(), skipped: None }
    }

    fn push(&mut self, piece: &[u8]) {
        self.grew = Instant::now();
        let length = self.text.len() + piece.len();
        if self.skipped.is_none() && length > MAX_MESSAGE_BYTES {
            self.skip(too_long());
        } else if self.skipped.is_none() && !self.bytes.grow_to(length) {
            self.skip(busy());
        }
        match &mut self.skipped {
            Some((envelope, _)) => envelope.feed(piece),
            None => self.text.extend_from_slice(piece),
        }
    }

    /// Keeps no more than is needed to refuse the line, and gives its memory back.
    fn skip(&mut self, why: Refusal) {
        let Read::Line(text, _) = self.finish() else { return };
        self.skipped = Some((Envelope::of(&text), why));
    }

    /// Takes the line, and starts the next.
    fn finish(&mut self) -> Read {
        let bytes = std::mem::replace(&mut self.bytes, MessageBytes::new(Arc::clone(&self.capacity)));
        let text = std::mem::take(&mut self.text);
        self.skipped.take().map_or(Read::Line(text, bytes), |(envelope, why)| Read::Skipped(envelope, why))
    }

    /// Returns when a line that uses memory which others may need counts as given up.
    fn deadline(&self) -> Option<Instant> {
        self.bytes.is_long().then(|| self.grew + STALLED_AFTER)
    }
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Lines<S> {
    pub fn new(stream: S, gone: CancellationToken, capacity: Arc<RequestCapacity>) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self {
            read: BufReader::with_capacity(READ_BYTES, read),
            line: PartialLine::new(Arc::clone(&capacity)),
            slots: ConnectionSlots::new(capacity),
            slot: None,
            open: HashMap::new(),
            write: Arc::new(Mutex::new(Some(write))),
            answers: JoinSet::new(),
            opened: false,
            gone,
        }
    }

    /// Reads to the end of the line. Dropping the future loses nothing.
    async fn read_line(&mut self) -> Read {
        loop {
            let filled = match self.line.deadline() {
                None => Some(self.read.fill_buf().await),
                Some(deadline) => timeout_at(deadline, self.read.fill_buf()).await.ok(),
            };
            let Some(filled) = filled else {
                self.line.skip(stalled());
                continue;
            };
            let Ok(available) = filled else { return Read::End };
            if available.is_empty() {
                return Read::End;
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            self.line.push(&available[..newline.unwrap_or(available.len())]);
            let taken = newline.map_or(available.len(), |at| at + 1);
            self.read.consume(taken);
            if newline.is_some() {
                return self.line.finish();
            }
        }
    }

    /// Takes the line that was read apart: a message, or nothing when it was answered or is to be passed over.
    fn message(&mut self, line: &[u8]) -> Option<ClientJsonRpcMessage> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
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
        let (write, slot) = (Arc::clone(&self.write), self.slot.take());
        self.answers.spawn(async move {
            // Who does not listen need not be told.
            let _ = put(&write, &message).await;
            drop(slot);
        });
        while self.answers.try_join_next().is_some() {}
    }
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Lines<S> {
    /// Gives a request the slot that it was read with, until it is answered.
    fn assign_slot(&mut self, message: &mut ClientJsonRpcMessage, bytes: MessageBytes) {
        match message {
            ClientJsonRpcMessage::Request(request) => {
                let Some(slot) = self.slot.take() else { return };
                slot.cover(bytes);
                request.request.extensions_mut().insert(slot.clone());
                self.open.insert(request.id.clone(), slot);
            }
            // rmcp sends no answer to a request that was cancelled; its handler keeps the slot while it runs.
            ClientJsonRpcMessage::Notification(JsonRpcNotification {
                notification: ClientNotification::CancelledNotification(cancelled),
                ..
            }) => {
                if let Some(request) = &cancelled.params.request_id {
                    self.open.remove(request);
                }
            }
            _ => {}
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Transport<RoleServer> for Lines<S> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let answered = match &message {
            ServerJsonRpcMessage::Response(response) => Some(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        let slot = answered.and_then(|id| self.open.remove(id));
        let write = Arc::clone(&self.write);
        async move {
            let written = put(&write, &message).await;
            drop(slot);
            written
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if self.slot.is_none() {
                self.slot = Some(self.slots.acquire().await);
            }
            match self.read_line().await {
                Read::Line(line, bytes) => {
                    if let Some(mut message) = self.message(&line) {
                        self.assign_slot(&mut message, bytes);
                        return Some(message);
                    }
                }
                Read::Skipped(envelope, why) => self.answer(&envelope, &why),
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
    let mut write = write.lock().await;
    let write = write.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    // Not earlier: of the answers that wait for their turn, none is held twice.
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
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
        "put the long part into a file in the working directory and refer to it in the prompt",
    )
}

/// Refuses a long message while the daemon holds many, here and over HTTP.
pub(crate) fn busy() -> Refusal {
    Refusal::new(
        "the daemon holds as many long messages as it can; nothing was placed",
        "try again, or put the long part into a file in the working directory and refer to it in the prompt",
    )
}

fn stalled() -> Refusal {
    Refusal::new(
        format!("the message did not arrive within {} s; nothing was placed", STALLED_AFTER.as_secs()),
        "send a long message in one go",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_that_stalls_gives_its_memory_back_and_is_refused() {
        let mut line = PartialLine::new(Arc::default());
        line.push(br#"{"jsonrpc":"2.0","id":7,"method":"ping"#);
        assert!(line.deadline().is_none(), "a short line may take its time");
        line.push(&vec![b' '; 128 * 1024]);
        assert!(line.deadline().is_some());
        line.skip(stalled());
        assert!(line.deadline().is_none() && line.text.capacity() == 0);
        line.push(br#""}"#);
        let Read::Skipped(envelope, why) = line.finish() else { panic!("the line was kept") };
        assert_eq!((envelope.id(), why), (Some(RequestId::Number(7)), stalled()));
    }
}
