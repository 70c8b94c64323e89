//! MCP, as far as it needs no job: a stand-in that greets and has no tool.
//!
//! Owns the messages of one connection. Takes the place of the server with the tools until that is there.

use std::io;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::daemon::{Client, Connection, Desk};
use crate::wire::VERSION;

/// The longest message that is read.
const LONGEST: usize = 256 << 20;

#[derive(Debug, Deserialize)]
struct Message {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
}

/// Answers until the front-end goes away.
pub async fn serve(mut connection: Connection, client: Client, _desk: Desk) -> io::Result<()> {
    tracing::debug!(cwd = ?client.cwd, "an MCP host");
    while let Some(line) = connection.line(LONGEST).await? {
        if let Some(answer) = answer(&line) {
            connection.say(&answer).await?;
        }
    }
    Ok(())
}

fn answer(line: &[u8]) -> Option<Value> {
    let Ok(message) = serde_json::from_slice::<Message>(line) else {
        return Some(failure(&Value::Null, -32700, "this is not a JSON-RPC message"));
    };
    let id = message.id?;
    let result = match message.method?.as_str() {
        "initialize" => json!({
            "protocolVersion": message.params["protocolVersion"].as_str().unwrap_or("2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "switchboard", "version": VERSION},
        }),
        "ping" => json!({}),
        "tools/list" => json!({"tools": []}),
        _ => return Some(failure(&id, -32601, "there is no such method yet")),
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn failure(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
