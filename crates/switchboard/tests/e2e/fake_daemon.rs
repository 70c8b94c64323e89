//! A fake daemon: a real peer on the socket that speaks the protocol and disconnects when the test says so.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{Value, json};

use crate::harness::{Harness, hold_lock};

pub struct FakeDaemon {
    listener: UnixListener,
    _lock: File,
}

impl FakeDaemon {
    /// Listens in place of the daemon of a home.
    pub fn new(harness: &Harness) -> Self {
        let mut lock = hold_lock(harness);
        let socket = harness.scratch().join("played.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let holder = json!({"pid": std::process::id(), "version": "0.0.0", "socket": socket});
        lock.write_all(holder.to_string().as_bytes()).unwrap();
        Self { listener, _lock: lock }
    }

    pub fn accept(&self) -> Line {
        self.accept_as(2, env!("CARGO_PKG_VERSION"))
    }

    /// Accepts a connection and greets with a protocol and program version.
    pub fn accept_as(&self, protocol: u32, version: &str) -> Line {
        let (writer, _) = self.listener.accept().unwrap();
        let mut line =
            Line { reader: BufReader::new(writer.try_clone().unwrap()), writer, hello: Value::Null };
        line.hello = line.receive();
        line.send(
            &json!({"switchboard": {"protocol": protocol, "version": version, "pid": 1, "owner": "played"}}),
        );
        line
    }
}

/// A connection of the fake daemon. Dropping it simulates a crash.
pub struct Line {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    pub hello: Value,
}

impl Line {
    pub fn receive_bytes(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).unwrap();
        line
    }

    pub fn receive(&mut self) -> Value {
        let line = self.receive_bytes();
        serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)))
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).unwrap();
    }

    pub fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    pub fn answer(&mut self, id: &Value, result: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    /// Receives and answers the MCP initialization.
    pub fn initialize(&mut self) {
        let initialize = self.receive();
        assert_eq!(initialize["method"], "initialize");
        self.answer(&initialize["id"], &json!({"protocolVersion": "2025-06-18"}));
        assert_eq!(self.receive()["method"], "notifications/initialized");
    }

    /// Returns whether the peer has closed its end.
    pub fn is_closed(&mut self) -> bool {
        self.reader.read(&mut [0]).unwrap() == 0
    }
}
