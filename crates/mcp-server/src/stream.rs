//! The transport over a byte stream: one JSON message per line.
//!
//! Owns the framing and its limits. Reads nothing while the connection has no free slot (see `capacity`). Answers lines that are not
//! valid messages, because a client may wait for the response: with a tool error for a tool call, so that the model learns the remedy,
//! otherwise with a protocol error. The transport of rmcp drops such lines, and the client would wait forever.

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

use crate::capacity::{ConnectionSlots, MessageMemory, RequestCapacity, RequestSlot};
use crate::envelope::Envelope;
use crate::message_errors::{self, MAX_MESSAGE_BYTES};
use crate::rejection::ToolRejection;

/// Time for responses after the client has closed its sending side: it may have piped its requests in and still read. Shorter than
/// the 5 s for which rmcp keeps the sending side open.
const LINGER: Duration = Duration::from_secs(3);

/// Size of the read buffer of a connection.
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// A long message that receives no byte for this long is rejected.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);

/// The connection of one client.
pub(crate) struct LineTransport<S> {
    read: BufReader<ReadHalf<S>>,
    /// The line so far. Not in the future of `receive`, which may be dropped: the next call continues it.
    line: PartialLine,
    slots: ConnectionSlots,
    /// The slot of the next request.
    slot: Option<RequestSlot>,
    /// Slots of the requests without a response.
    open: HashMap<RequestId, RequestSlot>,
    write: Arc<Mutex<Option<WriteHalf<S>>>>,
    /// Replies to invalid messages. Separate tasks, because a cancelled write would corrupt the stream.
    replies: JoinSet<()>,
    /// Is true after the first request. Notifications before it are dropped.
    has_request: bool,
    /// Cancelled when the client has disconnected.
    disconnected: CancellationToken,
}

/// The result of reading a line.
enum Incoming {
    Line(Vec<u8>, MessageMemory),
    Rejected(Envelope, ToolRejection),
    Eof,
}

/// A line without its newline so far.
struct PartialLine {
    capacity: Arc<RequestCapacity>,
    text: Vec<u8>,
    /// Memory reserved for the text.
    memory: MessageMemory,
    /// Time of the last chunk.
    last_chunk: Instant,
    /// Set for a line that is not stored: its envelope and the reason.
    rejected: Option<(Envelope, ToolRejection)>,
}

impl PartialLine {
    fn new(capacity: Arc<RequestCapacity>) -> Self {
        let memory = MessageMemory::new(Arc::clone(&capacity));
        Self { capacity, text: Vec::new(), memory, last_chunk: Instant::now(), rejected: None }
    }

    fn push(&mut self, chunk: &[u8]) {
        self.last_chunk = Instant::now();
        let length = self.text.len() + chunk.len();
        if self.rejected.is_none() && length > MAX_MESSAGE_BYTES {
            self.reject(message_errors::too_long());
        } else if self.rejected.is_none() && !self.memory.try_grow_to(length) {
            self.reject(message_errors::out_of_memory());
        }
        match &mut self.rejected {
            Some((envelope, _)) => envelope.feed(chunk),
            None => self.text.extend_from_slice(chunk),
        }
    }

    /// Rejects the line: keeps only its envelope and releases its memory.
    fn reject(&mut self, reason: ToolRejection) {
        let Incoming::Line(text, _) = self.finish() else { return };
        self.rejected = Some((Envelope::from_bytes(&text), reason));
    }

    /// Returns the line and starts the next one.
    fn finish(&mut self) -> Incoming {
        let memory = std::mem::replace(&mut self.memory, MessageMemory::new(Arc::clone(&self.capacity)));
        let text = std::mem::take(&mut self.text);
        match self.rejected.take() {
            Some((envelope, reason)) => Incoming::Rejected(envelope, reason),
            None => Incoming::Line(text, memory),
        }
    }

    /// Returns when the line counts as stalled. Only lines that use shared memory have a deadline.
    fn deadline(&self) -> Option<Instant> {
        self.memory.is_long().then(|| self.last_chunk + STALL_TIMEOUT)
    }
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> LineTransport<S> {
    pub fn new(stream: S, disconnected: CancellationToken, capacity: Arc<RequestCapacity>) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self {
            read: BufReader::with_capacity(READ_BUFFER_BYTES, read),
            line: PartialLine::new(Arc::clone(&capacity)),
            slots: ConnectionSlots::new(capacity),
            slot: None,
            open: HashMap::new(),
            write: Arc::new(Mutex::new(Some(write))),
            replies: JoinSet::new(),
            has_request: false,
            disconnected,
        }
    }

    /// Reads to the end of the line. Cancel-safe: a dropped future loses no byte.
    async fn read_line(&mut self) -> Incoming {
        loop {
            let filled = match self.line.deadline() {
                None => Some(self.read.fill_buf().await),
                Some(deadline) => timeout_at(deadline, self.read.fill_buf()).await.ok(),
            };
            let Some(filled) = filled else {
                self.line.reject(message_errors::stalled(STALL_TIMEOUT));
                continue;
            };
            let Ok(available) = filled else { return Incoming::Eof };
            if available.is_empty() {
                return Incoming::Eof;
            }
            let newline = available.iter().position(|byte| *byte == b'\n');
            self.line.push(&available[..newline.unwrap_or(available.len())]);
            let consumed = newline.map_or(available.len(), |at| at + 1);
            self.read.consume(consumed);
            if newline.is_some() {
                return self.line.finish();
            }
        }
    }

    /// Parses a line. Returns none for a line that was answered here or is ignored.
    fn parse(&mut self, line: &[u8]) -> Option<ClientJsonRpcMessage> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return None;
        }
        let error = match serde_json::from_slice::<ClientJsonRpcMessage>(line) {
            // rmcp parses a request with an invalid id as a notification.
            Ok(ClientJsonRpcMessage::Notification(_))
                if Envelope::from_bytes(line).is_request_with_invalid_id() =>
            {
                self.reply(invalid_id_error());
                return None;
            }
            Ok(message) => {
                self.has_request |= matches!(message, ClientJsonRpcMessage::Request(_));
                return self.has_request.then_some(message);
            }
            Err(error) => error,
        };
        let envelope = Envelope::from_bytes(line);
        if std::str::from_utf8(line).is_err() {
            self.reply_with(&envelope, &message_errors::invalid_utf8());
        } else if envelope.is_request_with_invalid_id() {
            self.reply(invalid_id_error());
        } else if envelope.id().is_some() || envelope.method().is_none() {
            self.reply_with(&envelope, &message_errors::invalid_json_rpc(&error));
        }
        // Otherwise an unknown notification, which gets no response.
        None
    }

    fn reply_with(&mut self, envelope: &Envelope, rejection: &ToolRejection) {
        self.reply(rejection_message(envelope.id(), envelope.method().as_deref(), rejection));
    }

    fn reply(&mut self, message: ServerJsonRpcMessage) {
        let (write, slot) = (Arc::clone(&self.write), self.slot.take());
        self.replies.spawn(async move {
            // Best effort: a client that has disconnected needs no reply.
            let _ = write_message(&write, &message).await;
            drop(slot);
        });
        while self.replies.try_join_next().is_some() {}
    }

    /// Assigns the slot of the read to the request, until its response is sent.
    fn assign_slot(&mut self, message: &mut ClientJsonRpcMessage, memory: MessageMemory) {
        match message {
            ClientJsonRpcMessage::Request(request) => {
                let Some(slot) = self.slot.take() else { return };
                slot.hold_message(memory);
                request.request.extensions_mut().insert(slot.clone());
                self.open.insert(request.id.clone(), slot);
            }
            // rmcp sends no response to a cancelled request. Its handler keeps the slot while it runs.
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

impl<S: AsyncRead + AsyncWrite + Send + 'static> Transport<RoleServer> for LineTransport<S> {
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
            let written = write_message(&write, &message).await;
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
                Incoming::Line(line, memory) => {
                    if let Some(mut message) = self.parse(&line) {
                        self.assign_slot(&mut message, memory);
                        return Some(message);
                    }
                }
                Incoming::Rejected(envelope, reason) => self.reply_with(&envelope, &reason),
                Incoming::Eof => {
                    let disconnected = self.disconnected.clone();
                    self.replies.spawn(async move {
                        tokio::time::sleep(LINGER).await;
                        disconnected.cancel();
                    });
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.disconnected.cancel();
        match self.write.lock().await.take() {
            Some(mut write) => write.shutdown().await,
            None => Ok(()),
        }
    }
}

async fn write_message<W: AsyncWrite + Unpin>(
    write: &Mutex<Option<W>>,
    message: &ServerJsonRpcMessage,
) -> io::Result<()> {
    let mut write = write.lock().await;
    let write = write.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    // Serialized under the lock: responses that wait for it are held in memory only once.
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    write.flush().await
}

/// Returns the reply to an invalid message.
fn rejection_message(
    id: Option<RequestId>,
    method: Option<&str>,
    rejection: &ToolRejection,
) -> ServerJsonRpcMessage {
    match (id, method) {
        (Some(id), Some("tools/call")) => {
            ServerJsonRpcMessage::response(ServerResult::CallToolResult(rejection.to_tool_result()), id)
        }
        (Some(id), _) => {
            ServerJsonRpcMessage::error(ErrorData::invalid_request(rejection.text(), None), Some(id))
        }
        (None, _) => ServerJsonRpcMessage::error(ErrorData::parse_error(rejection.text(), None), None),
    }
}

fn invalid_id_error() -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(ErrorData::invalid_request(message_errors::invalid_id().text(), None), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_long_line_is_rejected_and_its_memory_released() {
        let mut line = PartialLine::new(Arc::default());
        line.push(br#"{"jsonrpc":"2.0","id":7,"method":"ping"#);
        assert!(line.deadline().is_none(), "a short line has no deadline");
        line.push(&vec![b' '; 128 * 1024]);
        assert!(line.deadline().is_some());
        line.reject(message_errors::stalled(STALL_TIMEOUT));
        assert!(line.deadline().is_none() && line.text.capacity() == 0);
        line.push(br#""}"#);
        let Incoming::Rejected(envelope, reason) = line.finish() else { panic!("the line was accepted") };
        assert_eq!(
            (envelope.id(), reason),
            (Some(RequestId::Number(7)), message_errors::stalled(STALL_TIMEOUT))
        );
    }
}
