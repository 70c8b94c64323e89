//! A minimal MCP server over stdio with one tool, `say`, which returns its text.
//!
//! Tests pass it to the real CLIs, to see an MCP tool offered, called and answered.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

/// Serves until `input` ends.
pub fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    for line in input.lines() {
        let Ok(request) = serde_json::from_str::<Value>(&line?) else { continue };
        // A notification has no id and gets no reply.
        let Some(id) = request.get("id") else { continue };
        let mut reply = answer(&request);
        reply["jsonrpc"] = json!("2.0");
        reply["id"] = id.clone();
        writeln!(output, "{reply}")?;
        output.flush()?;
    }
    Ok(())
}

fn answer(request: &Value) -> Value {
    match request["method"].as_str() {
        Some("initialize") => json!({"result": {
            "protocolVersion": request["params"]["protocolVersion"].as_str().unwrap_or("2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1.0.0"},
        }}),
        Some("tools/list") => json!({"result": {"tools": [{
            "name": "say",
            "description": "Answers with the text it is given.",
            "inputSchema": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
            "annotations": {"readOnlyHint": true},
        }]}}),
        Some("tools/call") => {
            let text = request["params"]["arguments"]["text"].as_str().unwrap_or_default();
            json!({"result": {"content": [{"type": "text", "text": format!("echo: {text}")}], "isError": false}})
        }
        Some("ping") => json!({"result": {}}),
        _ => json!({"error": {"code": -32601, "message": "method not found"}}),
    }
}
