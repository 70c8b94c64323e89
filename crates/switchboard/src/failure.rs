//! The errors of all commands, with their hints and exit codes.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use agents::LaunchError;
use agents::doctor::NotReady;
use model::Preset;
use supervisor::{SpoolError, StartError, WaitError};

use crate::config::ConfigError;
use crate::daemon::DaemonError;
use crate::exit_status::ExitStatus;
use crate::front::{ConnectError, FrontError};
use crate::home::{FolderError, HomeError};
use crate::recover::RecoverError;
use crate::setup::SetupError;
use crate::wire::{About, Complaint};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot read the prompt from stdin")]
    Prompt(#[source] io::Error),
    #[error("the prompt is not valid UTF-8")]
    PromptIsNoText,
    #[error("cannot use directory `{}`", folder.display())]
    Directory { option: &'static str, folder: PathBuf, source: io::Error },
    #[error("`--observe` conflicts with `--policy {policy}`, which lets the agent write")]
    ObserveWrites { policy: Preset },
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error(transparent)]
    Front(#[from] FrontError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error("cannot write the manual pages to `{}`", folder.display())]
    Manual { folder: PathBuf, source: io::Error },
    #[error("{}", why.message)]
    Refused { about: About, why: Complaint },
    #[error("unexpected reply from the daemon")]
    UnexpectedReply,
    #[error("the daemon exited {attempts} times in a row{}", while_handling(job.as_deref()))]
    DaemonUnavailable { attempts: u32, job: Option<String> },
    #[error("the daemon (pid {pid}) did not exit within 60 s")]
    StillThere { pid: i32 },
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("cannot start the call")]
    Start(#[from] StartError),
    #[error("lost track of the run")]
    Wait(#[from] WaitError),
    #[error("cannot follow the run")]
    Follow(#[source] io::Error),
    #[error("cannot stop the run")]
    StopRun(#[source] io::Error),
    #[error("cannot start the async runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot write to stdout")]
    Unwritten { kept: Kept, source: io::Error },
    #[error("cannot encode or decode JSON")]
    Json(#[from] serde_json::Error),
}

/// The place of a result that could not be printed.
#[derive(Debug)]
pub enum Kept {
    /// Nowhere: run the command again.
    Nowhere,
    /// A job of the daemon.
    Job(String),
    /// The directory of a call without the daemon.
    Folder(PathBuf),
}

fn while_handling(job: Option<&str>) -> String {
    job.map(|job| format!(" while handling job {job}")).unwrap_or_default()
}

impl Failure {
    /// Creates the error of a result that stdout did not accept.
    pub fn unwritten(source: io::Error, kept: Kept) -> Self {
        Self::Unwritten { kept, source }
    }

    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::PromptIsNoText => "convert it to UTF-8, for example with `iconv`".to_owned(),
            Self::Directory { option, .. } => format!("pass an existing directory with `{option}`"),
            Self::ObserveWrites { .. } => {
                "omit one of them, or use `--policy observe` or `--policy sealed`".to_owned()
            }
            Self::Home(error) => error.hint(),
            Self::Config(error) => error.hint(),
            Self::Daemon(error) => error.hint(),
            Self::Front(error) => error.hint(),
            Self::Connect(error) => error.hint(),
            Self::Setup(error) => error.hint(),
            Self::Recover(error) => error.hint(),
            Self::Manual { .. } => "pass a directory you can write to".to_owned(),
            Self::Refused { why, .. } => why.hint.clone(),
            Self::Unwritten { kept: Kept::Nowhere, .. } => {
                "redirect stdout to a writable file and retry".to_owned()
            }
            Self::Unwritten { kept: Kept::Job(job), .. } => {
                format!("the result is stored with the job; print it with `switchboard logs {job}`")
            }
            Self::Unwritten { kept: Kept::Folder(folder), .. } => {
                format!("the agent's output is in `{}`", folder.join("output").display())
            }
            Self::UnexpectedReply => format!("retry; if that does not help, {}", crate::wire::UPGRADE_DAEMON),
            Self::DaemonUnavailable { job: None, .. } => {
                "see the daemon log (`switchboard config` prints its path), then retry".to_owned()
            }
            Self::DaemonUnavailable { job: Some(job), .. } => format!(
                "see the daemon log (`switchboard config` prints its path), then run `switchboard status {job}`"
            ),
            Self::StillThere { pid } => {
                format!("see its log; `kill -9 {pid}` kills it, and running jobs continue")
            }
            Self::NotReady(error) => error.hint().to_owned(),
            Self::Launch(error) => error.hint(),
            Self::Start(error) => error.hint().to_owned(),
            Self::Wait(error) => error.hint().to_owned(),
            Self::Prompt(_) | Self::Follow(_) | Self::StopRun(_) | Self::Runtime(_) | Self::Json(_) => {
                return None;
            }
        })
    }

    /// Returns the exit code, as `switchboard call --help` lists them.
    pub fn exit_code(&self) -> ExitCode {
        self.exit_status().into()
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Directory { .. } | Self::Refused { about: About::Directory, .. } => {
                ExitStatus::BadDirectory
            }
            Self::Launch(error) if error.is_about_cwd() => ExitStatus::BadDirectory,
            Self::Home(HomeError::Folder(FolderError::Cannot { .. }))
            | Self::Front(FrontError::Home(HomeError::Folder(FolderError::Cannot { .. })))
            | Self::Refused { about: About::Storage, .. }
            | Self::Manual { .. }
            | Self::Start(StartError::Spool(SpoolError::CannotWrite { .. }))
            | Self::Unwritten { .. } => ExitStatus::NotWritten,
            Self::Front(FrontError::GaveUp { code: Some(code), .. })
                if *code == i32::from(ExitStatus::NotWritten as u8) =>
            {
                ExitStatus::NotWritten
            }
            Self::Prompt(_)
            | Self::PromptIsNoText
            | Self::ObserveWrites { .. }
            | Self::Home(_)
            | Self::Config(_)
            | Self::Front(FrontError::Home(_))
            | Self::Refused { about: About::Input, .. }
            | Self::Launch(_) => ExitStatus::BadInput,
            Self::NotReady(_) | Self::Refused { about: About::Agent, .. } => ExitStatus::NotInstalled,
            Self::Setup(error) => error.exit_status(),
            Self::Recover(error) => error.exit_status(),
            Self::Daemon(error) => error.exit_status(),
            Self::Front(_)
            | Self::Connect(_)
            | Self::StillThere { .. }
            | Self::Refused { about: About::Other, .. }
            | Self::UnexpectedReply
            | Self::DaemonUnavailable { .. }
            | Self::Start(_)
            | Self::Wait(_)
            | Self::Follow(_)
            | Self::StopRun(_)
            | Self::Runtime(_)
            | Self::Json(_) => ExitStatus::Failed,
        }
    }
}
