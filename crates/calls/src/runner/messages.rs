//! The failures of a job that its agent did not cause, and the prompt after an interruption.

use model::{Deadline, Failure, FailureKind, NotStartedReason};

use crate::launcher::CannotLaunch;
use crate::locks::LockKey;

/// Returns the prompt for an agent whose run was lost and whose session is resumed.
pub(super) fn continue_prompt(task: &str) -> String {
    format!(
        "Your work on this task was interrupted from outside. See what is already done, then finish it. The task was:\n\n{task}"
    )
}

pub(super) fn locked_too_long(key: &LockKey) -> Failure {
    match key {
        LockKey::Session(_, session) => Failure {
            kind: FailureKind::SessionInUse,
            message: format!("another call used session {session} until the time limit of this one"),
        },
        LockKey::Directory(directory) => Failure {
            kind: FailureKind::Deadline { which: Deadline::Wall },
            message: format!(
                "another call worked in `{}` until the time limit of this one",
                directory.display()
            ),
        },
    }
}

pub(super) fn session_of_ancestor() -> Failure {
    let message = "the call that placed this one is using the session".to_owned();
    Failure { kind: FailureKind::SessionInUse, message }
}

pub(super) fn cannot_start(error: &dyn std::error::Error, hint: &str) -> Failure {
    let kind = FailureKind::NotStarted { reason: NotStartedReason::Other };
    Failure { kind, message: format!("{}; {hint}", model::error_chain(error)) }
}

pub(super) fn cannot_store(error: &dyn std::error::Error) -> Failure {
    let message =
        format!("the agent was not started, since the call is not durable: {}", model::error_chain(error));
    Failure { kind: FailureKind::SpoolFailed, message }
}

pub(super) fn supervisor_gone(error: &dyn std::error::Error) -> Failure {
    Failure { kind: FailureKind::SupervisorLost, message: model::error_chain(error) }
}

pub(super) fn cannot_write(error: &std::io::Error) -> Failure {
    Failure { kind: FailureKind::SpoolFailed, message: format!("cannot write the files of the job: {error}") }
}

pub(super) fn cannot_follow(error: &dyn std::error::Error) -> Failure {
    let message = format!("cannot follow the run: {}", model::error_chain(error));
    Failure { kind: FailureKind::SpoolFailed, message }
}

pub(super) fn launch_failure(error: &CannotLaunch) -> Failure {
    match error {
        CannotLaunch::NotReady(error) => Failure {
            kind: FailureKind::NotStarted { reason: NotStartedReason::ProgramMissing },
            message: format!("{error}; {}", error.hint()),
        },
        CannotLaunch::Launch(error) => cannot_start(error, &error.hint()),
    }
}

pub(super) fn setup_failed(command: &str, problem: &str, output: &str) -> Failure {
    let end = if output.is_empty() { String::new() } else { format!("; the end of its output:\n{output}") };
    Failure { kind: FailureKind::SetupFailed, message: format!("`{command}` {problem}{end}") }
}

pub(super) fn command_lost(command: &str) -> Failure {
    let message = format!("the supervisor of `{command}` was killed each time that it was started");
    Failure { kind: FailureKind::SupervisorLost, message }
}
