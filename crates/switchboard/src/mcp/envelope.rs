//! What can be told of a message that cannot be read: its id and its method.
//!
//! A message that is too long, or not UTF-8, or of the wrong shape still has somebody waiting for its answer. The scanner looks
//! only at the outermost object and keeps nothing else, so it costs no memory however long the message is.

use rmcp::model::RequestId;

/// How much of a value is kept: an id or the name of a method.
const KEPT_BYTES: usize = 256;

/// Reads a message byte by byte.
#[derive(Debug, Default)]
pub(crate) struct Envelope {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Whether the next string at the outermost level is a key.
    at_key: bool,
    key: Vec<u8>,
    /// None as long as no id has been seen.
    id: Option<Vec<u8>>,
    method: Vec<u8>,
}

impl Envelope {
    /// That of a whole message.
    pub fn of(message: &[u8]) -> Self {
        let mut envelope = Self::default();
        envelope.feed(message);
        envelope
    }

    /// Reads on.
    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.take(*byte);
        }
    }

    /// The id, when the message has a usable one.
    pub fn id(&self) -> Option<RequestId> {
        serde_json::from_slice(self.id.as_ref()?).ok()
    }

    /// Whether it asks for something under an id under which nothing can be answered: neither a whole number nor a text, or one with half
    /// a surrogate pair in it. A notification asks for nothing, even with an id.
    pub fn asks_without_usable_id(&self) -> bool {
        // A text that is longer than its kept part may be a good one.
        let is_known = |id: &[u8]| id.len() < KEPT_BYTES || !id.trim_ascii().starts_with(b"\"");
        let is_none = self.id.as_ref().is_some_and(|id| is_known(id) && self.id().is_none());
        is_none && self.method().is_some_and(|method| !method.starts_with("notifications/"))
    }

    /// The method.
    pub fn method(&self) -> Option<String> {
        serde_json::from_slice(&self.method).ok()
    }

    fn take(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return self.keep(byte);
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.depth = self.depth.saturating_add(1);
                if self.depth == 1 {
                    self.begin_key();
                    return;
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    // What follows is no part of any value.
                    self.key.clear();
                    return;
                }
            }
            b',' if self.depth == 1 => return self.begin_key(),
            b':' if self.depth == 1 => return self.begin_value(),
            _ => {}
        }
        self.keep(byte);
    }

    fn begin_key(&mut self) {
        self.at_key = true;
        self.key.clear();
    }

    /// Of values with the same key, the last one counts.
    fn begin_value(&mut self) {
        self.at_key = false;
        match self.key.trim_ascii() {
            b"\"id\"" => self.id = Some(Vec::new()),
            b"\"method\"" => self.method.clear(),
            _ => {}
        }
    }

    fn keep(&mut self, byte: u8) {
        let kept = match (self.at_key, self.key.trim_ascii()) {
            (true, _) => &mut self.key,
            (false, b"\"id\"") => self.id.get_or_insert_default(),
            (false, b"\"method\"") => &mut self.method,
            _ => return,
        };
        if self.depth <= 1 && kept.len() < KEPT_BYTES {
            kept.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> (Option<RequestId>, Option<String>) {
        let envelope = Envelope::of(message);
        (envelope.id(), envelope.method())
    }

    #[test]
    fn id_and_method_are_found_wherever_they_stand() {
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
    fn bytes_that_are_no_text_do_not_hide_the_id() {
        let message = b"{\"method\":\"tools/call\",\"params\":{\"prompt\":\"\xff\xfe\"},\"id\":\"a\"}";
        assert_eq!(read(message), (Some(RequestId::String("a".into())), Some("tools/call".to_owned())));
    }

    #[test]
    fn what_has_no_usable_id_has_none() {
        for message in ["", "hello", "[1,2]", r#"{"id":{}}"#, r#"{"id":null}"#, r#""id":7"#, r#"{"id":1.5}"#]
        {
            assert_eq!(read(message.as_bytes()).0, None, "{message}");
        }
    }

    #[test]
    fn who_asks_under_an_id_that_is_none_is_told_from_who_does_not_ask() {
        for id in ["1.5", "null", "{}", "[7]", "true", "99999999999999999999", r#""\ud800""#, r#""a\udc00b""#]
        {
            let asks = |method: &str| {
                Envelope::of(format!(r#"{{"id":{id},"method":"{method}"}}"#).as_bytes())
                    .asks_without_usable_id()
            };
            assert!(asks("ping") && !asks("notifications/initialized"), "{id}");
        }
        let long = format!(r#"{{"id":"{}","method":"ping"}}"#, "x".repeat(2 * KEPT_BYTES));
        for message in [
            r#"{"id":7,"method":"ping"}"#,
            r#"{"method":"ping","params":{"id":1.5}}"#,
            r#"{"id":null}"#,
            &long,
        ] {
            assert!(!Envelope::of(message.as_bytes()).asks_without_usable_id(), "{message}");
        }
    }
}
