//! Drivers that talk to their agents: what they send, and that a process which continues a conversation sends nothing twice.

mod acp;
mod acp_failures;
mod app_server;
mod recorded;
mod replay;

use agents::{Driver, DriverSpec, ParseLimits, Summary};
use model::AgentEvent;

/// The course of a conversation.
struct Course {
    /// The bytes that were sent before the first line of output, and after each.
    input: Vec<Vec<u8>>,
    events: Vec<AgentEvent<'static>>,
    closed: bool,
    summary: Summary,
}

impl Course {
    /// Returns all sent bytes.
    fn sent(&self) -> Vec<u8> {
        self.input.concat()
    }

    /// Returns the sent messages.
    fn messages(&self) -> Vec<serde_json::Value> {
        let sent = self.sent();
        let lines = sent.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    fn methods(&self) -> Vec<String> {
        let method = |message: &serde_json::Value| message["method"].as_str().unwrap_or("reply").to_owned();
        self.messages().iter().map(method).collect()
    }
}

/// Removes and returns the bytes that a driver wants to send.
fn take_unsent(driver: &mut Driver) -> Vec<u8> {
    let bytes = driver.unsent().to_vec();
    driver.mark_sent(bytes.len());
    bytes
}

/// Lets a driver read lines of output, with a silence after each.
fn converse(spec: &DriverSpec, lines: &[&str]) -> Course {
    let mut driver = Driver::new(spec, ParseLimits::default());
    let mut input = vec![take_unsent(&mut driver)];
    let mut events = Vec::new();
    for line in lines {
        driver.feed(format!("{line}\n").as_bytes(), &mut |event| events.push(event.into_owned()));
        if driver.awaits_silence().is_some() {
            driver.on_silence();
        }
        input.push(take_unsent(&mut driver));
    }
    let closed = driver.closes_input();
    let summary = driver.finish(&mut |event| events.push(event.into_owned()));
    Course { input, events, closed, summary }
}
