//! What can be wrong with a configuration. Every mistake says where it stands.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

/// Where a value came from.
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
    /// A variable of the environment.
    Variable {
        /// Its name.
        name: String,
    },
    /// An option of the command line.
    Option {
        /// As it is typed.
        name: &'static str,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Variable { name } => write!(f, "variable {name}"),
            Self::Option { name } => write!(f, "option {name}"),
        }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration `{}`", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the configuration `{}` could be written by others (owner {owner}, mode {mode:04o})", path.display())]
    NotYours { path: PathBuf, owner: u32, mode: u32 },
    #[error("{}: this is not TOML: {message}", Source::File { path: path.clone(), line: *line })]
    NotToml { path: PathBuf, line: usize, message: String },
    #[error("{place}: there is no key `{key}`")]
    UnknownKey { place: Source, key: String, nearest: Option<&'static str> },
    #[error("{place}: `{key}` takes {expected}, not {found}")]
    BadValue { place: Source, key: String, expected: String, found: String },
    #[error("{place}: `pass_env` cannot name `{variable}`: {reason}")]
    ForbiddenVariable { place: Source, variable: String, reason: &'static str },
}

impl ConfigError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Unreadable { .. } => "check that it is a readable text file".to_owned(),
            Self::NotYours { path, .. } => {
                format!(
                    "it says which programs are run: make it yours, then `chmod go-w '{}'`",
                    path.display()
                )
            }
            Self::NotToml { .. } => "mend that line; see https://toml.io for the format".to_owned(),
            Self::UnknownKey { nearest: Some(known), .. } => {
                format!("did you mean `{known}`? `switchboard config --reference` lists every key")
            }
            Self::ForbiddenVariable { .. } => "take it out of `pass_env`".to_owned(),
            Self::UnknownKey { nearest: None, .. } | Self::BadValue { .. } => {
                "`switchboard config --reference` lists every key and what it takes".to_owned()
            }
        }
    }
}
