//! The report of a finished run, as the supervisor observed it.
//!
//! Knows processes, not vendors: `agents` judges the output.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Deadline, SandboxReport};

/// The supervisor's report of a finished run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReport {
    /// The reason for the end.
    pub end: End,
    /// The exit status of the agent's process. `None` if it was never spawned, or its supervisor was killed.
    pub exit: Option<Exit>,
    /// The time when the process tree was empty, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// The time from the start of the agent to `ended_at_ms`, in milliseconds.
    pub duration_ms: u64,
    /// The size of the spool's `output`.
    pub output_bytes: u64,
    /// The size of the spool's `error`.
    pub error_bytes: u64,
    /// The resources of the process tree.
    pub usage: TreeUsage,
    /// The number of processes, besides the agent's, that had to be killed at the end.
    pub descendants_ended: u32,
    /// Is true if a process of the tree was suspended (SIGSTOP, a debugger) when the run was stopped: the agent may have been silent
    /// only because of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_suspended: bool,
    /// The evidence that no process is left.
    pub tree: TreeEnd,
    /// The sandbox. `None` if nothing was spawned, or in a report of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
}

/// The reason for the end of a run.
///
/// Finished beats stopped: an agent that had already exited when a stop or a deadline arrived keeps `Exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum End {
    /// The agent exited by itself, with any status.
    Exited,
    /// A deadline has passed.
    Deadline {
        /// The deadline.
        which: Deadline,
    },
    /// The output exceeded [`crate::Limits::output_bytes`]; the spool contains exactly that many bytes.
    OutputLimit,
    /// A client requested the stop.
    Stopped,
    /// The agent could not be spawned.
    NotStarted(NotStarted),
    /// The spool could not be written (ENOSPC, directory deleted), so the run was stopped.
    SpoolFailed {
        /// The error of the kernel.
        message: String,
    },
    /// The process that had started the run exited, and the run was bound to it.
    StarterGone,
    /// The supervisor was killed; recovery killed the remaining processes.
    SupervisorLost,
    /// A protected path was created again after each move to quarantine.
    PolicyViolation {
        /// The path.
        #[serde(with = "crate::exact_path")]
        path: PathBuf,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited => f.write_str("exited"),
            Self::Deadline { which } => write!(f, "{which} deadline"),
            Self::OutputLimit => f.write_str("output limit"),
            Self::Stopped => f.write_str("stopped"),
            Self::NotStarted(failure) => write!(f, "not started: {failure}"),
            Self::SpoolFailed { message } => write!(f, "spool failed: {message}"),
            Self::StarterGone => f.write_str("the process that started it exited"),
            Self::SupervisorLost => f.write_str("supervisor lost"),
            Self::PolicyViolation { path } => {
                write!(f, "policy violation: `{}` was created repeatedly", crate::exact_path::show_path(path))
            }
        }
    }
}

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// An exit code.
    Code(i32),
    /// A signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The reason why an agent could not be spawned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct NotStarted {
    /// The kind.
    pub reason: NotStartedReason,
    /// The failed action, its object and the error of the kernel.
    pub message: String,
}

/// The kinds of spawn failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotStartedReason {
    /// The program, or the interpreter of the script, does not exist.
    ProgramMissing,
    /// The program exists but cannot be executed.
    ProgramNotExecutable,
    /// The working directory does not exist.
    CwdMissing,
    /// The working directory is not a directory.
    CwdNotADirectory,
    /// The working directory is not accessible.
    CwdForbidden,
    /// The required sandbox policy cannot be enforced.
    NotConfined,
    /// Any other error of the kernel.
    Other,
}

impl NotStartedReason {
    /// Returns the remedy.
    pub fn hint(self) -> &'static str {
        match self {
            Self::ProgramMissing => "install the program, or pass its path",
            Self::ProgramNotExecutable => "check that the path is a program with execute permission",
            Self::CwdMissing => "create the directory, or pass one that exists",
            Self::CwdNotADirectory => "pass a directory, not a file",
            Self::CwdForbidden => "pass a directory that you can access, or change its permissions",
            Self::NotConfined => "run `switchboard doctor` to see what is missing, or use `best-effort`",
            Self::Other => "see the message of the operating system",
        }
    }
}

/// The resources used by the reaped processes of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TreeUsage {
    /// User CPU time of all processes.
    pub cpu_user_ms: u64,
    /// System CPU time of all processes.
    pub cpu_system_ms: u64,
    /// The peak RSS of the largest process. The kernel keeps no sum.
    pub largest_rss_bytes: u64,
}

/// The evidence that no process of a run is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeEnd {
    /// The kernel confirmed it: the supervisor, a subreaper, had no child left.
    ProvenEmpty,
    /// The supervisor was dead; every process with the run's id was killed until a scan found none.
    SweptByIdentity,
    /// Some processes could not be killed (uninterruptible sleep, another user).
    LeftAlive {
        /// The number of processes in the last scan.
        processes: u32,
    },
}
