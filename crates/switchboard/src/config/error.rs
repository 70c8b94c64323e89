//! Configuration errors. Each names the file and line, the variable or the option.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::exit_status::ExitStatus;
use crate::failure::CommandError;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Source {
    /// The program's own default.
    BuiltIn,
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Variable {
        /// Its name.
        name: String,
    },
    /// A command-line option.
    Option {
        /// Its name.
        name: &'static str,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("default"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Variable { name } => write!(f, "variable {name}"),
            Self::Option { name } => write!(f, "option {name}"),
        }
    }
}

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read configuration file `{}`", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("configuration file `{}` is writable by other users (owner {owner}, mode {mode:04o})", path.display())]
    NotYours { path: PathBuf, owner: u32, mode: u32 },
    #[error("{}: invalid TOML: {message}", Source::File { path: path.clone(), line: *line })]
    NotToml { path: PathBuf, line: usize, message: String },
    #[error("{place}: unknown key `{key}`")]
    UnknownKey { place: Source, key: String, nearest: Option<&'static str> },
    #[error("{place}: `{key}` must be {expected}, not {found}")]
    BadValue { place: Source, key: String, expected: String, found: String },
    #[error("{place}: `{key}` {problem}")]
    Misplaced { place: Source, key: String, problem: String },
    #[error("{place}: `{key}` names no known agent")]
    UnknownAgent { place: Source, key: String, similar: Option<String> },
    #[error("{place}: `{key}` is set twice")]
    SetTwice { place: Source, key: String },
    #[error("{place}: `pass_env` must not contain `{variable}`: {reason}")]
    ForbiddenVariable { place: Source, variable: String, reason: &'static str },
}

impl CommandError for ConfigError {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::BadInput
    }
}

impl ConfigError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Unreadable { .. } => "check that it is a readable text file".to_owned(),
            Self::NotYours { path, .. } => {
                format!(
                    "it decides which programs run: make yourself its owner and run `chmod go-w '{}'`",
                    path.display()
                )
            }
            Self::NotToml { .. } => "fix that line; see https://toml.io for the format".to_owned(),
            Self::UnknownKey { nearest: Some(known), .. } => {
                format!("did you mean `{known}`? list all keys with `switchboard config --reference`")
            }
            Self::UnknownAgent { similar: Some(similar), .. } => {
                format!("did you mean `{similar}`? list all agents with `switchboard agents`")
            }
            Self::UnknownAgent { similar: None, .. } => {
                "define the agent in the table `agents`, or list the known ones with `switchboard agents`"
                    .to_owned()
            }
            Self::SetTwice { .. } => "remove one of the two lines".to_owned(),
            Self::ForbiddenVariable { .. } => "remove it from `pass_env`".to_owned(),
            Self::UnknownKey { nearest: None, .. } | Self::BadValue { .. } | Self::Misplaced { .. } => {
                "see all keys and their values with `switchboard config --reference`".to_owned()
            }
        }
    }
}
