//! Control: one request to a line, answered by one line or more. All but the last say `more`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Complaint;

/// What can be asked of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// How it is.
    Status,
    /// To end.
    Stop {
        /// What becomes of the jobs that run.
        how: StopHow,
    },
}

/// What becomes of the jobs that run when the daemon is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// They are waited for, and no other is begun.
    Drain,
    /// They go on without it; the next daemon takes them up.
    Now,
    /// They are cancelled first.
    Cancel,
}

/// One line of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What is said.
    #[serde(flatten)]
    pub reply: Reply,
    /// Whether another line follows for the same request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// How it is.
    Status(Status),
    /// It will end, and waits for so many jobs.
    Draining {
        /// How many run.
        running: u64,
    },
    /// It ends now.
    Ending,
    /// What was asked cannot be done.
    Error(Complaint),
}

/// How the daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// The protocol it speaks.
    pub protocol: u32,
    /// Its process.
    pub pid: u32,
    /// The name under which it owns jobs.
    pub owner: String,
    /// For how long it has been there.
    pub uptime_ms: u64,
    /// Its state folder.
    pub state: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// How many front-ends are connected, the one that asks included.
    pub connections: u64,
    /// How many jobs run.
    pub running: u64,
    /// How many wait.
    pub queued: u64,
    /// Whether it takes on work.
    pub phase: Phase,
}

/// Where a daemon is between its first and its last moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It takes on work.
    Open,
    /// It waits for what runs, and ends then.
    Draining,
    /// It ends.
    Ending,
}
