//! In-flight requests of the host, replayed to the next daemon after a reconnect.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::message::{McpMessage, add_request_key, classify};

/// A line with its line feed.
pub type MessageLine = Arc<Vec<u8>>;

/// The number of daemons that a request is replayed to. A request that crashes every daemon must not do so forever.
const MAX_ATTEMPTS: u32 = 5;

/// A request without a reply.
#[derive(Debug)]
struct PendingRequest {
    id: String,
    line: MessageLine,
    /// The idempotency key of a tool call.
    key: Option<String>,
    attempts: u32,
    /// The cancellation and the number of the next request. Kept until the reply to a later request proves that the daemon has read
    /// it; if the daemon dies before, both lines are replayed.
    cancelled: Option<(MessageLine, u64)>,
}

/// The treatment of a line of the host.
#[derive(Debug, PartialEq, Eq)]
pub enum HostLine {
    /// Forward it; [`InFlight::replay`] repeats it after a reconnect.
    Tracked(MessageLine),
    /// Forward it; it is not replayed.
    Untracked(MessageLine),
    /// Drop it: a reply to a daemon that is gone.
    Stale,
    /// Reply with this error.
    Rejected(Vec<u8>),
}

/// The in-flight messages between host and daemon.
#[derive(Debug, Default)]
pub struct InFlight {
    next: u64,
    pending: BTreeMap<u64, PendingRequest>,
    by_id: HashMap<String, u64>,
    /// The `initialize` request: its id, its line, and whether it has a reply.
    initialize: Option<(String, MessageLine, bool)>,
    initialized: Option<MessageLine>,
    /// The ids of the daemon's requests to the host.
    daemon_requests: HashSet<String>,
    /// The id of a replayed `initialize`, whose reply the host already has.
    suppressed_reply: Option<String>,
}

impl InFlight {
    /// Records a line of the host.
    pub fn on_host_line(&mut self, mut line: Vec<u8>) -> HostLine {
        match classify(&line) {
            // Two replies with one id would be indistinguishable, and one of the two jobs would be lost.
            McpMessage::Request { id, .. } if self.is_waiting_for(&id) => {
                HostLine::Rejected(duplicate_id_error(&id))
            }
            McpMessage::Request { id, method } => {
                // A UUIDv7 contains the time of the request, from which a later daemon computes the remaining wait.
                let key = (method == "tools/call").then(|| uuid::Uuid::now_v7().to_string());
                if let Some(key) = &key {
                    add_request_key(&mut line, key);
                }
                let line = Arc::new(line);
                if method == "initialize" {
                    (self.initialize, self.initialized) = (Some((id.clone(), line.clone(), false)), None);
                }
                self.insert(id, line.clone(), key);
                HostLine::Tracked(line)
            }
            McpMessage::Notification { method, .. } if method == "notifications/initialized" => {
                let line = Arc::new(line);
                self.initialized = Some(line.clone());
                HostLine::Tracked(line)
            }
            McpMessage::Notification { cancels: Some(id), .. } => self.cancel(&id, Arc::new(line)),
            McpMessage::Reply { id } if !self.daemon_requests.remove(&id) => HostLine::Stale,
            McpMessage::Reply { .. } | McpMessage::Notification { .. } | McpMessage::Other => {
                HostLine::Untracked(Arc::new(line))
            }
        }
    }

    fn insert(&mut self, id: String, line: MessageLine, key: Option<String>) {
        if let Some(previous) = self.by_id.insert(id.clone(), self.next) {
            self.pending.remove(&previous);
        }
        self.pending.insert(self.next, PendingRequest { id, line, key, attempts: 0, cancelled: None });
        self.next += 1;
    }

    fn cancel(&mut self, id: &str, line: MessageLine) -> HostLine {
        let next = self.next;
        match self.by_id.get(id).and_then(|number| self.pending.get_mut(number)) {
            Some(request) => {
                request.cancelled = Some((line.clone(), next));
                HostLine::Tracked(line)
            }
            None => HostLine::Untracked(line),
        }
    }

    /// Records a line of the daemon. Returns whether to forward it to the host.
    pub fn on_daemon_line(&mut self, line: &[u8]) -> bool {
        match classify(line) {
            McpMessage::Reply { id } if self.suppressed_reply.as_ref() == Some(&id) => {
                self.suppressed_reply = None;
                false
            }
            McpMessage::Reply { id } => {
                self.complete(&id);
                true
            }
            McpMessage::Request { id, .. } => {
                self.daemon_requests.insert(id);
                true
            }
            McpMessage::Notification { .. } | McpMessage::Other => true,
        }
    }

    fn complete(&mut self, id: &str) {
        if let Some((_, _, answered)) = self.initialize.as_mut().filter(|(initialize, ..)| initialize == id) {
            *answered = true;
        }
        let Some(number) = self.by_id.remove(id) else { return };
        self.pending.remove(&number);
        let is_read = |request: &PendingRequest| {
            request.cancelled.as_ref().is_some_and(|(_, before)| *before <= number)
        };
        let by_id = &mut self.by_id;
        self.pending.retain(|_, request| {
            let keep = !is_read(request);
            if !keep {
                by_id.remove(&request.id);
            }
            keep
        });
    }

    fn is_waiting_for(&self, id: &str) -> bool {
        let request = self.by_id.get(id).and_then(|number| self.pending.get(number));
        request.is_some_and(|request| request.cancelled.is_none())
    }

    /// Returns whether the host waits for a reply.
    pub fn is_waiting(&self) -> bool {
        self.pending.values().any(|request| request.cancelled.is_none())
    }

    /// Returns the lines to send to a new daemon first.
    pub fn replay(&mut self) -> Vec<MessageLine> {
        self.daemon_requests.clear();
        self.suppressed_reply = None;
        let mut lines = Vec::new();
        let initialize =
            self.initialize.as_ref().map(|(id, line, answered)| (id.clone(), line.clone(), *answered));
        if let Some((id, line, true)) = &initialize {
            self.suppressed_reply = Some(id.clone());
            lines.push(line.clone());
            lines.extend(self.initialized.clone());
        }
        let mut cancelled = Vec::new();
        for (number, request) in &mut self.pending {
            request.attempts += 1;
            lines.push(request.line.clone());
            // A host that did not wait for the reply has sent this already.
            if initialize.as_ref().is_some_and(|(id, _, answered)| !answered && *id == request.id) {
                lines.extend(self.initialized.clone());
            }
            if let Some((cancel, _)) = &request.cancelled {
                lines.push(cancel.clone());
                cancelled.push(*number);
            }
        }
        for number in cancelled {
            self.remove(number);
        }
        lines
    }

    /// Removes the requests without attempts left and returns their error replies.
    pub fn fail_exhausted(&mut self) -> Vec<Vec<u8>> {
        let exhausted: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, request)| request.attempts >= MAX_ATTEMPTS)
            .map(|(number, _)| *number)
            .collect();
        exhausted
            .into_iter()
            .filter_map(|number| self.fail(number, &self.exhausted_message(number)))
            .collect()
    }

    /// Describes the failure of a request, and how to find the job that it may have submitted.
    fn exhausted_message(&self, number: u64) -> String {
        let key = self.pending.get(&number).and_then(|request| request.key.as_deref());
        let job = key.map_or_else(String::new, |key| {
            format!(
                "; a submitted call continues: the same request with idempotency_key `{key}` returns its job"
            )
        });
        format!(
            "the daemon exited {MAX_ATTEMPTS} times in a row while handling this request{job}. hint: ask the user to check Switchboard's log"
        )
    }

    /// Removes all requests and returns their error replies.
    pub fn fail_all(&mut self, message: &str) -> Vec<Vec<u8>> {
        let all: Vec<u64> = self.pending.keys().copied().collect();
        all.into_iter().filter_map(|number| self.fail(number, message)).collect()
    }

    /// Returns the largest number of attempts of a request.
    pub fn max_attempts(&self) -> u32 {
        self.pending.values().map(|request| request.attempts).max().unwrap_or(0)
    }

    fn fail(&mut self, number: u64, message: &str) -> Option<Vec<u8>> {
        let is_cancelled = self.pending.get(&number)?.cancelled.is_some();
        let id = self.pending.get(&number)?.id.clone();
        self.remove(number);
        (!is_cancelled).then(|| error_reply(&id, message))
    }

    fn remove(&mut self, number: u64) {
        if let Some(request) = self.pending.remove(&number) {
            self.by_id.remove(&request.id);
        }
    }
}

/// Creates an error reply of the bridge. `id` is JSON.
pub fn error_reply(id: &str, message: &str) -> Vec<u8> {
    error_with_code(id, -32000, message)
}

fn duplicate_id_error(id: &str) -> Vec<u8> {
    let message = format!(
        "the request with the id {id} has no reply yet; the second one was not forwarded. hint: use a unique id for every request"
    );
    error_with_code(id, -32600, &message)
}

fn error_with_code(id: &str, code: i32, message: &str) -> Vec<u8> {
    let message = serde_json::Value::from(message);
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{code},\"message\":{message}}}}}\n")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_host(in_flight: &mut InFlight, line: &str) -> Option<String> {
        match in_flight.on_host_line(line.as_bytes().to_vec()) {
            HostLine::Tracked(line) | HostLine::Untracked(line) => {
                Some(String::from_utf8(line.to_vec()).unwrap())
            }
            HostLine::Stale | HostLine::Rejected(_) => None,
        }
    }

    fn replay(in_flight: &mut InFlight) -> Vec<String> {
        in_flight.replay().iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
    }

    const INITIALIZE: &str = r#"{"id":0,"method":"initialize","params":{}}"#;
    const INITIALIZED: &str = r#"{"method":"notifications/initialized"}"#;

    #[test]
    fn in_flight_requests_are_replayed_in_order_with_same_id() {
        let mut in_flight = InFlight::default();
        send_host(&mut in_flight, INITIALIZE);
        assert!(in_flight.on_daemon_line(br#"{"id":0,"result":{}}"#));
        send_host(&mut in_flight, INITIALIZED);
        let first = send_host(&mut in_flight, r#"{"id":1,"method":"tools/call","params":{}}"#).unwrap();
        let second = send_host(&mut in_flight, r#"{"id":"b","method":"tools/list"}"#).unwrap();
        send_host(&mut in_flight, r#"{"id":3,"method":"ping"}"#);
        assert!(in_flight.on_daemon_line(br#"{"id":3,"result":{}}"#));
        let expected = [INITIALIZE.to_owned(), INITIALIZED.to_owned(), first, second];
        assert_eq!(replay(&mut in_flight), expected);
        assert!(!in_flight.on_daemon_line(br#"{"id":0,"result":{}}"#), "the host has this reply");
        assert_eq!(replay(&mut in_flight), expected, "and again for the daemon after it");
        assert!(!in_flight.on_daemon_line(br#"{"id":0,"result":{}}"#));
        assert!(in_flight.on_daemon_line(br#"{"id":1,"result":{}}"#));
        assert!(in_flight.is_waiting());
        assert!(in_flight.on_daemon_line(br#"{"id":"b","result":{}}"#));
        assert!(!in_flight.is_waiting());
    }

    #[test]
    fn unanswered_initialize_is_replayed_and_reply_forwarded() {
        let mut in_flight = InFlight::default();
        send_host(&mut in_flight, INITIALIZE);
        assert_eq!(replay(&mut in_flight), [INITIALIZE]);
        let ping = r#"{"id":1,"method":"ping"}"#;
        send_host(&mut in_flight, INITIALIZED);
        send_host(&mut in_flight, ping);
        assert_eq!(replay(&mut in_flight), [INITIALIZE, INITIALIZED, ping], "a host may send all at once");
        assert!(in_flight.on_daemon_line(br#"{"id":0,"result":{}}"#));
    }

    #[test]
    fn every_tool_call_has_a_unique_request_key() {
        let mut in_flight = InFlight::default();
        let call = r#"{"id":1,"method":"tools/call","params":{"name":"a"}}"#;
        let one = send_host(&mut in_flight, call).unwrap();
        in_flight.on_daemon_line(br#"{"id":1,"result":{}}"#);
        let other = send_host(&mut in_flight, call).unwrap();
        assert!(one.contains("switchboard/request") && other.contains("switchboard/request"));
        assert_ne!(one, other);
        let list = r#"{"id":2,"method":"tools/list","params":{}}"#;
        assert_eq!(send_host(&mut in_flight, list).unwrap(), list);
    }

    #[test]
    fn unread_cancellation_is_replayed() {
        let mut in_flight = InFlight::default();
        let ping = r#"{"id":1,"method":"ping"}"#;
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#;
        send_host(&mut in_flight, ping);
        send_host(&mut in_flight, cancel);
        assert!(!in_flight.is_waiting(), "the host does not wait for it");
        assert_eq!(replay(&mut in_flight), [ping, cancel]);
        assert_eq!(replay(&mut in_flight), Vec::<String>::new());
        send_host(&mut in_flight, ping);
        send_host(&mut in_flight, cancel);
        send_host(&mut in_flight, r#"{"id":2,"method":"ping"}"#);
        assert!(in_flight.on_daemon_line(br#"{"id":2,"result":{}}"#));
        assert_eq!(replay(&mut in_flight), Vec::<String>::new(), "a later reply proves that it was read");
    }

    #[test]
    fn request_id_is_reusable_after_reply_or_cancellation() {
        let mut in_flight = InFlight::default();
        let ping = r#"{"id":"a","method":"ping"}"#;
        assert!(send_host(&mut in_flight, ping).is_some());
        let HostLine::Rejected(answer) = in_flight.on_host_line(ping.as_bytes().to_vec()) else {
            panic!("forwarded")
        };
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&"a".into(), &(-32600).into()));
        assert!(answer["error"]["message"].as_str().unwrap().contains(r#"the id "a""#), "{answer}");
        assert_eq!(replay(&mut in_flight), [ping], "and it is replayed only once");
        in_flight.on_daemon_line(br#"{"id":"a","result":{}}"#);
        assert!(send_host(&mut in_flight, ping).is_some());
        send_host(&mut in_flight, r#"{"method":"notifications/cancelled","params":{"requestId":"a"}}"#);
        assert!(send_host(&mut in_flight, ping).is_some());
    }

    #[test]
    fn reply_for_dead_daemon_is_dropped() {
        let mut in_flight = InFlight::default();
        assert!(in_flight.on_daemon_line(br#"{"id":5,"method":"roots/list"}"#));
        assert!(send_host(&mut in_flight, r#"{"id":5,"result":{}}"#).is_some());
        assert!(in_flight.on_daemon_line(br#"{"id":6,"method":"roots/list"}"#));
        in_flight.replay();
        assert_eq!(send_host(&mut in_flight, r#"{"id":6,"result":{}}"#), None);
    }

    #[test]
    fn request_is_failed_after_crashing_five_daemons() {
        let mut in_flight = InFlight::default();
        let request = send_host(&mut in_flight, r#"{"id":"x","method":"tools/call","params":{}}"#).unwrap();
        for _ in 0..MAX_ATTEMPTS {
            assert!(in_flight.fail_exhausted().is_empty());
            in_flight.replay();
        }
        let answers = in_flight.fail_exhausted();
        let answer: serde_json::Value = serde_json::from_slice(&answers[0]).unwrap();
        assert_eq!(answer["id"], "x");
        assert_eq!(answer["error"]["code"], -32000);
        // The key by which the host finds a job that was submitted.
        let request: serde_json::Value = serde_json::from_str(&request).unwrap();
        let key = request["params"]["_meta"]["switchboard/request"].as_str().unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(key), "{answer}");
        assert!(message.starts_with("the daemon exited 5 times in a row"), "{answer}");
        assert!(message.contains("ask the user to check Switchboard's log"), "{answer}");
        assert!(!in_flight.is_waiting());
    }
}
