//! The errors of requests about jobs, with the commands and options that help.

use std::io;

use calls::{CallError, ChangesState, PrepareError, RestoreError};
use model::exact_path::show_path;
use protocol::{DaemonRequest, ErrorCategory, ErrorReply};

use crate::client::JobReply;

/// The hint for an unknown job.
pub(super) const LIST_JOBS_HINT: &str =
    "list jobs with `switchboard jobs`; old jobs are removed after a while";

/// A request could not be handled.
pub(super) enum HandlerError {
    Connection(io::Error),
    Rejected(ErrorCategory, ErrorReply),
}

impl HandlerError {
    /// Creates the error for a request that another handler handles.
    pub(super) fn unexpected(request: &DaemonRequest) -> Self {
        let message = format!("unexpected request: {request:?}");
        Self::Rejected(ErrorCategory::Other, ErrorReply { message, hint: String::new() })
    }
}

impl From<io::Error> for HandlerError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<CallError> for HandlerError {
    fn from(error: CallError) -> Self {
        let category = match &error {
            CallError::NotReady(_) => ErrorCategory::Agent,
            CallError::Cwd { .. }
            | CallError::CwdIsNoDirectory { .. }
            | CallError::CwdIsRelative { .. }
            | CallError::EscapingLink(_) => ErrorCategory::Directory,
            CallError::Changes(error) if !error.is_bad_path() => ErrorCategory::Other,
            CallError::Restore(RestoreError::Changes(error)) if error.is_bad_path() => ErrorCategory::Input,
            CallError::Launch(error) if error.is_about_cwd() => ErrorCategory::Directory,
            error if error.is_storage_failure() => ErrorCategory::Storage,
            CallError::Store(_)
            | CallError::StoppedUnkept { .. }
            | CallError::Files { .. }
            | CallError::Restore(_)
            | CallError::State { .. }
            | CallError::Copied { .. }
            | CallError::Closing => ErrorCategory::Other,
            _ => ErrorCategory::Input,
        };
        let hint = command_hint(&error);
        Self::Rejected(category, ErrorReply { message: model::error_chain(&error), hint })
    }
}

/// Returns the remedy for an error, with the commands and options for it.
fn command_hint(error: &CallError) -> String {
    match error {
        CallError::NoEarlierSession { .. } => {
            "omit `--continue` to start a session, or pass one with `--session`".to_owned()
        }
        CallError::SessionElsewhere { .. } => {
            "pass its directory with `--cwd`, or a session with `--session`".to_owned()
        }
        CallError::StoppedUnkept { job, source } => {
            format!("check it with `switchboard status {job}`; then {}", source.hint())
        }
        CallError::NoSuchJob { .. } => LIST_JOBS_HINT.to_owned(),
        CallError::Closing => {
            "wait for its running jobs, or stop it with `switchboard stop --now`; running jobs continue"
                .to_owned()
        }
        CallError::StillRunning { job } | CallError::WorktreeInUse { user: job, .. } => {
            format!("wait for it with `switchboard wait {job}`, or cancel it with `switchboard cancel {job}`")
        }
        CallError::AlreadyEnded { job, .. } => format!("see its result with `switchboard status {job}`"),
        CallError::Checkout(PrepareError::NoRepository { directory }) => {
            format!("run `git init` in `{}`, or call with `--no-worktree`", show_path(directory))
        }
        CallError::Checkout(PrepareError::SessionOutside { .. }) => {
            "omit `--session` and `--continue` to start a session, or call with `--no-worktree`".to_owned()
        }
        CallError::Checkout(PrepareError::ReadOnly | PrepareError::Unsuitable { .. }) => {
            "call with `--no-worktree`".to_owned()
        }
        CallError::NoCheckout { job } => {
            format!("its changes are in its directory; take them back with `switchboard undo {job}`")
        }
        CallError::ChangesState { job, state } => match state {
            ChangesState::Open => format!(
                "apply them with `switchboard apply {job}`, or drop them with `switchboard discard {job}`"
            ),
            ChangesState::Applied => format!("take them back with `switchboard undo {job}`"),
            ChangesState::Undone => format!("apply them again with `switchboard undo --redo {job}`"),
            ChangesState::Unchanged => format!("read its answer with `switchboard status {job}`"),
            _ => format!("see the patch with `switchboard diff {job}`"),
        },
        CallError::Continued { by, .. } => {
            format!("its changes are part of that job; apply them with `switchboard apply {by}`")
        }
        error => error.hint(),
    }
}

/// Creates the reply that rejects a request.
pub(super) fn rejection(category: ErrorCategory, error: &dyn std::error::Error, hint: &str) -> JobReply {
    let error = ErrorReply { message: model::error_chain(error), hint: hint.to_owned() };
    JobReply::Rejected { category, error }
}
