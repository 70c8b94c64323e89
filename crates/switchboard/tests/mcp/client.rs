//! A client that speaks plain JSON, one message a line, and sees everything that comes back.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};

use crate::scene::LONG;

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

pub struct Client {
    read: BufReader<ReadHalf<Box<dyn Wire>>>,
    write: WriteHalf<Box<dyn Wire>>,
    /// What came while something else was waited for.
    early: VecDeque<Value>,
    next: u64,
}

impl Client {
    pub fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (read, write) = tokio::io::split(Box::new(stream) as Box<dyn Wire>);
        Self { read: BufReader::new(read), write, early: VecDeque::new(), next: 0 }
    }

    /// Introduces itself, as clients of today do.
    pub async fn initialize(&mut self) -> Value {
        self.initialize_with(json!({})).await
    }

    pub async fn initialize_with(&mut self, capabilities: Value) -> Value {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": { "name": "test", "version": "1" },
        });
        let answer = self.ask("initialize", params).await;
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

    /// Sends a request and gives back its id.
    pub async fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params })).await;
        self.next
    }

    /// The next message, whatever it is; none when the server has closed the connection.
    pub async fn next(&mut self) -> Option<Value> {
        if let Some(early) = self.early.pop_front() {
            return Some(early);
        }
        self.read().await
    }

    async fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = tokio::time::timeout(2 * LONG, self.read.read_line(&mut line))
            .await
            .expect("no word from the server");
        if read.unwrap() == 0 {
            return None;
        }
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Says nothing more, and still listens.
    pub async fn close_its_side(&mut self) {
        self.write.shutdown().await.unwrap();
    }

    /// The answer to a request; everything else is kept for later.
    pub async fn end(&mut self, id: u64) -> Value {
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

    /// A request and its answer.
    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.end(id).await
    }

    /// Calls a tool and gives back its result.
    pub async fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": name, "arguments": arguments })).await;
        assert!(answer.get("result").is_some(), "{answer}");
        answer["result"].clone()
    }

    /// Calls a tool that does what it is asked, and gives back its structured answer.
    pub async fn done(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.tool(name, arguments).await;
        assert_ne!(result["isError"], true, "{result}");
        result["structuredContent"].clone()
    }

    /// Calls a tool that refuses, and gives back what it says.
    pub async fn refused(&mut self, name: &str, arguments: Value) -> Refused {
        let result = self.tool(name, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        let error = &result["_meta"]["switchboard/error"];
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        Refused { field: error["field"].as_str().unwrap_or_default().to_owned(), text }
    }

    /// What has come and was not asked for, so far.
    pub fn unasked(&mut self) -> Vec<Value> {
        self.early.drain(..).collect()
    }
}

/// What a tool says that refuses.
#[derive(Debug)]
pub struct Refused {
    pub field: String,
    pub text: String,
}
