//! Requests to the daemon, one JSON object per line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::{AgentChoice, AgentKind, ApplyTarget, CallSpec, GroupKind, StateName, exact_path};
use serde::{Deserialize, Serialize};

/// A request of a command. Jobs and groups are named by their id or a unique prefix of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum DaemonRequest {
    /// Returns the status of the daemon.
    Status,
    /// Returns the settings that the daemon started with.
    Settings,
    /// Stops the daemon.
    Stop {
        /// The treatment of running jobs.
        #[serde(rename = "how")]
        mode: StopMode,
    },
    /// Submits a call.
    #[serde(rename = "place")]
    Submit(Box<SubmitRequest>),
    /// Submits several calls for one task.
    SubmitGroup(Box<SubmitGroupRequest>),
    /// Streams the events of a job from its start; the last line is its answer.
    Follow {
        /// The job.
        job: String,
        /// Ends at the output so far, even if the job is still running.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        until_now: bool,
    },
    /// Lists jobs.
    Jobs(JobQuery),
    /// Returns the answer of a job.
    Job {
        /// The job.
        job: String,
    },
    /// Streams the output of a job's agent.
    Output {
        /// The job.
        job: String,
        /// The stream.
        stream: OutputStream,
        /// Continues until the job ends.
        follow: bool,
    },
    /// Waits until jobs have ended.
    Wait {
        /// The jobs. A group stands for its jobs.
        jobs: Vec<String>,
        /// Returns when the first of them has ended.
        any: bool,
        /// The timeout in milliseconds; `None` waits without limit.
        timeout_ms: Option<u64>,
    },
    /// Cancels a job.
    Cancel {
        /// The job.
        job: String,
    },
    /// Returns the state of a group.
    Group {
        /// The group.
        group: String,
        /// The maximum number of characters of each answer; `None` for all of it.
        max_chars: Option<usize>,
    },
    /// Cancels the unfinished jobs of a group.
    CancelGroup {
        /// The group.
        group: String,
    },
    /// Cancels the unfinished other jobs of the group of a job, and discards the open changes of the other contenders.
    DiscardOthers {
        /// The job.
        job: String,
    },
    /// Submits an ended job again.
    Retry {
        /// The job.
        job: String,
    },
    /// Returns the changes of a job in its git worktree.
    Changes {
        /// The job.
        job: String,
        /// The files.
        #[serde(flatten)]
        files: SelectedFiles,
    },
    /// Streams the patch of a job.
    Patch {
        /// The job.
        job: String,
        /// The files.
        #[serde(flatten)]
        files: SelectedFiles,
    },
    /// Restores files as they were before a job.
    Restore {
        /// The job.
        job: String,
        /// Restores them as they were after the job instead.
        redo: bool,
        /// The files.
        #[serde(flatten)]
        files: SelectedFiles,
    },
    /// Applies the changes of a job in a private checkout to the worktree of the user.
    Apply {
        /// The job.
        job: String,
        /// The places that get the changes.
        #[serde(default)]
        target: ApplyTarget,
        /// Writes conflicts in the same lines into the files, between markers.
        markers: bool,
        /// Writes nothing.
        dry_run: bool,
        /// The files.
        #[serde(flatten)]
        files: SelectedFiles,
    },
    /// Discards the changes of a job in a private checkout.
    Discard {
        /// The job.
        job: String,
    },
    /// Lists the changes in private checkouts that are neither applied nor discarded.
    OpenChanges,
    /// Returns the private checkout of a job.
    Checkout {
        /// The job.
        job: String,
    },
    /// Returns a one-time link to the web page.
    Open,
    /// Returns aggregated statistics.
    Stats {
        /// Includes only jobs submitted at this time or later, in milliseconds since 1970.
        since_ms: Option<u64>,
    },
}

impl DaemonRequest {
    /// Returns the job that the request names, if it names exactly one.
    pub fn job(&self) -> Option<&str> {
        match self {
            Self::Follow { job, .. }
            | Self::Job { job }
            | Self::Output { job, .. }
            | Self::Cancel { job }
            | Self::Changes { job, .. }
            | Self::Patch { job, .. }
            | Self::Restore { job, .. }
            | Self::Apply { job, .. }
            | Self::Discard { job }
            | Self::Checkout { job }
            | Self::DiscardOthers { job }
            | Self::Retry { job } => Some(job),
            Self::Wait { jobs, .. } => jobs.first().filter(|_| jobs.len() == 1).map(String::as_str),
            _ => None,
        }
    }
}

/// Changed files of a job; all of them without any path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SelectedFiles {
    /// Files, and directories with all files below.
    #[serde(with = "exact_path")]
    pub paths: Vec<PathBuf>,
    /// The working directory of the client, to which relative paths refer if it is in the worktree.
    #[serde(with = "exact_path")]
    pub base: Option<PathBuf>,
}

/// The treatment of running jobs when the daemon stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// Waits for running jobs and starts no others.
    Drain,
    /// Exits immediately. Running jobs continue, and the next daemon recovers them.
    Now,
    /// Cancels running jobs first.
    Cancel,
}

/// An output stream of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// stdout.
    Output,
    /// stderr.
    Error,
}

/// A call to submit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubmitRequest {
    /// The call.
    pub call: CallSpec,
    /// The caller's name for the task.
    pub task: String,
    /// The idempotency key: a client repeats the request if the daemon dies before the reply.
    pub key: String,
    /// Is true if the caller does not wait for the answer.
    pub background: bool,
    /// The values of the variables that MCP servers of the call refer to. Never stored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub server_variables: BTreeMap<String, String>,
}

/// A task for several agents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubmitGroupRequest {
    /// The purpose.
    pub kind: GroupKind,
    /// The call that all of them get, except for agent and model.
    pub base: SubmitRequest,
    /// The agents.
    pub contenders: Vec<AgentChoice>,
    /// The agent that compares the results.
    pub judge: Option<AgentChoice>,
}

/// A filter for jobs. `None` and an empty list match all jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobQuery {
    /// The states.
    #[serde(default)]
    pub states: Vec<StateName>,
    /// The agent.
    #[serde(default)]
    pub agent: Option<AgentKind>,
    /// The tool that submitted the job.
    #[serde(default)]
    pub tool: Option<String>,
    /// The task.
    #[serde(default)]
    pub task: Option<String>,
    /// The maximum number of jobs.
    pub limit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_tagged_by_name() {
        let line = serde_json::to_string(&DaemonRequest::Stop { mode: StopMode::Drain }).unwrap();
        assert_eq!(line, r#"{"request":"stop","how":"drain"}"#);
        let status = serde_json::from_str::<DaemonRequest>(r#"{"request":"status"}"#).unwrap();
        assert_eq!(status, DaemonRequest::Status);
    }
}
