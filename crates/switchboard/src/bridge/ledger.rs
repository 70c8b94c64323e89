//! What the host has asked and not been answered: what has to be said again to the next daemon.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::message::{Message, look, mark};

/// A line with its end.
pub type Line = Arc<Vec<u8>>;

/// How often a request is said again. One that ends every daemon that hears it must not go on doing so.
const MOST_TRIES: u32 = 5;

/// A request without an answer.
#[derive(Debug)]
struct Open {
    id: String,
    line: Line,
    /// The key under which its job is placed, if it places one.
    key: Option<String>,
    tries: u32,
    /// The host wants no answer any more. Kept, with the number of the next request, until an answer to a later one proves that
    /// the daemon has read this; should the daemon die before, the next one has to hear both.
    cancelled: Option<(Line, u64)>,
}

/// What to do with a line of the host.
#[derive(Debug, PartialEq, Eq)]
pub enum FromHost {
    /// Pass it on; it is said again by [`Ledger::again`] if need be.
    Kept(Line),
    /// Pass it on; nobody keeps it.
    Loose(Line),
    /// An answer to a daemon that is gone.
    Stale,
    /// Answer it with this.
    Refused(Vec<u8>),
}

/// What is open between host and daemon.
#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    open: BTreeMap<u64, Open>,
    by_id: HashMap<String, u64>,
    /// The host's greeting: its id, itself, and whether it was answered.
    initialize: Option<(String, Line, bool)>,
    initialized: Option<Line>,
    /// What the daemon has asked the host.
    asked: HashSet<String>,
    /// The answer that the host already has.
    swallow: Option<String>,
}

impl Ledger {
    /// Takes down a line of the host.
    pub fn host_says(&mut self, mut line: Vec<u8>) -> FromHost {
        match look(&line) {
            // Two answers under one id cannot be told apart, and the job of one of the two would be nobody's.
            Message::Request { id, .. } if self.is_waiting_for(&id) => FromHost::Refused(twice(&id)),
            Message::Request { id, method } => {
                // It begins with when the host asked: a daemon that hears it later knows how much of the host's patience is left.
                let key = (method == "tools/call").then(|| uuid::Uuid::now_v7().to_string());
                if let Some(key) = &key {
                    mark(&mut line, key);
                }
                let line = Arc::new(line);
                if method == "initialize" {
                    (self.initialize, self.initialized) = (Some((id.clone(), line.clone(), false)), None);
                }
                self.open(id, line.clone(), key);
                FromHost::Kept(line)
            }
            Message::Notification { method, .. } if method == "notifications/initialized" => {
                let line = Arc::new(line);
                self.initialized = Some(line.clone());
                FromHost::Kept(line)
            }
            Message::Notification { cancels: Some(id), .. } => self.cancel(&id, Arc::new(line)),
            Message::Answer { id } if !self.asked.remove(&id) => FromHost::Stale,
            Message::Answer { .. } | Message::Notification { .. } | Message::Other => {
                FromHost::Loose(Arc::new(line))
            }
        }
    }

    fn open(&mut self, id: String, line: Line, key: Option<String>) {
        if let Some(former) = self.by_id.insert(id.clone(), self.next) {
            self.open.remove(&former);
        }
        self.open.insert(self.next, Open { id, line, key, tries: 0, cancelled: None });
        self.next += 1;
    }

    fn cancel(&mut self, id: &str, line: Line) -> FromHost {
        let next = self.next;
        match self.by_id.get(id).and_then(|number| self.open.get_mut(number)) {
            Some(open) => {
                open.cancelled = Some((line.clone(), next));
                FromHost::Kept(line)
            }
            None => FromHost::Loose(line),
        }
    }

    /// Takes down a line of the daemon. False: the host is not to see it.
    pub fn daemon_says(&mut self, line: &[u8]) -> bool {
        match look(line) {
            Message::Answer { id } if self.swallow.as_ref() == Some(&id) => {
                self.swallow = None;
                false
            }
            Message::Answer { id } => {
                self.answered(&id);
                true
            }
            Message::Request { id, .. } => {
                self.asked.insert(id);
                true
            }
            Message::Notification { .. } | Message::Other => true,
        }
    }

    fn answered(&mut self, id: &str) {
        if let Some((_, _, answered)) = self.initialize.as_mut().filter(|(initialize, ..)| initialize == id) {
            *answered = true;
        }
        let Some(number) = self.by_id.remove(id) else { return };
        self.open.remove(&number);
        let read = |open: &Open| open.cancelled.as_ref().is_some_and(|(_, before)| *before <= number);
        let by_id = &mut self.by_id;
        self.open.retain(|_, open| {
            let keep = !read(open);
            if !keep {
                by_id.remove(&open.id);
            }
            keep
        });
    }

    fn is_waiting_for(&self, id: &str) -> bool {
        let open = self.by_id.get(id).and_then(|number| self.open.get(number));
        open.is_some_and(|open| open.cancelled.is_none())
    }

    /// Whether somebody waits for an answer.
    pub fn is_waiting(&self) -> bool {
        self.open.values().any(|open| open.cancelled.is_none())
    }

    /// Everything that a new daemon has to hear before anything else.
    pub fn again(&mut self) -> Vec<Line> {
        self.asked.clear();
        self.swallow = None;
        let mut lines = Vec::new();
        let greeting =
            self.initialize.as_ref().map(|(id, line, answered)| (id.clone(), line.clone(), *answered));
        if let Some((id, line, true)) = &greeting {
            self.swallow = Some(id.clone());
            lines.push(line.clone());
            lines.extend(self.initialized.clone());
        }
        let mut over = Vec::new();
        for (number, open) in &mut self.open {
            open.tries += 1;
            lines.push(open.line.clone());
            // A host that did not wait for the answer has said this already, too.
            if greeting.as_ref().is_some_and(|(id, _, answered)| !answered && *id == open.id) {
                lines.extend(self.initialized.clone());
            }
            if let Some((cancel, _)) = &open.cancelled {
                lines.push(cancel.clone());
                over.push(*number);
            }
        }
        for number in over {
            self.close(number);
        }
        lines
    }

    /// Gives up the requests that were said too often, and answers them.
    pub fn give_up_worn(&mut self) -> Vec<Vec<u8>> {
        let worn: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| open.tries >= MOST_TRIES)
            .map(|(number, _)| *number)
            .collect();
        worn.into_iter().filter_map(|number| self.give_up(number, &self.worn_out(number))).collect()
    }

    /// Says why a request is given up, and how its job is found, should it have placed one.
    fn worn_out(&self, number: u64) -> String {
        let key = self.open.get(&number).and_then(|open| open.key.as_deref());
        let job = key.map_or_else(String::new, |key| {
            format!("; a call that it placed goes on: the same request with idempotency_key `{key}` returns that job")
        });
        format!(
            "the daemon ended {MOST_TRIES} times while this request was open{job}. hint: see its log (`switchboard config` prints the path)"
        )
    }

    /// Gives up every request, and answers it.
    pub fn give_up_all(&mut self, message: &str) -> Vec<Vec<u8>> {
        let all: Vec<u64> = self.open.keys().copied().collect();
        all.into_iter().filter_map(|number| self.give_up(number, message)).collect()
    }

    /// How often the most repeated request was said again.
    pub fn tries(&self) -> u32 {
        self.open.values().map(|open| open.tries).max().unwrap_or(0)
    }

    fn give_up(&mut self, number: u64, message: &str) -> Option<Vec<u8>> {
        let cancelled = self.open.get(&number)?.cancelled.is_some();
        let id = self.open.get(&number)?.id.clone();
        self.close(number);
        (!cancelled).then(|| failure(&id, message))
    }

    fn close(&mut self, number: u64) {
        if let Some(open) = self.open.remove(&number) {
            self.by_id.remove(&open.id);
        }
    }
}

/// An answer of the bridge's own. `id` is JSON.
pub fn failure(id: &str, message: &str) -> Vec<u8> {
    error(id, -32000, message)
}

fn twice(id: &str) -> Vec<u8> {
    let message = format!(
        "the request with the id {id} has no answer yet; this second one was not passed on. hint: give every request an id of its own"
    );
    error(id, -32600, &message)
}

fn error(id: &str, code: i32, message: &str) -> Vec<u8> {
    let message = serde_json::Value::from(message);
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{code},\"message\":{message}}}}}\n")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(ledger: &mut Ledger, line: &str) -> Option<String> {
        match ledger.host_says(line.as_bytes().to_vec()) {
            FromHost::Kept(line) | FromHost::Loose(line) => Some(String::from_utf8(line.to_vec()).unwrap()),
            FromHost::Stale | FromHost::Refused(_) => None,
        }
    }

    fn again(ledger: &mut Ledger) -> Vec<String> {
        ledger.again().iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
    }

    const INITIALIZE: &str = r#"{"id":0,"method":"initialize","params":{}}"#;
    const INITIALIZED: &str = r#"{"method":"notifications/initialized"}"#;

    #[test]
    fn what_is_open_is_said_again_in_its_order_and_with_the_same_mark() {
        let mut ledger = Ledger::default();
        host(&mut ledger, INITIALIZE);
        assert!(ledger.daemon_says(br#"{"id":0,"result":{}}"#));
        host(&mut ledger, INITIALIZED);
        let first = host(&mut ledger, r#"{"id":1,"method":"tools/call","params":{}}"#).unwrap();
        let second = host(&mut ledger, r#"{"id":"b","method":"tools/list"}"#).unwrap();
        host(&mut ledger, r#"{"id":3,"method":"ping"}"#);
        assert!(ledger.daemon_says(br#"{"id":3,"result":{}}"#));
        let expected = [INITIALIZE.to_owned(), INITIALIZED.to_owned(), first, second];
        assert_eq!(again(&mut ledger), expected);
        assert!(!ledger.daemon_says(br#"{"id":0,"result":{}}"#), "the host has this answer");
        assert_eq!(again(&mut ledger), expected, "and once more, to the one after");
        assert!(!ledger.daemon_says(br#"{"id":0,"result":{}}"#));
        assert!(ledger.daemon_says(br#"{"id":1,"result":{}}"#));
        assert!(ledger.is_waiting());
        assert!(ledger.daemon_says(br#"{"id":"b","result":{}}"#));
        assert!(!ledger.is_waiting());
    }

    #[test]
    fn a_greeting_without_an_answer_is_said_again_and_its_answer_is_the_hosts() {
        let mut ledger = Ledger::default();
        host(&mut ledger, INITIALIZE);
        assert_eq!(again(&mut ledger), [INITIALIZE]);
        let ping = r#"{"id":1,"method":"ping"}"#;
        host(&mut ledger, INITIALIZED);
        host(&mut ledger, ping);
        assert_eq!(again(&mut ledger), [INITIALIZE, INITIALIZED, ping], "a host may say all at once");
        assert!(ledger.daemon_says(br#"{"id":0,"result":{}}"#));
    }

    #[test]
    fn every_tool_call_has_a_mark_of_its_own() {
        let mut ledger = Ledger::default();
        let call = r#"{"id":1,"method":"tools/call","params":{"name":"a"}}"#;
        let one = host(&mut ledger, call).unwrap();
        ledger.daemon_says(br#"{"id":1,"result":{}}"#);
        let other = host(&mut ledger, call).unwrap();
        assert!(one.contains("switchboard/request") && other.contains("switchboard/request"));
        assert_ne!(one, other);
        let list = r#"{"id":2,"method":"tools/list","params":{}}"#;
        assert_eq!(host(&mut ledger, list).unwrap(), list);
    }

    #[test]
    fn a_cancellation_outlives_the_daemon_that_may_not_have_read_it() {
        let mut ledger = Ledger::default();
        let ping = r#"{"id":1,"method":"ping"}"#;
        let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":1}}"#;
        host(&mut ledger, ping);
        host(&mut ledger, cancel);
        assert!(!ledger.is_waiting(), "nobody waits for it");
        assert_eq!(again(&mut ledger), [ping, cancel]);
        assert_eq!(again(&mut ledger), Vec::<String>::new());
        host(&mut ledger, ping);
        host(&mut ledger, cancel);
        host(&mut ledger, r#"{"id":2,"method":"ping"}"#);
        assert!(ledger.daemon_says(br#"{"id":2,"result":{}}"#));
        assert_eq!(again(&mut ledger), Vec::<String>::new(), "a later answer proves that it was read");
    }

    #[test]
    fn an_id_is_free_again_when_its_request_is_answered_or_cancelled() {
        let mut ledger = Ledger::default();
        let ping = r#"{"id":"a","method":"ping"}"#;
        assert!(host(&mut ledger, ping).is_some());
        let FromHost::Refused(answer) = ledger.host_says(ping.as_bytes().to_vec()) else {
            panic!("passed on")
        };
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&"a".into(), &(-32600).into()));
        assert!(answer["error"]["message"].as_str().unwrap().contains(r#"the id "a""#), "{answer}");
        assert_eq!(again(&mut ledger), [ping], "and it is said only once to the next");
        ledger.daemon_says(br#"{"id":"a","result":{}}"#);
        assert!(host(&mut ledger, ping).is_some());
        host(&mut ledger, r#"{"method":"notifications/cancelled","params":{"requestId":"a"}}"#);
        assert!(host(&mut ledger, ping).is_some());
    }

    #[test]
    fn an_answer_to_a_daemon_that_is_gone_is_not_passed_to_the_next() {
        let mut ledger = Ledger::default();
        assert!(ledger.daemon_says(br#"{"id":5,"method":"roots/list"}"#));
        assert!(host(&mut ledger, r#"{"id":5,"result":{}}"#).is_some());
        assert!(ledger.daemon_says(br#"{"id":6,"method":"roots/list"}"#));
        ledger.again();
        assert_eq!(host(&mut ledger, r#"{"id":6,"result":{}}"#), None);
    }

    #[test]
    fn a_request_that_ends_every_daemon_is_given_up() {
        let mut ledger = Ledger::default();
        let asked = host(&mut ledger, r#"{"id":"x","method":"tools/call","params":{}}"#).unwrap();
        for _ in 0..MOST_TRIES {
            assert!(ledger.give_up_worn().is_empty());
            ledger.again();
        }
        let answers = ledger.give_up_worn();
        let answer: serde_json::Value = serde_json::from_slice(&answers[0]).unwrap();
        assert_eq!(answer["id"], "x");
        assert_eq!(answer["error"]["code"], -32000);
        // The key with which the host finds the job that may be there.
        let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
        let key = asked["params"]["_meta"]["switchboard/request"].as_str().unwrap();
        assert!(answer["error"]["message"].as_str().unwrap().contains(key), "{answer}");
        assert!(!ledger.is_waiting());
    }
}
