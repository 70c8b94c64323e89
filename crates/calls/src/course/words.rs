//! What is said when a course cannot go on as it was meant to.

use model::{Deadline, Failure, FailureKind, NotStartedReason};

use crate::course::Unfinished;
use crate::locks::Key;

/// What an agent is told whose run was lost and is taken up in the session that the run had.
pub(super) fn taken_up_again(task: &str) -> String {
    format!(
        "Your work on this task was interrupted from outside. See what is already done, then finish it. The task was:\n\n{task}"
    )
}

pub(super) fn out_of_time() -> Failure {
    let kind = FailureKind::Deadline { which: Deadline::Wall };
    Failure { kind, message: "the time of the call was used up when its run was lost".to_owned() }
}

pub(super) fn never_free(key: &Key) -> Failure {
    match key {
        Key::Session(_, session) => Failure {
            kind: FailureKind::SessionInUse,
            message: format!("another call had session {session} for all the time that this one may take"),
        },
        Key::Folder(folder) => Failure {
            kind: FailureKind::Deadline { which: Deadline::Wall },
            message: format!(
                "another call was working in `{}` for all the time that this one may take",
                folder.display()
            ),
        },
    }
}

pub(super) fn held_by_parent() -> Failure {
    let message =
        "the call that placed this one has the session, and cannot go on with it meanwhile".to_owned();
    Failure { kind: FailureKind::SessionInUse, message }
}

pub(super) fn not_started(error: &dyn std::error::Error, hint: &str) -> Failure {
    let kind = FailureKind::NotStarted { reason: NotStartedReason::Other };
    Failure { kind, message: format!("{}; {hint}", model::error_chain(error)) }
}

pub(super) fn not_kept(error: &dyn std::error::Error) -> Failure {
    let message =
        format!("nothing was started, since the call may not be kept: {}", model::error_chain(error));
    Failure { kind: FailureKind::SpoolFailed, message }
}

pub(super) fn supervisor_gone(error: &dyn std::error::Error) -> Failure {
    Failure { kind: FailureKind::SupervisorLost, message: model::error_chain(error) }
}

pub(super) fn not_written(error: &std::io::Error) -> Failure {
    Failure { kind: FailureKind::SpoolFailed, message: format!("cannot write the files of the job: {error}") }
}

pub(super) fn not_followed(error: &dyn std::error::Error) -> Failure {
    let message = format!("cannot follow the run: {}", model::error_chain(error));
    Failure { kind: FailureKind::SpoolFailed, message }
}

pub(super) fn unreadable(error: &dyn std::error::Error) -> Unfinished {
    Unfinished::Failed(not_followed(error))
}
