//! The MCP server of the trials: this binary, started with an argument.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use model::McpServer;
use model_api::mcp_echo;

/// The first argument that turns this binary into the server; the second is its log file.
const ASKED: &str = "--mcp-echo";
/// A variable of the server with a secret.
const VARIABLE: &str = "ECHO_SECRET";
pub const SECRET: &str = "secret-of-the-server";

/// Returns the server, which writes the received secret to a file.
pub fn echo(seen: &Path) -> McpServer {
    McpServer {
        name: "echo".to_owned(),
        command: std::env::current_exe().unwrap().to_str().unwrap().to_owned(),
        args: vec![ASKED.to_owned(), seen.to_str().unwrap().to_owned()],
        env: [(VARIABLE.to_owned(), SECRET.to_owned())].into(),
    }
}

/// Runs the server if this process was started as one.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ASKED {
        return None;
    }
    fs::write(arguments.next()?, std::env::var(VARIABLE).unwrap_or_default()).unwrap();
    let served = mcp_echo::serve(io::stdin().lock(), io::stdout().lock());
    Some(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
