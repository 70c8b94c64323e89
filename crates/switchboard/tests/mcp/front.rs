//! The stdio front for foreign clients: this binary, asked by an argument, with a desk of its own behind it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use calls::{JobService, ShutdownMode};
use switchboard::mcp::{self, Options};
use tokio_util::sync::CancellationToken;

use crate::scene::settings;

/// The first argument that makes this binary the server; the second is its folder.
const ASKED: &str = "--stdio";

/// How a host starts the server over stdio. The one place to change when the program itself can do it.
pub fn command(folder: &Path) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    [program.to_str().unwrap(), ASKED, folder.to_str().unwrap()].map(str::to_owned).to_vec()
}

/// Serves, when this process was started as the server.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ASKED {
        return None;
    }
    let folder = PathBuf::from(arguments.next()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let desk = JobService::open(crate::host::settings_of(&folder).unwrap_or_else(|| settings(&folder)))
            .await
            .unwrap();
        let options = Arc::new(Options { rehearsal: true, ..Options::default() });
        let client = mcp::Client { cwd: Some(std::env::current_dir().unwrap()), ..mcp::Client::default() };
        let stdio = tokio::io::join(tokio::io::stdin(), tokio::io::stdout());
        mcp::serve(stdio, client, desk.clone(), options, CancellationToken::new()).await.unwrap();
        desk.close(ShutdownMode::Detach).await;
    });
    // The read of stdin that nobody waits for any more must not hold the process back.
    runtime.shutdown_background();
    Some(ExitCode::SUCCESS)
}
