//! The stdio server for foreign clients: this binary with an argument, and its own job service.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use calls::{JobService, ShutdownMode};
use mcp_server::{McpClient, McpOptions};
use tokio_util::sync::CancellationToken;

use crate::harness::settings;

/// First argument that makes this binary the server. The second is its state directory.
const STDIO_FLAG: &str = "--stdio";

/// Returns the command that starts the server.
pub fn command(directory: &Path) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    [program.to_str().unwrap(), STDIO_FLAG, directory.to_str().unwrap()].map(str::to_owned).to_vec()
}

/// Serves stdio if this process was started as the server.
pub fn serve_if_requested() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != STDIO_FLAG {
        return None;
    }
    let directory = PathBuf::from(arguments.next()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let service = JobService::open(
            crate::claude_host::settings_in(&directory).unwrap_or_else(|| settings(&directory)),
        )
        .await
        .unwrap();
        let options = Arc::new(McpOptions { rehearsal: true, ..McpOptions::default() });
        let client = McpClient { cwd: Some(std::env::current_dir().unwrap()), ..McpClient::default() };
        let stdio = tokio::io::join(tokio::io::stdin(), tokio::io::stdout());
        mcp_server::serve(stdio, client, service.clone(), options, CancellationToken::new()).await.unwrap();
        service.close(ShutdownMode::Detach).await;
    });
    // The blocking read of stdin must not keep the process alive.
    runtime.shutdown_background();
    Some(ExitCode::SUCCESS)
}
