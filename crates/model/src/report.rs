//! How a run ended, as the supervisor saw it from outside.
//!
//! Knows processes, not vendors: whether the agent's answer is any good is read from its output, elsewhere.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Deadline, SandboxReport};

/// Everything that is known about a run that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReport {
    /// What ended it.
    pub end: End,
    /// How the agent's own process ended; none when it never started or nobody was there to see it.
    pub exit: Option<Exit>,
    /// When the last of its processes was gone, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// From the start of the agent to `ended_at_ms`, in milliseconds.
    pub duration_ms: u64,
    /// How many bytes stand in the spool's `output`.
    pub output_bytes: u64,
    /// How many bytes stand in the spool's `error`.
    pub error_bytes: u64,
    /// What the whole tree used.
    pub usage: TreeUsage,
    /// How many processes, the agent's own not counted, were still alive at the end and had to be ended.
    pub descendants_ended: u32,
    /// How sure it is that nothing is left.
    pub tree: TreeEnd,
    /// What confined it; none when nothing was started, or when an older version wrote this down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxReport>,
}

/// What ended a run.
///
/// Finished beats stopped: an agent that had already exited when a stop or a deadline came keeps `Exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum End {
    /// The agent ended by itself, with whatever exit.
    Exited,
    /// A wait was over.
    Deadline {
        /// Which one.
        which: Deadline,
    },
    /// It printed more than [`crate::Limits::output_bytes`]; the spool holds exactly that many bytes.
    OutputLimit,
    /// Somebody asked the supervisor to stop.
    Stopped,
    /// The agent could not be started.
    NotStarted(NotStarted),
    /// The spool could no longer be written (disk full, folder removed), so the run was ended.
    SpoolFailed {
        /// What the operating system said.
        message: String,
    },
    /// The process that had started it ended, and the run was not to outlive it.
    StarterGone,
    /// The supervisor itself was killed; the recovery ended what it had left.
    SupervisorLost,
    /// A protected path was created again each time it had been moved to quarantine.
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
            Self::StarterGone => f.write_str("the program that had started it ended"),
            Self::SupervisorLost => f.write_str("supervisor lost"),
            Self::PolicyViolation { path } => {
                write!(
                    f,
                    "policy violation: `{}` was created again and again",
                    crate::exact_path::show_path(path)
                )
            }
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
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

/// Why an agent could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct NotStarted {
    /// The kind of failure.
    pub reason: NotStartedReason,
    /// What failed, with what, and what the operating system said.
    pub message: String,
}

/// The kinds of failures to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotStartedReason {
    /// There is no such program, or its interpreter is missing.
    ProgramMissing,
    /// The program is there but may not be executed, or is not something that can be.
    ProgramNotExecutable,
    /// There is no such working directory.
    CwdMissing,
    /// The working directory is something else.
    CwdNotADirectory,
    /// The working directory may not be entered.
    CwdForbidden,
    /// It cannot be confined as its policy requires.
    NotConfined,
    /// Anything else the operating system refused.
    Other,
}

impl NotStartedReason {
    /// What to do about it.
    pub fn hint(self) -> &'static str {
        match self {
            Self::ProgramMissing => "install the program, or give the path where it is",
            Self::ProgramNotExecutable => "check that the path names a program and that `chmod +x` was done",
            Self::CwdMissing => "create the folder, or give one that exists",
            Self::CwdNotADirectory => "give the folder and not a file in it",
            Self::CwdForbidden => "give a folder that you may enter, or change its rights",
            Self::NotConfined => {
                "`switchboard doctor` says what is missing; a policy with `best-effort` runs with what there is"
            }
            Self::Other => "see the message of the operating system",
        }
    }
}

/// What a whole process tree used, as far as its processes were waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TreeUsage {
    /// CPU time in user mode, of all processes together.
    pub cpu_user_ms: u64,
    /// CPU time in the kernel, of all processes together.
    pub cpu_system_ms: u64,
    /// The peak resident memory of the largest single process of the tree (the kernel keeps no sum).
    pub largest_rss_bytes: u64,
}

/// How sure it is that no process of the run is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeEnd {
    /// The kernel said so: the supervisor, to which every orphan of the tree falls, had no child left.
    ProvenEmpty,
    /// The supervisor was gone; every process that carried the run's identity was ended, until none was found.
    SweptByIdentity,
    /// Some could not be ended (in uninterruptible sleep, or another user's).
    LeftAlive {
        /// How many were seen last.
        processes: u32,
    },
}
