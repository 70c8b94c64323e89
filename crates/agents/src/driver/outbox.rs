//! The messages to an agent: each is sent once, also by several processes one after the other.
//!
//! Every message has a key, which can be read from its first bytes. A process that continues a conversation reads the input of the run
//! first; a message that is in it is not sent again. The last line of the input may be torn by the death of its writer. Since a driver
//! always produces the same bytes, its next message completes that line.

use std::collections::HashSet;

use super::json::Reader;
use super::lines::{Line, Lines};

/// The bytes of a sent message that are kept until its end, to read its key.
const HEAD_BYTES: usize = 4096;

/// The messages that were sent, and those that are to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    sent: HashSet<String>,
    /// The input so far. Its incomplete line is the torn message.
    input: Lines,
    unsent: Vec<u8>,
    is_closed: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { sent: HashSet::new(), input: Lines::new(HEAD_BYTES), unsent: Vec::new(), is_closed: false }
    }
}

impl Outbox {
    /// Notes bytes that were sent. The first of them are the first message of the driver, written before the start of the agent.
    pub(super) fn replay(&mut self, bytes: &[u8]) {
        self.mark_sent(bytes.len());
        let sent = &mut self.sent;
        self.input.feed(bytes, &mut |line| {
            let (Line::Whole(head) | Line::Oversized { head, .. }) = line;
            sent.extend(read_key(head));
        });
    }

    /// Sends a message, a line with its line feed, unless it was sent before.
    pub(super) fn send(&mut self, message: &[u8]) {
        if !read_key(message).is_none_or(|key| self.sent.insert(key)) {
            return;
        }
        let torn = self.input.take_incomplete();
        let rest = match torn {
            Some((head, length)) if message.starts_with(&head) => message.get(length..),
            Some(_) => None,
            None => Some(message),
        };
        match rest {
            Some(rest) => self.unsent.extend_from_slice(rest),
            // Something else was torn: its line ends here, and the agent skips it.
            None => self.unsent.extend([b"\n", message].concat()),
        }
    }

    /// Closes the input after the messages so far.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.unsent
    }

    pub(super) fn mark_sent(&mut self, count: usize) {
        self.unsent.drain(..count.min(self.unsent.len()));
        if self.unsent.is_empty() {
            self.unsent.shrink_to(HEAD_BYTES);
        }
    }
}

/// Returns the identity of a message: a request and its number, a notification and its method, or a reply and the id of its request.
/// Reads only the start of a message, where all writers put them.
fn read_key(line: &[u8]) -> Option<String> {
    let (mut id, mut method) = (None, None);
    // The rest of a long message is missing.
    let _ = Reader::new(line).object(|key, value| {
        match key {
            b"id" => id = Some(value.raw()?),
            b"method" => method = value.plain_string()?,
            _ => value.skip()?,
        }
        Ok(())
    });
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match (id, method) {
        (Some(id), Some(_)) => Some(format!("request {}", text(id))),
        (Some(id), None) => Some(format!("reply {}", text(id))),
        (None, Some(method)) => Some(format!("notification {}", text(method))),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] = b"{\"id\":1,\"method\":\"initialize\",\"params\":{}}\n";
    const SECOND: &[u8] = b"{\"id\":2,\"method\":\"session/new\",\"params\":{\"cwd\":\"/work\"}}\n";
    const REPLY: &[u8] = b"{\"id\":1,\"result\":{}}\n";

    #[test]
    fn each_message_is_sent_once() {
        let mut outbox = Outbox::default();
        for message in [FIRST, FIRST, REPLY, SECOND, REPLY] {
            outbox.send(message);
        }
        assert_eq!(outbox.unsent(), [FIRST, REPLY, SECOND].concat());
        outbox.mark_sent(FIRST.len() + REPLY.len());
        assert_eq!(outbox.unsent(), SECOND);
    }

    #[test]
    fn torn_message_is_completed_by_its_next_sender() {
        let whole = [FIRST, SECOND].concat();
        for cut in 0..=whole.len() {
            let mut outbox = Outbox::default();
            outbox.replay(&whole[..cut / 2]);
            outbox.replay(&whole[cut / 2..cut]);
            outbox.send(FIRST);
            outbox.send(SECOND);
            assert_eq!([&whole[..cut], outbox.unsent()].concat(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn long_torn_message_is_completed_by_its_length() {
        let long =
            format!("{{\"id\":3,\"method\":\"session/prompt\",\"params\":\"{}\"}}\n", "x".repeat(9_000));
        let mut outbox = Outbox::default();
        outbox.replay(&long.as_bytes()[..8_000]);
        outbox.send(long.as_bytes());
        assert_eq!(outbox.unsent(), &long.as_bytes()[8_000..]);
        let mut whole = Outbox::default();
        whole.replay(long.as_bytes());
        whole.send(long.as_bytes());
        assert_eq!(whole.unsent(), b"");
    }

    #[test]
    fn other_message_starts_after_a_torn_line() {
        let mut outbox = Outbox::default();
        outbox.replay(&FIRST[..12]);
        outbox.send(REPLY);
        assert_eq!(outbox.unsent(), [b"\n", REPLY].concat());
    }
}
