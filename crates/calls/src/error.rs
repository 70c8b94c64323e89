//! Why a call was not placed, or a question about a job not answered.

use std::io;
use std::path::PathBuf;

use agents::LaunchError;
use agents::doctor::NotReady;
use model::{AgentKind, JobId, StateName};
use store::StoreError;

use crate::launcher::CannotLaunch;
use crate::store_loss::LostJobs;

/// Why the desk did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The agent is not here, or cannot be used.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// The agent cannot be started like that. Nothing was placed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// There is no such folder.
    #[error("the folder `{}` cannot be used", folder.display())]
    Cwd {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was named as a folder is something else.
    #[error("`{}` is not a folder", folder.display())]
    CwdIsNoFolder {
        /// What it is.
        folder: PathBuf,
    },
    /// A folder must be named from the root.
    #[error("the folder `{}` is not an absolute path", folder.display())]
    CwdIsRelative {
        /// The folder.
        folder: PathBuf,
    },
    /// There is no earlier conversation to go on with.
    #[error("there is no earlier session of the task `{task}` with {agent}")]
    NoEarlierSession {
        /// The task.
        task: String,
        /// The agent.
        agent: AgentKind,
    },
    /// The last conversation is one of another folder.
    #[error("the last session of the task `{task}` with {agent} belongs to `{}`", folder.display())]
    SessionElsewhere {
        /// The task.
        task: String,
        /// The agent.
        agent: AgentKind,
        /// Where it belongs.
        folder: PathBuf,
    },
    /// The key was given to another call before.
    #[error("the idempotency key `{}` belongs to job {job}, which asked for something else", key.escape_debug())]
    KeyOfAnother {
        /// The key.
        key: String,
        /// Whose it is.
        job: JobId,
    },
    /// There is no such job.
    #[error("there is no job {job}")]
    NoSuchJob {
        /// The id.
        job: JobId,
    },
    /// A job that is over cannot be cancelled.
    #[error("job {job} has already ended as {state}")]
    AlreadyEnded {
        /// Which job.
        job: JobId,
        /// How it ended.
        state: StateName,
    },
    /// A job is stopped, and the store does not know of it.
    #[error("job {job} is being stopped, but that this was wanted cannot be kept")]
    StoppedUnkept {
        /// Which job.
        job: JobId,
        /// Why.
        source: StoreError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The files of a job cannot be read.
    #[error("cannot read the files of job {job}")]
    Files {
        /// Which job.
        job: JobId,
        /// Why.
        source: io::Error,
    },
    /// The desk's own folder cannot be used.
    #[error("cannot use the state folder `{}`", folder.display())]
    State {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An agent places a call from within a call, and so on.
    #[error("calls are nested more than {levels} deep")]
    NestedTooDeep {
        /// How deep they may be.
        levels: usize,
    },
    /// The state directory is a copy, and the original is alive.
    #[error("the state directory `{}` is a copy: the original is in use, and shares its store", folder.display())]
    Copied {
        /// The copy.
        folder: PathBuf,
    },
    /// The database was lost while no desk had it open.
    #[error("{lost}")]
    JobsLost {
        /// The state directory.
        folder: PathBuf,
        /// What was lost.
        lost: LostJobs,
    },
    /// The store is a server, or in memory.
    #[error("only the embedded store can be rebuilt from the job directories")]
    NotEmbedded,
    /// The desk is closing.
    #[error("the daemon is stopping and takes no new calls")]
    Closing,
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
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::NotReady(error) => error.hint().to_owned(),
            Self::Launch(error) => error.hint(),
            Self::Cwd { .. } => "create the folder, or give one that exists and may be entered".to_owned(),
            Self::CwdIsNoFolder { .. } => "give the folder and not a file in it".to_owned(),
            Self::CwdIsRelative { .. } => {
                "give an absolute path, one that begins with `~/`, or an alias of the configuration"
                    .to_owned()
            }
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
            Self::Files { .. } => "check that the folder of the job is still there".to_owned(),
            Self::Copied { folder } => {
                format!(
                    "if this is the copy, remove {}: it gets an identity of its own",
                    folder.join("identity.json").display()
                )
            }
            Self::JobsLost { folder, lost } => lost.hint(folder),
            Self::NotEmbedded => "restore the server's database from its own backup".to_owned(),
            Self::State { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "make room on the disk".to_owned()
            }
            Self::State { .. } => "check that it exists, belongs to you and can be written".to_owned(),
            Self::NestedTooDeep { .. } => {
                "let the outermost agent place the call: each level keeps one more agent running".to_owned()
            }
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
                | Self::Store(StoreError::Full { .. } | StoreError::CannotOpen { .. } | StoreError::Lost(_))
        )
    }

    /// The parameter of a call that is to be mended, when it is one.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Cwd { .. } | Self::CwdIsNoFolder { .. } | Self::CwdIsRelative { .. } => Some("cwd"),
            Self::NoEarlierSession { .. } | Self::SessionElsewhere { .. } => Some("continue_latest"),
            Self::KeyOfAnother { .. } => Some("idempotency_key"),
            Self::NoSuchJob { .. } | Self::AlreadyEnded { .. } => Some("job_id"),
            Self::Launch(LaunchError::EmptyPrompt | LaunchError::PromptTooLong { .. }) => Some("prompt"),
            Self::Launch(LaunchError::Model(_)) => Some("model"),
            Self::Launch(LaunchError::SessionIsNoUuid { .. }) => Some("resume_session_id"),
            _ => None,
        }
    }
}
