//! The MCP server that the trials pass in: this binary, asked by an argument.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use model::McpServer;
use model_api::mcp_echo;

/// The first argument that makes this binary the server; the second is a file for what it saw.
const ASKED: &str = "--mcp-echo";
/// A variable of the server, and the secret in it.
const VARIABLE: &str = "ECHO_SECRET";
pub const SECRET: &str = "secret-of-the-server";

/// The server, which writes the secret that reached it to a file.
pub fn echo(seen: &Path) -> McpServer {
    McpServer {
        name: "echo".to_owned(),
        command: std::env::current_exe().unwrap().to_str().unwrap().to_owned(),
        args: vec![ASKED.to_owned(), seen.to_str().unwrap().to_owned()],
        env: [(VARIABLE.to_owned(), SECRET.to_owned())].into(),
    }
}

/// Serves, when this process was started as the server.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ASKED {
        return None;
    }
    fs::write(arguments.next()?, std::env::var(VARIABLE).unwrap_or_default()).unwrap();
    let served = mcp_echo::serve(io::stdin().lock(), io::stdout().lock());
    Some(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
