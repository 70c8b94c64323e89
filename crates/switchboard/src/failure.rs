//! The error of a command: message, hint and exit status.
//!
//! Every module has its own error type and implements [`CommandError`] for it. This module implements it for the
//! error types of other crates and of `output`.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use agents::doctor::{EscapingLink, NotReady};
use agents::{LaunchError, UnknownAgent};
use protocol::{ConnectError, ConnectorError, DirectoryError, ErrorCategory, HomeError, RequestError};

use crate::exit_status::ExitStatus;
use crate::output::UnwrittenError;

/// An error that a command can fail with.
pub trait CommandError: Error + Send + Sync {
    /// Returns the remedy, as an imperative.
    fn hint(&self) -> Option<String>;

    /// Returns the exit status, as `switchboard call --help` lists them.
    fn exit_status(&self) -> ExitStatus;
}

/// The failure of a command.
#[derive(Debug)]
pub struct CommandFailure(Box<dyn CommandError>);

impl<E: CommandError + 'static> From<E> for CommandFailure {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl CommandFailure {
    /// Returns the error.
    pub fn error(&self) -> &dyn Error {
        &*self.0
    }

    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> Option<String> {
        self.0.hint()
    }

    /// Returns the exit code of the command.
    pub fn exit_code(&self) -> ExitCode {
        self.0.exit_status().into()
    }
}

/// The async runtime, a signal handler or a thread could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the async runtime")]
pub struct RuntimeError(#[from] io::Error);

impl CommandError for RuntimeError {
    fn hint(&self) -> Option<String> {
        None
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Failed
    }
}

impl CommandError for UnknownAgent {
    fn hint(&self) -> Option<String> {
        Some(UnknownAgent::hint(self))
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::BadInput
    }
}

impl CommandError for serde_json::Error {
    fn hint(&self) -> Option<String> {
        None
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Failed
    }
}

impl CommandError for HomeError {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Directory(DirectoryError::Unusable { .. }) => ExitStatus::NotWritten,
            _ => ExitStatus::BadInput,
        }
    }
}

impl CommandError for ConnectError {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Failed
    }
}

impl CommandError for ConnectorError {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Home(error) => error.exit_status(),
            Self::StartFailed { code: Some(code), .. } if *code == ExitStatus::NotWritten as i32 => {
                ExitStatus::NotWritten
            }
            _ => ExitStatus::Failed,
        }
    }
}

impl CommandError for RequestError {
    fn hint(&self) -> Option<String> {
        self.hint()
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Connector(error) => error.exit_status(),
            Self::Rejected { category, .. } => match category {
                ErrorCategory::Input => ExitStatus::BadInput,
                ErrorCategory::Agent => ExitStatus::NotInstalled,
                ErrorCategory::Directory => ExitStatus::BadDirectory,
                ErrorCategory::Storage => ExitStatus::NotWritten,
                ErrorCategory::Other => ExitStatus::Failed,
            },
            Self::Connect(_) | Self::UnexpectedReply | Self::DaemonUnavailable { .. } | Self::Json(_) => {
                ExitStatus::Failed
            }
        }
    }
}

impl CommandError for LaunchError {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }

    fn exit_status(&self) -> ExitStatus {
        if self.is_about_cwd() { ExitStatus::BadDirectory } else { ExitStatus::BadInput }
    }
}

impl CommandError for NotReady {
    fn hint(&self) -> Option<String> {
        Some(self.hint().to_owned())
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::NotInstalled
    }
}

impl CommandError for EscapingLink {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::BadDirectory
    }
}

impl CommandError for UnwrittenError {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::NotWritten
    }
}
