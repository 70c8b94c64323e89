//! Why a verb was not carried out: one code, what happened, and what to do about it.
//!
//! The codes are an interface: a model acts on them. A message names the path as the caller wrote it and nothing that lies
//! outside the workspace, so that a refusal tells nobody what is there.

use std::fmt;
use std::io;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// What kind of refusal it is, in one word for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// There is nothing of that name.
    FileNotFound,
    /// The path leads out of the workspace, or the workspace is not the one that was set.
    PathOutsideWorkspace,
    /// A folder, where a file is needed.
    IsDirectory,
    /// A file, where a folder is needed.
    NotADirectory,
    /// A FIFO, a device, a socket, a link, or a file with a second name.
    NotARegularFile,
    /// The text to replace is not there.
    FindNotFound,
    /// The text to replace is there more than once.
    FindNotUnique,
    /// A regular expression or a glob that cannot be read.
    InvalidPattern,
    /// More bytes than one answer or one file may have.
    TooLarge,
    /// A path that decides what other programs run.
    ProtectedPath,
    /// Something of that name is there already.
    AlreadyExists,
    /// The system would not write.
    WriteFailed,
    /// The system would not read.
    ReadFailed,
    /// The request makes no sense.
    InvalidInput,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 14] = [
        Self::FileNotFound,
        Self::PathOutsideWorkspace,
        Self::IsDirectory,
        Self::NotADirectory,
        Self::NotARegularFile,
        Self::FindNotFound,
        Self::FindNotUnique,
        Self::InvalidPattern,
        Self::TooLarge,
        Self::ProtectedPath,
        Self::AlreadyExists,
        Self::WriteFailed,
        Self::ReadFailed,
        Self::InvalidInput,
    ];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FileNotFound => "file_not_found",
            Self::PathOutsideWorkspace => "path_outside_workspace",
            Self::IsDirectory => "is_directory",
            Self::NotADirectory => "not_a_directory",
            Self::NotARegularFile => "not_a_regular_file",
            Self::FindNotFound => "find_not_found",
            Self::FindNotUnique => "find_not_unique",
            Self::InvalidPattern => "invalid_pattern",
            Self::TooLarge => "too_large",
            Self::ProtectedPath => "protected_path",
            Self::AlreadyExists => "already_exists",
            Self::WriteFailed => "write_failed",
            Self::ReadFailed => "read_failed",
            Self::InvalidInput => "invalid_input",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A verb that was not carried out. No file was changed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    code: Code,
    message: String,
    hint: String,
    #[source]
    source: Option<io::Error>,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into(), source: None }
    }

    pub(crate) fn because(mut self, source: impl Into<io::Error>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind it is.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What to do about it.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(Code::InvalidInput, message, hint)
    }

    pub(crate) fn not_found(path: &str) -> Self {
        Self::new(Code::FileNotFound, format!("`{path}` does not exist"), "`list` shows what is there")
    }

    pub(crate) fn outside(path: &str) -> Self {
        Self::new(
            Code::PathOutsideWorkspace,
            format!("`{path}` leads out of the workspace"),
            "give a path below the workspace, relative to it; links that point elsewhere are not followed",
        )
    }

    pub(crate) fn is_directory(path: &str) -> Self {
        Self::new(Code::IsDirectory, format!("`{path}` is a folder"), "`list` shows what is in it")
    }

    pub(crate) fn not_a_directory(path: &str) -> Self {
        Self::new(
            Code::NotADirectory,
            format!("`{path}` is not a folder, or goes through something that is none"),
            "`stat` tells what each part of the path is",
        )
    }

    pub(crate) fn irregular(path: &str, what: &str) -> Self {
        Self::new(
            Code::NotARegularFile,
            format!("`{path}` is {what}"),
            "only ordinary files are read, written and moved",
        )
    }

    pub(crate) fn protected(path: &str) -> Self {
        Self::new(
            Code::ProtectedPath,
            format!("`{path}` is protected: it decides what other programs run"),
            "ask the person in charge to change it; it can be read",
        )
    }

    pub(crate) fn exists(path: &str) -> Self {
        Self::new(
            Code::AlreadyExists,
            format!("`{path}` is there already"),
            "`write` replaces a file and `patch` changes one; or choose another name",
        )
    }

    pub(crate) fn too_large(what: impl fmt::Display, limit: u64) -> Self {
        Self::new(
            Code::TooLarge,
            format!("{what} is larger than {limit} bytes"),
            "`search` finds a place in many files; split what is larger than one file may be",
        )
    }

    pub(crate) fn unreadable(path: &str, source: impl Into<io::Error>) -> Self {
        Self::new(Code::ReadFailed, format!("cannot read `{path}`"), "`stat` tells its owner and mode")
            .because(source)
    }

    pub(crate) fn unwritable(path: &str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let hint = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "there is no room left; nothing was changed"
            }
            io::ErrorKind::PermissionDenied => "the folder does not let this user write; nothing was changed",
            io::ErrorKind::ReadOnlyFilesystem => "the workspace may only be read",
            _ => "nothing was changed",
        };
        Self::new(Code::WriteFailed, format!("cannot write `{path}`"), hint).because(source)
    }
}

#[derive(Serialize)]
struct Told<'a> {
    code: &'static str,
    message: String,
    hint: &'a str,
}

/// `{"error": {"code", "message", "hint"}}`, the message with its cause.
impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = match &self.source {
            None => self.message.clone(),
            Some(source) => format!("{}: {source}", self.message),
        };
        let error = Told { code: self.code.as_str(), message, hint: &self.hint };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("error", &error)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_object_with_code_message_and_hint() {
        let refusal = Refusal::unwritable("a.txt", io::Error::from(io::ErrorKind::StorageFull));
        let text = serde_json::to_string(&refusal).unwrap();
        assert_eq!(
            text,
            r#"{"error":{"code":"write_failed","message":"cannot write `a.txt`: no storage space","hint":"there is no room left; nothing was changed"}}"#
        );
    }

    #[test]
    fn every_code_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<_> = Code::ALL.map(Code::as_str).into();
        assert_eq!(words.len(), Code::ALL.len());
    }
}
