//! Control requests: one to a line, each answered to its end before the next is read.

use std::io;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::connection::Connection;
use super::state::DaemonState;
use crate::wire::{Complaint, Line, Phase, Reply, Request, StopHow};

/// How long a request may be: a prompt of the longest kind, and what JSON makes of it.
const LONGEST: usize = switchboard::mcp::MAX_MESSAGE_BYTES;
/// How long a front-end may be silent between two requests.
const SILENCE: Duration = Duration::from_mins(1);
/// How often a front-end that waits for the end is told what is still running.
const NEWS_EVERY: Duration = Duration::from_millis(200);

/// Answers until the front-end goes away.
pub async fn serve(mut connection: Connection, desk: &DaemonState) -> io::Result<()> {
    loop {
        let line = tokio::select! {
            () = desk.reached(Phase::Ending) => break,
            line = timeout(SILENCE, connection.line(LONGEST)) => line,
        };
        let Ok(Some(line)) =
            line.unwrap_or(Ok(None)).map_err(|error| tracing::debug!(%error, "a request broke"))
        else {
            break;
        };
        match serde_json::from_slice(&line) {
            Ok(Request::Status) => {
                let status = desk.status().await;
                last(&mut connection, Reply::Status(status)).await?;
            }
            Ok(Request::Settings) => {
                let settings = desk.settings().clone();
                last(&mut connection, Reply::Settings { settings }).await?;
            }
            Ok(Request::Stop { how }) => stop(&mut connection, desk, how).await?,
            Ok(request) => tokio::select! {
                answered = desk.work().ask(request, &mut connection) => answered?,
                // Perhaps in the middle of a line: whoever asked hears no more, and asks the next daemon.
                () = desk.reached(Phase::Ending) => break,
            },
            Err(error) => last(&mut connection, Reply::Error(misunderstood(&error))).await?,
        }
    }
    Ok(())
}

async fn last(connection: &mut Connection, reply: Reply) -> io::Result<()> {
    connection.say(&Line { reply, more: false }).await
}

fn misunderstood(error: &serde_json::Error) -> Complaint {
    Complaint {
        message: format!("request not understood: {error}"),
        hint: format!("if the daemon is older than this program, {}", crate::wire::UPGRADE_DAEMON),
    }
}

/// Lets the daemon end, and tells until then what is still running. A front-end that goes away changes nothing any more.
async fn stop(connection: &mut Connection, desk: &DaemonState, how: StopHow) -> io::Result<()> {
    tracing::info!(?how, "asked to stop");
    match how {
        StopHow::Now => desk.go_on_to(Phase::Ending),
        StopHow::Drain => desk.go_on_to(Phase::Draining),
        StopHow::Cancel => {
            desk.work().cancel().await;
            desk.go_on_to(Phase::Draining);
        }
    }
    let mut told = None;
    while desk.phase() < Phase::Ending {
        let running = desk.work().load().await.running;
        if told.replace(running) != Some(running) {
            connection.say(&Line { reply: Reply::Draining { running }, more: true }).await?;
        }
        tokio::select! {
            () = desk.reached(Phase::Ending) => {}
            () = sleep(NEWS_EVERY) => {}
        }
    }
    last(connection, Reply::Ending).await
}
