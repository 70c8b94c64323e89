//! A client that sends plain JSON, one message per line, and records every reply.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};

use testkit::LONGEST_WAIT;

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

pub struct Client {
    read: BufReader<ReadHalf<Box<dyn Wire>>>,
    write: WriteHalf<Box<dyn Wire>>,
    /// Messages received while waiting for another one.
    early: VecDeque<Value>,
    next: u64,
}

impl Client {
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (read, write) = tokio::io::split(Box::new(stream) as Box<dyn Wire>);
        Self { read: BufReader::new(read), write, early: VecDeque::new(), next: 0 }
    }

    /// Performs the handshake.
    pub async fn initialize(&mut self) -> Value {
        self.initialize_with(json!({})).await
    }

    pub async fn initialize_with(&mut self, capabilities: Value) -> Value {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": { "name": "test", "version": "1" },
        });
        let answer = self.request("initialize", params).await;
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        answer["result"].clone()
    }

    pub async fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes()).await;
    }

    pub async fn send_line(&mut self, line: &[u8]) {
        self.write.write_all(line).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
        self.write.flush().await.unwrap();
    }

    /// Sends a request and returns its id.
    pub async fn send_request(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params })).await;
        self.next
    }

    /// Returns the next message; none after the server has closed the connection.
    pub async fn next(&mut self) -> Option<Value> {
        if let Some(early) = self.early.pop_front() {
            return Some(early);
        }
        self.read().await
    }

    async fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = tokio::time::timeout(2 * LONGEST_WAIT, self.read.read_line(&mut line))
            .await
            .expect("no message from the server");
        if read.unwrap() == 0 {
            return None;
        }
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Closes the sending side.
    pub async fn shutdown_write(&mut self) {
        self.write.shutdown().await.unwrap();
    }

    /// Returns the response to a request. Other messages are queued.
    pub async fn response(&mut self, id: u64) -> Value {
        if let Some(at) = self.early.iter().position(|message| message["id"] == id) {
            return self.early.remove(at).unwrap();
        }
        loop {
            let message = self.read().await.expect("the server has closed the connection");
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.early.push_back(message);
        }
    }

    /// Sends a request and returns its response.
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params).await;
        self.response(id).await
    }

    /// Calls a tool and returns its result.
    pub async fn call_tool(&mut self, name: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({ "name": name, "arguments": arguments })).await;
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }

    /// Calls a tool, expects success, and returns the structured content.
    pub async fn call_tool_ok(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.call_tool(name, arguments).await;
        assert_ne!(result["isError"], true, "{result}");
        result["structuredContent"].clone()
    }

    /// Calls a tool, expects a rejection, and returns it.
    pub async fn rejected(&mut self, name: &str, arguments: Value) -> Rejected {
        let result = self.call_tool(name, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        let error = &result["_meta"]["switchboard/error"];
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        Rejected { field: error["field"].as_str().unwrap_or_default().to_owned(), text }
    }

    /// Returns the queued messages.
    pub fn notifications(&mut self) -> Vec<Value> {
        self.early.drain(..).collect()
    }
}

/// A rejected tool call.
#[derive(Debug)]
pub struct Rejected {
    pub field: String,
    pub text: String,
}
