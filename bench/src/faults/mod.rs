//! The same faults for ours and for every installed peer, judged from outside, as one table.
//!
//! The same host calls each server; the agent is the scripted one under the name that the server looks for. Three questions: is
//! a process left, was the reply true, is the agent's output available? Measures no time.

mod disk;
mod fault;
mod server;
mod trial;
mod verdict;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;

use crate::executables::Executables;
use crate::interruption::Interruption;
use crate::{Failure, output};

pub use fault::InjectedFault;
use server::{LIMIT, ServerUnderTest};
use trial::Trial;
use verdict::Cell;

/// Which trials, and how much output a flood has.
#[derive(Debug)]
pub struct FaultsScale {
    /// Millions of bytes of a flood; the long line has half of it.
    pub megabytes: u32,
    /// Only this fault.
    pub only: Option<InjectedFault>,
    /// Only the server of that name.
    pub server: Option<String>,
}

/// The outcomes of all calls.
#[derive(Debug, Default)]
pub struct Tried {
    /// For the reader.
    pub table: String,
    /// The faults under which ours broke a promise.
    pub broken: Vec<&'static str>,
}

/// Tries every fault with every server.
pub async fn table(
    executables: &Executables,
    work: &Path,
    scale: &FaultsScale,
    mut interruption: Interruption,
) -> Result<Tried, Failure> {
    let servers: Vec<(ServerUnderTest, String)> =
        ServerUnderTest::ALL.into_iter().filter_map(|server| there(server, scale)).collect();
    let mut tried = Tried { table: head(&servers), broken: Vec::new() };
    let mut number = 0;
    for &fault in InjectedFault::value_variants() {
        if scale.only.is_some_and(|only| only != fault) {
            continue;
        }
        write!(tried.table, "| {} |", fault.name())?;
        for (server, _) in &servers {
            // A signal is noticed by a runtime that waits.
            tokio::time::sleep(Duration::from_millis(1)).await;
            interruption.check()?;
            number += 1;
            output::progress(&format!("{}: {}", server.name(), fault.name()));
            let cell = Trial::prepare(executables, *server, fault, work, number, scale.megabytes)
                .and_then(|trial| trial.run())
                .unwrap_or_else(|failure| Cell::NotTried(format!("not run: {failure}")));
            output::progress(&format!("  {cell}"));
            write!(tried.table, " {cell} |")?;
            if *server == ServerUnderTest::Ours
                && matches!(&cell, Cell::Judged(seen) if !seen.is_as_promised())
            {
                tried.broken.push(fault.name());
            }
        }
        tried.table.push('\n');
    }
    Ok(tried)
}

/// A server that can be tried, and how the table calls it.
fn there(server: ServerUnderTest, scale: &FaultsScale) -> Option<(ServerUnderTest, String)> {
    if scale.server.as_ref().is_some_and(|only| only != server.name()) {
        return None;
    }
    if server == ServerUnderTest::Ours {
        return Some((server, "**switchboard**".to_owned()));
    }
    let Some((_, version)) = server.program() else {
        output::progress(&format!(
            "skipped: {} is not installed; run `scripts/peers-install`",
            server.name()
        ));
        return None;
    };
    Some((server, format!("{} {version}", server.name())))
}

fn head(servers: &[(ServerUnderTest, String)]) -> String {
    let names: Vec<&str> = servers.iter().map(|(_, name)| name.as_str()).collect();
    format!("| fault | {} |\n| --- |{}\n", names.join(" | "), " --- |".repeat(servers.len()))
}

/// Explains the table.
pub fn method(scale: &FaultsScale) -> String {
    let megabytes = scale.megabytes;
    format!(
        "- a cell: processes of the agent that are still alive {settling} s after the call ended · whether the host got a true result ·\n  \
         whether the agent's output is available, in the result or later from the server\n\
         - alive: found by a variable in `/proc/*/environ` that the agent's processes inherit; `(+ server)`: the process that the host\n  \
         started keeps running without the host\n\
         - the agent: `rehearsal` under the name that the server searches for (claude, codex, gemini), in the format that the server requests:\n  \
         claude's `stream-json` for switchboard, codex's JSON for PAL (`clink` with `cli_name: codex`), plain text for the others\n\
         - options, as each documents them: the time limit is {LIMIT} s (`timeout_ms`; `GEMINI_MCP_TIMEOUT`; `timeout_seconds` of PAL's client);\n  \
         `GEMINI_MCP_BACKEND=gemini`; *client gone, cancel on disconnect* is `cancel_on_disconnect` of switchboard, and the only mode of the\n  \
         others. A server without a time limit gets a cancellation for the agent that ignores SIGTERM\n\
         - plain text marks neither noise nor the end: noise is part of the answer, and the exit code is the result\n\
         - *cancel*: MCP expects no response to a cancelled request; switchboard is asked for the job's state, the others have none\n\
         - flood: {megabytes} MB, the long line {line} MB; an answer over 2 MB and memory over 150 MB are reported\n\
         - `ai-cli-mcp` is missing: its package is not available from the registry",
        settling = trial::SETTLING.as_secs(),
        line = megabytes / 2,
    )
}
