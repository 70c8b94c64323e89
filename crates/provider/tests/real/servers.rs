//! The MCP servers of the trials: this binary, selected by an argument.

use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use model_api::mcp_echo;
use provider::McpServer;
use serde_json::{Value, json};

/// The first argument that turns this binary into the echo server.
const ECHO: &str = "--mcp-echo";
/// The first argument that turns it into a replacement of `file-tools`.
const STAND_IN: &str = "--stand-in-for-file-tools";
/// A variable of the server with a secret.
const VARIABLE: &str = "ECHO_SECRET";
pub const SECRET: &str = "secret-of-the-server";

/// Returns a server with one tool, which writes the received secret to a file.
pub fn echo(seen: &Path) -> McpServer {
    McpServer {
        name: "echo".to_owned(),
        command: std::env::current_exe().unwrap().to_str().unwrap().to_owned(),
        args: vec![ECHO.to_owned(), seen.to_str().unwrap().to_owned()],
        env: [(VARIABLE.to_owned(), SECRET.to_owned())].into(),
    }
}

/// Creates an executable that replaces `file-tools`: it always has the verbs `read` and `write` within its root. Offering too
/// much shows which calls the CLI itself denies.
pub fn stand_in(directory: &Path) -> PathBuf {
    let program = directory.join("file-tools");
    let this = std::env::current_exe().unwrap();
    fs::write(&program, format!("#!/bin/sh\nexec '{}' {STAND_IN} \"$@\"\n", this.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Returns the real program, as the `switchboard` package builds it beside the tests.
pub fn file_tools() -> Option<PathBuf> {
    let beside =
        std::env::current_exe().unwrap().ancestors().nth(2).map(|directory| directory.join("file-tools"));
    let named = std::env::var_os("FILE_TOOLS").map(PathBuf::from);
    named.or(beside).filter(|program| program.is_file())
}

/// Returns the reason why a trial cannot run without it.
pub fn without_file_tools() -> Option<&'static str> {
    file_tools().is_none().then_some("file-tools is not built: cargo build -p switchboard")
}

/// Serves, if this process was started as a server.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let served = match arguments.next()?.to_str()? {
        ECHO => {
            fs::write(arguments.next()?, std::env::var(VARIABLE).unwrap_or_default()).unwrap();
            mcp_echo::serve(io::stdin().lock(), io::stdout().lock())
        }
        STAND_IN => {
            assert_eq!(arguments.next()?, "mcp", "it is asked to be a server");
            serve_files(&PathBuf::from(std::env::var_os("FILE_TOOLS_ROOT").unwrap()))
        }
        _ => return None,
    };
    Some(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn serve_files(root: &Path) -> io::Result<()> {
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Ok(request) = serde_json::from_str::<Value>(&line?) else { continue };
        let Some(id) = request.get("id") else { continue };
        let mut reply = match request["method"].as_str() {
            Some("initialize") => json!({"result": {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}}, "serverInfo": {"name": "files", "version": "1.0.0"},
            }}),
            Some("tools/list") => json!({"result": {"tools": [tool("read"), tool("write")]}}),
            Some("tools/call") => call(root, &request["params"]),
            _ => json!({"error": {"code": -32601, "message": "method not found"}}),
        };
        reply["jsonrpc"] = json!("2.0");
        reply["id"] = id.clone();
        writeln!(output, "{reply}")?;
        output.flush()?;
    }
    Ok(())
}

fn tool(name: &str) -> Value {
    let text = json!({"type": "string"});
    json!({"name": name, "description": name, "inputSchema": {
        "type": "object", "properties": {"path": text, "content": text}, "required": ["path"],
    }})
}

fn call(root: &Path, asked: &Value) -> Value {
    let (path, content) = (asked["arguments"]["path"].as_str(), asked["arguments"]["content"].as_str());
    let path = path.unwrap_or_default();
    let answer = match asked["name"].as_str() {
        _ if path.starts_with('/') || path.contains("..") => Err("path_outside_workspace".to_owned()),
        Some("read") => fs::read_to_string(root.join(path)).map_err(|error| error.to_string()),
        Some("write") => fs::write(root.join(path), content.unwrap_or_default())
            .map(|()| "written".to_owned())
            .map_err(|error| error.to_string()),
        _ => Err("no such verb".to_owned()),
    };
    let is_error = answer.is_err();
    json!({"result": {"content": [{"type": "text", "text": answer.unwrap_or_else(|why| why)}], "isError": is_error}})
}
