//! Finds the id and the method of a message that cannot be parsed.
//!
//! The client of an oversized, truncated or malformed message still waits for a response with the right id, and SDKs put the id last.
//! The scanner reads the outermost object in chunks and stores only these two values, so its memory does not depend on the length of
//! the message. `serde_json` needs the whole message, in UTF-8. No figure depends on the scanner: it is here for
//! `oversized_message_is_rejected_with_its_id` and `invalid_utf8_gets_an_error`.

use rmcp::model::RequestId;

/// Maximum number of bytes that are stored of a value.
const MAX_VALUE_BYTES: usize = 256;

/// The id and the method of a message.
#[derive(Debug, Default)]
pub(crate) struct Envelope {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The part that the next bytes belong to.
    part: MessagePart,
    key: Vec<u8>,
    /// None before an `id` key.
    id: Option<Vec<u8>>,
    method: Vec<u8>,
}

/// A part of the outermost object.
#[derive(Debug, Default, Clone, Copy)]
enum MessagePart {
    Key,
    Id,
    Method,
    /// Not stored.
    #[default]
    Other,
}

impl Envelope {
    /// Scans a whole message.
    pub fn from_bytes(message: &[u8]) -> Self {
        let mut envelope = Self::default();
        envelope.feed(message);
        envelope
    }

    /// Scans the next chunk.
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.scan(*byte);
        }
    }

    /// Returns the id, if it is a valid one.
    pub fn id(&self) -> Option<RequestId> {
        serde_json::from_slice(self.id.as_ref()?).ok()
    }

    /// Returns whether the message is a request with an invalid id: neither an integer nor a string, or a string with half a surrogate
    /// pair. A notification is no request, even with an id.
    pub fn is_request_with_invalid_id(&self) -> bool {
        // A longer string is stored only in part and may be valid.
        let is_complete = |id: &[u8]| id.len() < MAX_VALUE_BYTES || !id.trim_ascii().starts_with(b"\"");
        let is_invalid = self.id.as_ref().is_some_and(|id| is_complete(id) && self.id().is_none());
        is_invalid && self.method().is_some_and(|method| !method.starts_with("notifications/"))
    }

    /// Returns the method.
    pub fn method(&self) -> Option<String> {
        serde_json::from_slice(&self.method).ok()
    }

    fn scan(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return self.store(byte);
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.depth = self.depth.saturating_add(1);
                if self.depth == 1 {
                    self.start_key();
                    return;
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    // The rest belongs to no value.
                    self.part = MessagePart::Other;
                    return;
                }
            }
            b',' if self.depth == 1 => return self.start_key(),
            b':' if self.depth == 1 => return self.start_value(),
            _ => {}
        }
        self.store(byte);
    }

    fn start_key(&mut self) {
        self.part = MessagePart::Key;
        self.key.clear();
    }

    /// Starts a value. For duplicate keys, the last value wins.
    fn start_value(&mut self) {
        self.part = match self.key.trim_ascii() {
            b"\"id\"" => {
                self.id = Some(Vec::new());
                MessagePart::Id
            }
            b"\"method\"" => {
                self.method.clear();
                MessagePart::Method
            }
            _ => MessagePart::Other,
        };
    }

    fn store(&mut self, byte: u8) {
        let value = match self.part {
            MessagePart::Key => &mut self.key,
            MessagePart::Id => self.id.get_or_insert_default(),
            MessagePart::Method => &mut self.method,
            MessagePart::Other => return,
        };
        if self.depth <= 1 && value.len() < MAX_VALUE_BYTES {
            value.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> (Option<RequestId>, Option<String>) {
        let envelope = Envelope::from_bytes(message);
        (envelope.id(), envelope.method())
    }

    #[test]
    fn id_and_method_are_found_at_any_position() {
        let expected = (Some(RequestId::Number(7)), Some("tools/call".to_owned()));
        for message in [
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"id":1,"method":"x"}}"#,
            r#"{"params":{"arguments":{"prompt":"\"id\":9, \\"}},"method" : "tools/call","id": 7 }"#,
            r#"{"method":"tools/call","params":[{"id":3}],"id":7"#,
            r#"{"id":83,"method":"ping","id":7,"method":"tools/call"}"#,
        ] {
            assert_eq!(read(message.as_bytes()), expected, "{message}");
        }
    }

    #[test]
    fn invalid_utf8_does_not_hide_the_id() {
        let message = b"{\"method\":\"tools/call\",\"params\":{\"prompt\":\"\xff\xfe\"},\"id\":\"a\"}";
        assert_eq!(read(message), (Some(RequestId::String("a".into())), Some("tools/call".to_owned())));
    }

    #[test]
    fn invalid_id_is_not_returned() {
        for message in ["", "hello", "[1,2]", r#"{"id":{}}"#, r#"{"id":null}"#, r#""id":7"#, r#"{"id":1.5}"#]
        {
            assert_eq!(read(message.as_bytes()).0, None, "{message}");
        }
    }

    #[test]
    fn only_requests_are_rejected_for_an_invalid_id() {
        for id in ["1.5", "null", "{}", "[7]", "true", "99999999999999999999", r#""\ud800""#, r#""a\udc00b""#]
        {
            let is_rejected = |method: &str| {
                Envelope::from_bytes(format!(r#"{{"id":{id},"method":"{method}"}}"#).as_bytes())
                    .is_request_with_invalid_id()
            };
            assert!(is_rejected("ping") && !is_rejected("notifications/initialized"), "{id}");
        }
        let long = format!(r#"{{"id":"{}","method":"ping"}}"#, "x".repeat(2 * MAX_VALUE_BYTES));
        for message in [
            r#"{"id":7,"method":"ping"}"#,
            r#"{"method":"ping","params":{"id":1.5}}"#,
            r#"{"id":null}"#,
            &long,
        ] {
            assert!(!Envelope::from_bytes(message.as_bytes()).is_request_with_invalid_id(), "{message}");
        }
    }
}
