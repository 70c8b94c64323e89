//! Control requests: one per line, each handled completely before the next is read.

use std::io;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use protocol::{DaemonPhase, DaemonRequest, ErrorReply, ReplyLine, StopMode, UPGRADE_DAEMON};

use super::connection::ClientConnection;
use super::state::DaemonState;
use crate::client::JobReply;

/// The maximum size of a request: the longest prompt, escaped as JSON.
const MAX_REQUEST_BYTES: usize = mcp_server::MAX_MESSAGE_BYTES;
/// The timeout between two requests of a client.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// The interval at which the number of running jobs is reported during a drain.
const DRAIN_REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Serves requests until the client disconnects or the daemon stops.
pub async fn serve(mut connection: ClientConnection, state: &DaemonState) -> io::Result<()> {
    loop {
        let line = tokio::select! {
            () = state.wait_for_phase(DaemonPhase::Stopping) => break,
            line = timeout(REQUEST_TIMEOUT, connection.read_line(MAX_REQUEST_BYTES)) => line,
        };
        let Ok(Some(line)) =
            line.unwrap_or(Ok(None)).map_err(|error| tracing::debug!(%error, "cannot read a request"))
        else {
            break;
        };
        match serde_json::from_slice(&line) {
            Ok(DaemonRequest::Status) => {
                let status = state.status().await;
                send_last(&mut connection, JobReply::Status(status)).await?;
            }
            Ok(DaemonRequest::Settings) => {
                let settings = state.settings().clone();
                send_last(&mut connection, JobReply::Settings { settings }).await?;
            }
            Ok(DaemonRequest::Stop { mode }) => stop(&mut connection, state, mode).await?,
            Ok(request) => tokio::select! {
                handled = state.backend().handle_control(request, &mut connection) => handled?,
                // Possibly in the middle of a line: the client repeats the request to the next daemon.
                () = state.wait_for_phase(DaemonPhase::Stopping) => break,
            },
            Err(error) => send_last(&mut connection, JobReply::Error(invalid_request(&error))).await?,
        }
    }
    Ok(())
}

async fn send_last(connection: &mut ClientConnection, reply: JobReply) -> io::Result<()> {
    connection.send(&ReplyLine { reply, more: false }).await
}

fn invalid_request(error: &serde_json::Error) -> ErrorReply {
    ErrorReply {
        message: format!("invalid request: {error}"),
        hint: format!("if the daemon is older than this program, {UPGRADE_DAEMON}"),
    }
}

/// Stops the daemon and reports the number of running jobs until then. The stop continues if the client disconnects.
async fn stop(connection: &mut ClientConnection, state: &DaemonState, mode: StopMode) -> io::Result<()> {
    tracing::info!(?mode, "stop requested");
    match mode {
        StopMode::Now => state.enter_phase(DaemonPhase::Stopping),
        StopMode::Drain => state.enter_phase(DaemonPhase::Draining),
        StopMode::Cancel => {
            state.backend().cancel().await;
            state.enter_phase(DaemonPhase::Draining);
        }
    }
    let mut reported = None;
    while state.phase() < DaemonPhase::Stopping {
        let running = state.backend().load().await.running;
        if reported.replace(running) != Some(running) {
            connection.send(&ReplyLine { reply: JobReply::Draining { running }, more: true }).await?;
        }
        tokio::select! {
            () = state.wait_for_phase(DaemonPhase::Stopping) => {}
            () = sleep(DRAIN_REPORT_INTERVAL) => {}
        }
    }
    send_last(connection, JobReply::Stopping).await
}
