//! Sends requests to the daemon and reads the replies.

use std::io::{self, BufRead, Write};

use serde::de::DeserializeOwned;

use crate::connection::{ConnectError, DaemonConnection};
use crate::connector::{ConnectorError, DaemonConnector};
use crate::greeting::{ClientRole, ErrorReply, UPGRADE_DAEMON};
use crate::reply::{DaemonReply, ErrorCategory, ReplyLine};
use crate::request::DaemonRequest;

/// The number of daemons that may die over one request before it is given up.
pub const MAX_DAEMONS: u32 = 5;

/// Sends an idempotent request with a one-line reply. Starts the daemon if necessary, and retries if it dies before the reply.
pub fn request<A: DeserializeOwned>(
    connector: &mut DaemonConnector,
    request: &DaemonRequest,
) -> Result<DaemonReply<A>, RequestError> {
    request_streaming(connector, request, |_| {})
}

/// Sends an idempotent request with a reply of several lines. Passes all lines but the last to `on_reply`. Retries like [`request`],
/// but not after the first line.
pub fn request_streaming<A: DeserializeOwned>(
    connector: &mut DaemonConnector,
    request: &DaemonRequest,
    mut on_reply: impl FnMut(&DaemonReply<A>),
) -> Result<DaemonReply<A>, RequestError> {
    let mut has_replied = false;
    for _ in 0..MAX_DAEMONS {
        let mut connection = connector.connect_or_start(ClientRole::Control)?;
        let result = exchange(&mut connection, request, |reply| {
            has_replied = true;
            on_reply(reply);
        });
        match result {
            Ok(DaemonReply::Stopping) | Err(RequestError::Connect(ConnectError::Broken(_)))
                if !has_replied => {}
            Ok(DaemonReply::Stopping) => return Err(RequestError::UnexpectedReply),
            result => return result,
        }
    }
    Err(RequestError::DaemonUnavailable { attempts: MAX_DAEMONS, job: request.job().map(str::to_owned) })
}

/// Sends a request that is not idempotent, once.
pub fn request_once<A: DeserializeOwned>(
    connector: &mut DaemonConnector,
    request: &DaemonRequest,
) -> Result<DaemonReply<A>, RequestError> {
    let mut connection = connector.connect_or_start(ClientRole::Control)?;
    match exchange(&mut connection, request, |_| {})? {
        DaemonReply::Stopping => Err(RequestError::UnexpectedReply),
        reply => Ok(reply),
    }
}

/// Sends a request on a connection, passes all lines but the last to `on_reply`, and returns the last.
pub fn exchange<A: DeserializeOwned>(
    connection: &mut DaemonConnection,
    request: &DaemonRequest,
    mut on_reply: impl FnMut(&DaemonReply<A>),
) -> Result<DaemonReply<A>, RequestError> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    connection.writer.write_all(&line).map_err(ConnectError::Broken)?;
    loop {
        let mut line = String::new();
        match connection.reader.read_line(&mut line) {
            // The daemon exited before the last line, as `stop` expects.
            Ok(0) => return Ok(DaemonReply::Stopping),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(DaemonReply::Stopping),
            read => drop(read.map_err(ConnectError::Broken)?),
        }
        match serde_json::from_str(&line)? {
            ReplyLine { reply, more: true } => on_reply(&reply),
            ReplyLine { reply: DaemonReply::Error(error), .. } => {
                return Err(ConnectError::Rejected(error).into());
            }
            ReplyLine { reply: DaemonReply::Rejected { category, error }, .. } => {
                return Err(RequestError::Rejected { category, error });
            }
            ReplyLine { reply, .. } => return Ok(reply),
        }
    }
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no daemon.
    #[error(transparent)]
    Connector(#[from] ConnectorError),
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The daemon rejected the request.
    #[error("{}", error.message)]
    Rejected {
        /// The category.
        category: ErrorCategory,
        /// The message and its hint.
        error: ErrorReply,
    },
    /// The reply does not belong to the request.
    #[error("unexpected reply from the daemon")]
    UnexpectedReply,
    /// Every daemon died before it replied.
    #[error("the daemon exited {attempts} times in a row{}", job.as_ref().map(|job| format!(" while handling job {job}")).unwrap_or_default())]
    DaemonUnavailable {
        /// The number of daemons.
        attempts: u32,
        /// The job that the request names.
        job: Option<String>,
    },
    /// A message is not valid JSON.
    #[error("cannot encode or decode JSON")]
    Json(#[from] serde_json::Error),
}

impl RequestError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Connector(error) => error.hint(),
            Self::Connect(error) => error.hint(),
            Self::Rejected { error, .. } => error.hint.clone(),
            Self::UnexpectedReply => format!("retry; if that does not help, {UPGRADE_DAEMON}"),
            Self::DaemonUnavailable { job: None, .. } => {
                "see the daemon log (`switchboard config` prints its path), then retry".to_owned()
            }
            Self::DaemonUnavailable { job: Some(job), .. } => format!(
                "see the daemon log (`switchboard config` prints its path), then run `switchboard status {job}`"
            ),
            Self::Json(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_unavailable_names_attempts_and_log() {
        let error = RequestError::DaemonUnavailable { attempts: MAX_DAEMONS, job: Some("0198".to_owned()) };
        assert_eq!(error.to_string(), "the daemon exited 5 times in a row while handling job 0198");
        assert!(error.hint().unwrap().contains("daemon log"));
    }
}
