//! The exit codes of every command.
//!
//! One table, which `switchboard call --help` and docs/cli.md print; a test compares them.

use std::fmt::Write;
use std::process::ExitCode;

use calls::{Answer, JobStatus};
use model::{FailureKind, NotStartedReason};

/// The exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    Completed = 0,
    Failed = 1,
    BadInput = 2,
    TimedOut = 3,
    Cancelled = 4,
    NotInstalled = 5,
    DaemonRunning = 6,
    StillRunning = 7,
    NotConfined = 8,
    BadDirectory = 9,
    NotWritten = 10,
}

impl ExitStatus {
    const ALL: [Self; 11] = [
        Self::Completed,
        Self::Failed,
        Self::BadInput,
        Self::TimedOut,
        Self::Cancelled,
        Self::NotInstalled,
        Self::DaemonRunning,
        Self::StillRunning,
        Self::NotConfined,
        Self::BadDirectory,
        Self::NotWritten,
    ];

    fn meaning(self) -> &'static str {
        match self {
            Self::Completed => "completed (with --background: submitted)",
            Self::Failed => "failed, or incomplete: the agent answered and some of its work was stopped",
            Self::BadInput => "bad input: an option, the prompt, the configuration or a job id",
            Self::TimedOut => "timed out",
            Self::Cancelled => "cancelled",
            Self::NotInstalled => "the agent is not installed (setup: the host is not installed)",
            Self::DaemonRunning => "a daemon is already running (serve)",
            Self::StillRunning => "still running: `--wait` expired, or you detached",
            Self::NotConfined => "the sandbox cannot enforce the policy",
            Self::BadDirectory => "the working directory does not exist or cannot be used",
            Self::NotWritten => "the disk is full, or the state directory or stdout is not writable",
        }
    }

    /// Returns the table of all exit codes for `--help`.
    pub fn table() -> String {
        Self::ALL.into_iter().fold("Exit codes:\n".to_owned(), |mut table, status| {
            // Writing to a string does not fail.
            let _ = writeln!(table, "{:>4}  {}", status as u8, status.meaning());
            table
        })
    }

    /// Returns the exit status for the result of a job.
    pub fn from_answer(answer: &Answer) -> Self {
        match answer.status {
            JobStatus::Completed => Self::Completed,
            JobStatus::Failed => answer.error.as_ref().map_or(Self::Failed, |error| {
                match (error.kind.as_str(), error.reason) {
                    ("not_started", Some(reason)) => Self::from_not_started(reason),
                    ("spool_failed", _) => Self::NotWritten,
                    _ => Self::Failed,
                }
            }),
            JobStatus::Timeout => Self::TimedOut,
            JobStatus::Cancelled => Self::Cancelled,
            JobStatus::Running | JobStatus::Queued | JobStatus::Paused => Self::StillRunning,
        }
    }

    /// Returns the exit status for the outcome of a call without the daemon.
    pub fn from_failure(failure: Option<&FailureKind>) -> Self {
        match failure {
            None => Self::Completed,
            Some(FailureKind::Deadline { .. }) => Self::TimedOut,
            Some(FailureKind::Stopped) => Self::Cancelled,
            Some(FailureKind::NotStarted { reason }) => Self::from_not_started(*reason),
            Some(FailureKind::SpoolFailed) => Self::NotWritten,
            Some(_) => Self::Failed,
        }
    }

    fn from_not_started(reason: NotStartedReason) -> Self {
        match reason {
            NotStartedReason::ProgramMissing => Self::NotInstalled,
            NotStartedReason::CwdMissing
            | NotStartedReason::CwdNotADirectory
            | NotStartedReason::CwdForbidden => Self::BadDirectory,
            NotStartedReason::NotConfined => Self::NotConfined,
            NotStartedReason::ProgramNotExecutable | NotStartedReason::Other => Self::Failed,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Deadline;

    #[test]
    fn only_missing_program_means_not_installed() {
        let not_started = |reason| ExitStatus::from_failure(Some(&FailureKind::NotStarted { reason }));
        for (reason, expected) in [
            (NotStartedReason::ProgramMissing, ExitStatus::NotInstalled),
            (NotStartedReason::ProgramNotExecutable, ExitStatus::Failed),
            (NotStartedReason::CwdMissing, ExitStatus::BadDirectory),
            (NotStartedReason::CwdNotADirectory, ExitStatus::BadDirectory),
            (NotStartedReason::CwdForbidden, ExitStatus::BadDirectory),
            (NotStartedReason::NotConfined, ExitStatus::NotConfined),
            (NotStartedReason::Other, ExitStatus::Failed),
        ] {
            assert_eq!(not_started(reason), expected, "{reason:?}");
        }
    }

    #[test]
    fn daemon_running_code_matches_protocol() {
        assert_eq!(ExitStatus::DaemonRunning as i32, protocol::EXIT_ALREADY_RUNNING);
    }

    #[test]
    fn each_failure_kind_has_its_exit_code() {
        let code = |failure: Option<FailureKind>| ExitStatus::from_failure(failure.as_ref()) as u8;
        assert_eq!(code(None), 0);
        assert_eq!(code(Some(FailureKind::AgentError)), 1);
        assert_eq!(code(Some(FailureKind::Internal)), 1);
        assert_eq!(code(Some(FailureKind::Deadline { which: Deadline::Wall })), 3);
        assert_eq!(code(Some(FailureKind::Stopped)), 4);
        assert_eq!(code(Some(FailureKind::SpoolFailed)), 10);
    }
}
