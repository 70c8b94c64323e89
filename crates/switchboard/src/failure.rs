//! Everything that can keep a command from being carried out.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use supervisor::{StartError, WaitError};

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("cannot read the prompt from stdin")]
    Prompt(#[source] io::Error),
    #[error("cannot work in `{}`", folder.display())]
    Cwd { folder: PathBuf, source: io::Error },
    #[error("there is no place for Switchboard's files")]
    NoHome,
    #[error("cannot tell where this program is")]
    ThisProgram(#[source] io::Error),
    #[error("the agent `{}` is not there", program.display())]
    NoAgent { program: PathBuf },
    #[error("cannot start the call")]
    Start(#[from] StartError),
    #[error("lost sight of the call")]
    Wait(#[from] WaitError),
    #[error("cannot listen for Ctrl-C or wait for the call")]
    Runtime(#[source] io::Error),
}

impl Failure {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::EmptyPrompt => Some("give the prompt as an argument or on stdin"),
            Self::Cwd { .. } => Some("give a folder that exists with `--cwd`"),
            Self::NoHome => Some("set HOME, or SWITCHBOARD_HOME to a folder of your own"),
            Self::NoAgent { .. } => {
                Some("install all of Switchboard: `cargo install --path crates/switchboard`")
            }
            Self::Start(error) => Some(error.hint()),
            Self::Prompt(_) | Self::ThisProgram(_) | Self::Wait(_) | Self::Runtime(_) => None,
        }
    }

    /// The exit code, as `switchboard call --help` lists them.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::EmptyPrompt | Self::Prompt(_) | Self::Cwd { .. } | Self::NoHome => 2,
            Self::NoAgent { .. } => 5,
            Self::ThisProgram(_) | Self::Start(_) | Self::Wait(_) | Self::Runtime(_) => 1,
        })
    }
}
