//! The errors of the job service.

use std::io;
use std::path::{Path, PathBuf};

use agents::LaunchError;
use agents::doctor::{EscapingLink, NotReady};
use changes::{ChangesError, RestoreError};
use model::exact_path::show_path;
use model::{AgentKind, JobId, StateName};
use regular_file::path_hint;
use store::StoreError;

use crate::checkouts::PrepareError;
use crate::group::GroupError;
use crate::identity::DamagedIdentity;
use crate::job_changes::ChangesState;
use crate::launcher::CannotLaunch;
use crate::store_loss::LostJobs;
use crate::verification::VerifyError;

/// An error of the job service.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The agent is not installed, or cannot be used.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// The agent cannot be started with these options. No job was created.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The directory does not exist or cannot be entered.
    #[error("cannot use directory `{}`", directory.display())]
    Cwd {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path is not a directory.
    #[error("`{}` is not a directory", directory.display())]
    CwdIsNoDirectory {
        /// The path.
        directory: PathBuf,
    },
    /// The path is relative.
    #[error("directory `{}` is not an absolute path", directory.display())]
    CwdIsRelative {
        /// The directory.
        directory: PathBuf,
    },
    /// A link in an earlier workspace leads the directory out of it.
    #[error(transparent)]
    EscapingLink(#[from] EscapingLink),
    /// The task has no earlier session.
    #[error("there is no earlier session of the task `{task}` with {agent}")]
    NoEarlierSession {
        /// The task.
        task: String,
        /// The agent.
        agent: AgentKind,
    },
    /// The last session of the task belongs to another directory.
    #[error("the last session of the task `{task}` with {agent} belongs to `{}`", directory.display())]
    SessionElsewhere {
        /// The task.
        task: String,
        /// The agent.
        agent: AgentKind,
        /// The directory of the session.
        directory: PathBuf,
    },
    /// Another call has used the idempotency key.
    #[error("the idempotency key `{}` belongs to job {job}, which asked for something else", key.escape_debug())]
    KeyOfAnother {
        /// The key.
        key: String,
        /// The job that has the key.
        job: JobId,
    },
    /// The job does not exist.
    #[error("there is no job {job}")]
    NoSuchJob {
        /// The id.
        job: JobId,
    },
    /// The job has ended and cannot be cancelled.
    #[error("job {job} has already {}", past_participle(*state))]
    AlreadyEnded {
        /// The job.
        job: JobId,
        /// Its state.
        state: StateName,
    },
    /// The run is being stopped, but the cancellation could not be stored.
    #[error("job {job} is being stopped, but the cancellation could not be stored")]
    StoppedUnkept {
        /// The job.
        job: JobId,
        /// The cause.
        source: StoreError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The files of a job cannot be read.
    #[error("cannot read the files of job {job}")]
    Files {
        /// The job.
        job: JobId,
        /// The cause.
        source: io::Error,
    },
    /// The state directory cannot be used.
    #[error("cannot use the state directory `{}`", directory.display())]
    State {
        /// The directory.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The calls of agents are nested too deep.
    #[error("calls are nested more than {levels} deep")]
    NestedTooDeep {
        /// The maximum depth.
        levels: usize,
    },
    /// The state directory is a copy, and the original is alive.
    #[error("the state directory `{}` is a copy: the original is in use, and shares its store", directory.display())]
    Copied {
        /// The copy.
        directory: PathBuf,
    },
    /// The database was lost while no service had it open.
    #[error("{lost}")]
    JobsLost {
        /// The state directory.
        directory: PathBuf,
        /// The lost jobs.
        lost: LostJobs,
    },
    /// The store is not embedded.
    #[error("only the embedded store can be rebuilt from the job directories")]
    NotEmbedded,
    /// The job has no recorded changes on this machine.
    #[error("job {job} has no recorded changes{}", reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    ChangesMissing {
        /// The job.
        job: JobId,
        /// The reason, if it was stored.
        reason: Option<String>,
    },
    /// The call cannot have a private checkout.
    #[error(transparent)]
    Checkout(#[from] PrepareError),
    /// The verification of the call is invalid.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The group is invalid.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The job did not work in a private checkout of its own.
    #[error("job {job} has no private checkout")]
    NoCheckout {
        /// The job.
        job: JobId,
    },
    /// The changes in a private checkout are not in a state for the request.
    #[error("{}", describe_state(job, *state))]
    ChangesState {
        /// The job.
        job: JobId,
        /// Their state.
        state: ChangesState,
    },
    /// Another job has continued in the private checkout of the job.
    #[error("job {by} has continued the changes of job {job}")]
    Continued {
        /// The job.
        job: JobId,
        /// The other job.
        by: JobId,
    },
    /// The changes of a running job cannot be undone.
    #[error("job {job} has not finished")]
    StillRunning {
        /// The job.
        job: JobId,
    },
    /// Another job works in the worktree.
    #[error("job {user} is working in `{}`", show_path(worktree))]
    WorktreeInUse {
        /// The root of the worktree.
        worktree: PathBuf,
        /// The other job.
        user: JobId,
    },
    /// The recorded changes cannot be read.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// Files could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The service is shutting down.
    #[error("the daemon is stopping and takes no new calls")]
    Closing,
}

/// Returns the remedy for an unusable state directory.
fn state_hint(state: &Path, source: &io::Error) -> String {
    let damaged = source.get_ref().and_then(|inner| inner.downcast_ref::<DamagedIdentity>());
    if let Some(damaged) = damaged {
        return damaged.hint();
    }
    if let Some(hint) = path_hint(source) {
        return hint;
    }
    if !state.exists() {
        return format!(
            "move the directory back to `{}`, or stop the daemon with `switchboard stop --now` and retry",
            state.display()
        );
    }
    "check that it exists, belongs to you and can be written".to_owned()
}

impl From<CannotLaunch> for CallError {
    fn from(error: CannotLaunch) -> Self {
        match error {
            CannotLaunch::NotReady(error) => Self::NotReady(error),
            CannotLaunch::Launch(error) => Self::Launch(error),
        }
    }
}

impl CallError {
    /// Returns the remedy, in terms that fit every front end.
    pub fn hint(&self) -> String {
        match self {
            Self::NotReady(error) => error.hint().to_owned(),
            Self::Launch(error) => error.hint(),
            Self::Cwd { .. } => "create the directory, or give one that exists and may be entered".to_owned(),
            Self::CwdIsNoDirectory { .. } => "pass the directory, not a file in it".to_owned(),
            Self::CwdIsRelative { .. } => {
                "pass an absolute path, a path that starts with `~/`, or an alias from the configuration"
                    .to_owned()
            }
            Self::EscapingLink(error) => error.hint(),
            Self::NoEarlierSession { .. } => "start a new session, or name the one to resume".to_owned(),
            Self::SessionElsewhere { .. } => {
                "use its directory, name the session to resume, or use another task name in each directory"
                    .to_owned()
            }
            Self::KeyOfAnother { .. } => "use a new key for a new call".to_owned(),
            Self::NoSuchJob { .. } => {
                "list the jobs to find its id; old jobs are removed after a while".to_owned()
            }
            Self::AlreadyEnded { .. } => "read its result".to_owned(),
            Self::StoppedUnkept { source, .. } => {
                format!("check whether it has ended; then {}", source.hint())
            }
            Self::Store(error) => error.hint().to_owned(),
            Self::Files { source, .. } => path_hint(source)
                .unwrap_or_else(|| "check that the directory of the job still exists".to_owned()),
            Self::Copied { directory } => {
                format!(
                    "if this is the copy, remove {}: it gets an identity of its own",
                    directory.join("identity.json").display()
                )
            }
            Self::JobsLost { directory, lost } => lost.hint(directory),
            Self::NotEmbedded => "restore the server's database from its own backup".to_owned(),
            Self::State { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "make room on the disk".to_owned()
            }
            Self::State { directory, source } => state_hint(directory, source),
            Self::NestedTooDeep { .. } => {
                "let the outermost agent place the call: each level keeps one more agent running".to_owned()
            }
            Self::ChangesMissing { reason: Some(_), .. } => "fix the cause for later calls".to_owned(),
            Self::ChangesMissing { .. } => {
                "a call is recorded if it may write, in a git repository, unless the configuration sets `record_changes = false`".to_owned()
            }
            Self::Checkout(error) => error.hint(),
            Self::Verify(error) => error.hint(),
            Self::Group(error) => error.hint().to_owned(),
            Self::NoCheckout { .. } => {
                "its changes are in the directory in which it worked; undo takes them back".to_owned()
            }
            Self::ChangesState { state: ChangesState::Open, .. } => {
                "apply or discard them; the worktree does not contain them yet".to_owned()
            }
            Self::ChangesState { state: ChangesState::Applied, .. } => "undo takes them back".to_owned(),
            Self::ChangesState { state: ChangesState::Undone, .. } => "an undo can be undone".to_owned(),
            Self::ChangesState { state: ChangesState::Unchanged, .. } => "read its answer".to_owned(),
            Self::ChangesState { .. } => "look at them in its patch".to_owned(),
            Self::Continued { by, .. } => format!("use job {by}, whose changes include them"),
            Self::StillRunning { .. } => "wait until it has ended, or cancel it".to_owned(),
            Self::WorktreeInUse { user, .. } => format!("wait until job {user} has ended, or cancel it"),
            Self::Changes(error) => error.hint().unwrap_or_default(),
            Self::Restore(error) => error.hint().unwrap_or_default(),
            Self::Closing => "try again when its running jobs have ended".to_owned(),
        }
    }

    /// Returns whether the state directory or the store could not be written.
    pub fn is_storage_failure(&self) -> bool {
        matches!(
            self,
            Self::State { .. }
                | Self::Copied { .. }
                | Self::JobsLost { .. }
                | Self::Store(
                    StoreError::Full { .. }
                        | StoreError::CannotOpen { .. }
                        | StoreError::NotAFile { .. }
                        | StoreError::Lost(_)
                )
        )
    }

    /// Returns the request parameter that caused the error.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Cwd { .. }
            | Self::CwdIsNoDirectory { .. }
            | Self::CwdIsRelative { .. }
            | Self::EscapingLink(_) => Some("cwd"),
            Self::NoEarlierSession { .. } | Self::SessionElsewhere { .. } => Some("continue_latest"),
            Self::KeyOfAnother { .. } => Some("idempotency_key"),
            Self::Checkout(_) => Some("worktree"),
            Self::Verify(error) => Some(error.field()),
            Self::Group(GroupError::Size { .. }) => Some("agents"),
            Self::Group(GroupError::ReadOnly) => Some("observe"),
            Self::Group(GroupError::SharedDirectories) => Some("add_dirs"),
            Self::Group(
                GroupError::NotGrouped { .. }
                | GroupError::NotAContender { .. }
                | GroupError::RepeatedReview { .. },
            )
            | Self::NoSuchJob { .. }
            | Self::AlreadyEnded { .. }
            | Self::ChangesMissing { .. }
            | Self::NoCheckout { .. }
            | Self::ChangesState { .. }
            | Self::Continued { .. }
            | Self::StillRunning { .. } => Some("job_id"),
            Self::Changes(ChangesError::UnknownPath { .. })
            | Self::Restore(RestoreError::Changes(ChangesError::UnknownPath { .. })) => Some("paths"),
            Self::Launch(LaunchError::EmptyPrompt | LaunchError::PromptTooLong { .. }) => Some("prompt"),
            Self::Launch(LaunchError::Model(_)) => Some("model"),
            Self::Group(GroupError::Session) | Self::Launch(LaunchError::SessionNotUuid { .. }) => {
                Some("resume_session_id")
            }
            _ => None,
        }
    }
}

/// Returns the state for a sentence such as "the job has already completed".
fn past_participle(state: StateName) -> &'static str {
    match state {
        StateName::Timeout => "timed out",
        StateName::Cancelled => "been cancelled",
        state => state.as_str(),
    }
}

fn describe_state(job: &JobId, state: ChangesState) -> String {
    match state {
        ChangesState::Unchanged => format!("job {job} has changed nothing"),
        state => format!("the changes of job {job} are {}", state.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_identity_is_named_with_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("identity.json");
        for text in ["", "{", "[1]"] {
            std::fs::write(&path, text).unwrap();
            let source = crate::identity::StateIdentity::open(directory.path()).unwrap_err();
            let error = CallError::State { directory: directory.path().to_owned(), source };
            let hint = error.hint();
            assert!(
                hint.contains(&format!("restore `{}` from a backup, or remove it", path.display())),
                "{hint}"
            );
        }
    }

    #[test]
    fn moved_state_directory_is_not_a_full_disk() {
        let directory = PathBuf::from("/does/not/exist");
        let error = CallError::State { directory, source: io::ErrorKind::NotFound.into() };
        assert!(error.hint().starts_with("move the directory back to `/does/not/exist`"), "{}", error.hint());
    }
}
