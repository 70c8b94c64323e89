//! Replies of the daemon: one or more JSON lines per request. All but the last have `more`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use model::{AgentEvent, AgentKind, ChangeSet, JobStats, StateName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::greeting::ErrorReply;

/// The `event` field of a [`waiting_event`].
const WAITING: &str = "waiting";

/// A restored file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredEntry {
    /// The path in the worktree, quoted if it is not printable.
    pub path: String,
    /// `restored`, `deleted`, `merged`, `already_restored` or `not_restored`.
    pub action: String,
    /// The reason for which it was not restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A file whose changes cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictEntry {
    /// The path in the worktree, quoted if it is not printable.
    pub path: String,
    /// The reason.
    pub reason: String,
}

/// The result of applying the changes in a private checkout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReply {
    /// The job.
    pub job_id: String,
    /// `applied`, or `open` if a part of the changes is in the checkout only.
    pub state: String,
    /// The files, sorted by path: `applied`, `deleted`, `merged`, `conflicted`, `already_applied` or `not_applied`.
    pub files: Vec<RestoredEntry>,
    /// The new commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The files with conflicts. If there are any, nothing was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<ConflictEntry>,
    /// Is true if the conflicts can be written between markers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_mark: bool,
}

/// Changes in a private checkout that are neither applied nor discarded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenChangesEntry {
    /// The job.
    pub job_id: String,
    /// The state of the job. Omitted if the store does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<StateName>,
    /// The worktree of the user.
    pub source: String,
    /// The private checkout.
    pub checkout: String,
    /// The branch with the changes, in the repository of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The number of changed files, once they are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_changed: Option<u64>,
    /// The number of added lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines_added: Option<u64>,
    /// The number of removed lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines_removed: Option<u64>,
    /// The disk space of the checkout, without borrowed objects.
    pub disk_bytes: u64,
}

/// One line of a reply. `A` is the answer of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplyLine<A> {
    /// The reply.
    #[serde(flatten)]
    pub reply: DaemonReply<A>,
    /// Is true if another line follows for the same request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A reply of the daemon. `A` is the answer of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum DaemonReply<A> {
    /// The status of the daemon.
    Status(DaemonStatus),
    /// The settings of the daemon.
    Settings {
        /// Every setting by name, as TOML; `None` if a command-line option set it.
        settings: BTreeMap<String, Option<String>>,
    },
    /// The daemon is waiting for running jobs before it stops.
    Draining {
        /// The number of running jobs.
        running: u64,
    },
    /// The daemon is stopping.
    #[serde(rename = "ending")]
    Stopping,
    /// The request is invalid.
    Error(ErrorReply),
    /// The call was submitted.
    #[serde(rename = "placed")]
    Submitted(SubmitReply),
    /// A group was submitted.
    GroupSubmitted(SubmitGroupReply),
    /// The state of a group.
    Group {
        /// The `calls::GroupReport`.
        report: Value,
    },
    /// The unfinished jobs of a group are being cancelled, or are cancelled.
    GroupCancelled {
        /// The group.
        group_id: String,
        /// These jobs.
        jobs: Vec<CancelledEntry>,
    },
    /// The other jobs of a group were cancelled, and their open changes discarded.
    OthersDiscarded {
        /// The jobs that were running or queued.
        cancelled: Vec<String>,
        /// The jobs whose changes were discarded.
        discarded: Vec<String>,
    },
    /// A run of a job has started.
    Run {
        /// The number of the run, from 1.
        number: u32,
        /// The private checkout in which it works.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkout: Option<String>,
    },
    /// A `model::AgentEvent` of a job's agent.
    Event {
        /// The event.
        #[serde(rename = "said")]
        event: Value,
    },
    /// A job's agent wrote to stderr.
    Stderr {
        /// The text.
        text: String,
    },
    /// A chunk of an agent's output.
    Bytes {
        /// Each character is one byte, so that output that is not UTF-8 survives.
        latin1: String,
    },
    /// The end of a stream.
    Done,
    /// The answer of a job.
    Answer(Box<A>),
    /// The answers of several jobs, in the order of the request.
    Answers {
        /// The answers.
        answers: Vec<A>,
    },
    /// A list of jobs.
    Jobs {
        /// The jobs, newest first.
        jobs: Vec<JobListEntry>,
        /// The number of jobs that match, listed or not.
        total: u64,
    },
    /// A job is being cancelled, or is cancelled.
    Cancelled(CancelledEntry),
    /// The changes of a job in its git worktree.
    Changes {
        /// The job.
        job_id: String,
        /// The changes.
        changes: ChangeSet,
    },
    /// The files of a job were restored.
    Restored {
        /// The job.
        job_id: String,
        /// The files, sorted by path.
        files: Vec<RestoredEntry>,
    },
    /// The changes of a job were applied, or have conflicts.
    Applied(ApplyReply),
    /// The changes of a job were discarded.
    Discarded {
        /// The job.
        job_id: String,
        /// The changes. Omitted if they were not recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changes: Option<ChangeSet>,
    },
    /// The open changes.
    OpenChanges {
        /// The changes, those of the newest job first.
        changes: Vec<OpenChangesEntry>,
    },
    /// The private checkout of a job.
    Checkout {
        /// Its directory; `None` without a checkout.
        directory: Option<String>,
        /// Its disk space; `None` if it is removed.
        disk_bytes: Option<u64>,
    },
    /// A link to the web page.
    Link {
        /// A one-time link that logs a browser in and expires soon.
        url: String,
    },
    /// Aggregated statistics.
    Stats(JobStats),
    /// A request about jobs was rejected.
    #[serde(rename = "refused")]
    Rejected {
        /// The category, which decides the exit code.
        #[serde(rename = "about")]
        category: ErrorCategory,
        /// The message and its hint.
        #[serde(rename = "why")]
        error: ErrorReply,
    },
}

/// The status of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its version.
    pub version: String,
    /// Its protocol version.
    pub protocol: u32,
    /// Its process id.
    pub pid: u32,
    /// The name under which it owns jobs.
    pub owner: String,
    /// The time since it started.
    pub uptime_ms: u64,
    /// Its state directory.
    pub state: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Its HTTP endpoint; `None` if it does not serve HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpStatus>,
    /// The number of client connections, including the one that sent the request.
    pub connections: u64,
    /// The number of running jobs.
    pub running: u64,
    /// The number of queued jobs.
    pub queued: u64,
    /// Its phase.
    pub phase: DaemonPhase,
    /// The reason why it rejects calls; `None` if it accepts them, or does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ErrorReply>,
}

/// The HTTP endpoint of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpStatus {
    /// The URL of the MCP endpoint.
    pub url: String,
    /// The file that contains the bearer token.
    pub token_file: PathBuf,
}

impl fmt::Display for HttpStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (token in {})", self.url, self.token_file.display())
    }
}

/// The phase of a daemon. Later phases are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonPhase {
    /// It accepts calls.
    Open,
    /// It waits for running jobs and stops afterwards.
    Draining,
    /// It is stopping.
    #[serde(rename = "ending")]
    Stopping,
}

/// A submitted call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitReply {
    /// The job.
    pub job_id: String,
    /// The directory of its files.
    #[serde(alias = "folder")]
    pub directory: PathBuf,
    /// The file with its status.
    pub status_file: PathBuf,
    /// The stdout of the agent.
    pub output_file: PathBuf,
    /// The stderr of the agent.
    pub error_file: PathBuf,
    /// The file that will contain the answer.
    pub result_file: PathBuf,
    /// The number of secrets that were removed from its texts.
    #[serde(default)]
    pub redactions: usize,
}

/// A submitted group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitGroupReply {
    /// The group.
    pub group_id: String,
    /// The jobs that work on the task.
    pub contenders: Vec<SubmitReply>,
    /// The jobs that compare the results.
    pub reviews: Vec<SubmitReply>,
}

/// A job that is being cancelled, or is cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelledEntry {
    /// The job.
    pub job_id: String,
    /// The state before the request.
    pub previous: StateName,
    /// The state now. A job that is still running is being stopped.
    pub now: StateName,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobListEntry {
    /// The job id.
    pub job_id: String,
    /// The state.
    pub status: StateName,
    /// The agent.
    pub agent: AgentKind,
    /// The requested model, or the one that answered.
    pub model: Option<String>,
    /// The tool that submitted the job.
    pub tool: String,
    /// The caller's name for the task.
    pub task: String,
    /// The working directory.
    pub cwd: String,
    /// The session.
    pub session_id: Option<String>,
    /// The time of submission, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// The run time, so far or in total.
    pub duration_ms: Option<u64>,
    /// The input and output tokens.
    pub tokens: Option<u64>,
    /// The cost, if the agent reports it.
    pub cost_usd: Option<f64>,
    /// The kind of failure.
    pub error: Option<String>,
    /// The start of the prompt.
    pub prompt: String,
}

/// The category of a rejection, from which a command derives its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCategory {
    /// The request is invalid.
    Input,
    /// The agent is not installed or not usable.
    Agent,
    /// The working directory is not usable.
    Directory,
    /// The state directory or the store is not writable, for example because the disk is full.
    Storage,
    /// Any other category, including those of newer daemons.
    #[serde(other)]
    Other,
}

/// Converts an event to JSON. An event that is nested too deeply becomes a warning, so that it does not abort the stream.
pub fn event_to_json(event: &AgentEvent<'_>) -> Value {
    serde_json::to_value(event).unwrap_or_else(
        |error| json!({ "event": "warning", "message": format!("cannot encode an event: {error}") }),
    )
}

/// Creates the event that reports why a job is waiting. A follower that reconnects does not receive it again.
pub fn waiting_event(reason: &str) -> Value {
    json!({ "event": WAITING, "reason": reason })
}

/// Returns whether an event is a [`waiting_event`].
pub fn is_waiting_event(event: &Value) -> bool {
    event["event"] == WAITING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_tagged_by_name() {
        type Line = ReplyLine<()>;
        let line = |reply, more| serde_json::to_string(&Line { reply, more }).unwrap();
        let draining = line(DaemonReply::Draining { running: 2 }, true);
        assert_eq!(draining, r#"{"reply":"draining","running":2,"more":true}"#);
        let last = line(DaemonReply::Stopping, false);
        assert_eq!(last, r#"{"reply":"ending"}"#);
        assert!(!serde_json::from_str::<Line>(&last).unwrap().more);
    }
}
