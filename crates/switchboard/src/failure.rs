//! Everything that can keep a command from being carried out.

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

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot read the prompt from stdin")]
    Prompt(#[source] io::Error),
    #[error("the prompt is not UTF-8 text")]
    PromptIsNoText,
    #[error("cannot work in `{}`", folder.display())]
    Directory { option: &'static str, folder: PathBuf, source: io::Error },
    #[error("`--observe` and `--policy {policy}` contradict each other: the policy lets the agent write")]
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
    #[error("cannot write the manual into `{}`", folder.display())]
    Manual { folder: PathBuf, source: io::Error },
    #[error("{}", why.message)]
    Refused { about: About, why: Complaint },
    #[error("the daemon gave no answer that can be understood")]
    Nonsense,
    #[error("{count} daemons in a row have died")]
    DaemonsDied { count: u32 },
    #[error("the daemon (pid {pid}) has said that it ends, and is still there")]
    StillThere { pid: i32 },
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("cannot start the call")]
    Start(#[from] StartError),
    #[error("lost sight of the call")]
    Wait(#[from] WaitError),
    #[error("cannot listen for Ctrl-C or wait for the call")]
    Runtime(#[source] io::Error),
    #[error("cannot write the answer")]
    Unwritten { kept: Kept, source: io::Error },
    #[error("cannot write the answer as JSON")]
    Json(#[from] serde_json::Error),
}

/// Where an answer that could not be written is all the same.
#[derive(Debug)]
pub enum Kept {
    /// It has to be asked for again.
    Nowhere,
    /// With a job of the daemon.
    Job(String),
    /// In the folder of a call without the daemon.
    Folder(PathBuf),
}

impl Failure {
    /// Stdout did not take the answer.
    pub fn unwritten(source: io::Error, kept: Kept) -> Self {
        Self::Unwritten { kept, source }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::PromptIsNoText => "convert it to UTF-8 first, with `iconv` for example".to_owned(),
            Self::Directory { option, .. } => format!("pass an existing directory with `{option}`"),
            Self::ObserveWrites { .. } => {
                "leave one of them out, or use `--policy observe` or `--policy sealed`".to_owned()
            }
            Self::Home(error) => error.hint(),
            Self::Config(error) => error.hint(),
            Self::Daemon(error) => error.hint(),
            Self::Front(error) => error.hint(),
            Self::Connect(error) => error.hint(),
            Self::Setup(error) => error.hint(),
            Self::Recover(error) => error.hint(),
            Self::Manual { .. } => "pass a directory that you can write to".to_owned(),
            Self::Refused { why, .. } => why.hint.clone(),
            Self::Unwritten { kept: Kept::Nowhere, .. } => {
                "send stdout to where it can be written, and ask again".to_owned()
            }
            Self::Unwritten { kept: Kept::Job(job), .. } => {
                format!(
                    "the job keeps it: `switchboard logs {job}` prints it, `switchboard status {job}` says how it is"
                )
            }
            Self::Unwritten { kept: Kept::Folder(folder), .. } => {
                format!("what the agent printed is kept in `{}`", folder.join("output").display())
            }
            Self::Nonsense => format!("try again; {}", crate::wire::RENEW),
            Self::DaemonsDied { .. } => {
                "see the log of the daemon (`switchboard config` prints its path)".to_owned()
            }
            Self::StillThere { pid } => {
                format!("see its log; `kill -9 {pid}` ends it, and running jobs survive that")
            }
            Self::NotReady(error) => error.hint().to_owned(),
            Self::Launch(error) => error.hint(),
            Self::Start(error) => error.hint().to_owned(),
            Self::Wait(error) => error.hint().to_owned(),
            Self::Prompt(_) | Self::Runtime(_) | Self::Json(_) => return None,
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
            | Self::Nonsense
            | Self::DaemonsDied { .. }
            | Self::Start(_)
            | Self::Wait(_)
            | Self::Runtime(_)
            | Self::Json(_) => ExitStatus::Failed,
        }
    }
}
