//! Rejections: a code, a message and a hint.
//!
//! The codes are an interface: models react to them. A message contains the path as the caller wrote it and nothing outside the
//! workspace, so that a rejection reveals nothing.

use std::fmt;
use std::io;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// The code of a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionCode {
    /// The file does not exist.
    FileNotFound,
    /// The path leads out of the workspace, or the workspace is not the configured one.
    PathOutsideWorkspace,
    /// A directory instead of a file.
    IsDirectory,
    /// A file instead of a directory.
    NotADirectory,
    /// A FIFO, device, socket or symlink, or a file with hard links.
    NotARegularFile,
    /// The text to replace was not found.
    FindNotFound,
    /// The text to replace was found more than once.
    FindNotUnique,
    /// An invalid regular expression or glob.
    InvalidPattern,
    /// The file or reply exceeds its limit.
    TooLarge,
    /// A name that other programs execute or load.
    ProtectedPath,
    /// The file exists already.
    AlreadyExists,
    /// The system call for writing failed.
    WriteFailed,
    /// The system call for reading failed.
    ReadFailed,
    /// An invalid request.
    InvalidInput,
}

impl RejectionCode {
    /// All codes.
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

    /// Returns the code as text.
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

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rejected request. No file was changed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct FileRejection {
    code: RejectionCode,
    message: String,
    hint: String,
    #[source]
    source: Option<io::Error>,
}

impl FileRejection {
    pub(crate) fn new(code: RejectionCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into(), source: None }
    }

    pub(crate) fn because(mut self, source: impl Into<io::Error>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the code.
    pub fn code(&self) -> RejectionCode {
        self.code
    }

    /// Returns the remedy.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(RejectionCode::InvalidInput, message, hint)
    }

    pub(crate) fn not_found(path: &str) -> Self {
        Self::new(
            RejectionCode::FileNotFound,
            format!("`{path}` does not exist"),
            "`list` shows the existing paths",
        )
    }

    pub(crate) fn outside(path: &str) -> Self {
        Self::new(
            RejectionCode::PathOutsideWorkspace,
            format!("`{path}` leads out of the workspace"),
            "pass a path below the workspace, relative to it; links to other places are not followed",
        )
    }

    pub(crate) fn is_directory(path: &str) -> Self {
        Self::new(RejectionCode::IsDirectory, format!("`{path}` is a directory"), "`list` shows its entries")
    }

    pub(crate) fn not_a_directory(path: &str) -> Self {
        Self::new(
            RejectionCode::NotADirectory,
            format!("`{path}` is not a directory, or one of its parents is not"),
            "`stat` shows the type of each part of the path",
        )
    }

    pub(crate) fn irregular(path: &str, what: &str) -> Self {
        Self::new(
            RejectionCode::NotARegularFile,
            format!("`{path}` is {what}"),
            "only regular files can be read, written and moved",
        )
    }

    pub(crate) fn protected(path: &str) -> Self {
        Self::new(
            RejectionCode::ProtectedPath,
            format!("`{path}` is protected: it controls what other programs run"),
            "ask the user to change it; it can be read",
        )
    }

    pub(crate) fn exists(path: &str) -> Self {
        Self::new(
            RejectionCode::AlreadyExists,
            format!("`{path}` already exists"),
            "use `write` to replace it or `patch` to change it, or choose another name",
        )
    }

    pub(crate) fn too_large(what: impl fmt::Display, limit: u64) -> Self {
        Self::new(
            RejectionCode::TooLarge,
            format!("{what} is larger than {limit} bytes"),
            "use `search` to find the relevant lines; split larger content into several files",
        )
    }

    pub(crate) fn unreadable(path: &str, source: impl Into<io::Error>) -> Self {
        Self::new(
            RejectionCode::ReadFailed,
            format!("cannot read `{path}`"),
            "`stat` shows its owner and mode",
        )
        .because(source)
    }

    pub(crate) fn unwritable(path: &str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let hint = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "the disk is full; nothing was changed"
            }
            io::ErrorKind::PermissionDenied => "this user cannot write to the directory; nothing was changed",
            io::ErrorKind::ReadOnlyFilesystem => "the workspace is read-only",
            _ => "nothing was changed",
        };
        Self::new(RejectionCode::WriteFailed, format!("cannot write `{path}`"), hint).because(source)
    }
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'static str,
    message: String,
    hint: &'a str,
}

/// Serializes as `{"error": {"code", "message", "hint"}}`, the message with its cause.
impl Serialize for FileRejection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = match &self.source {
            None => self.message.clone(),
            Some(source) => format!("{}: {source}", self.message),
        };
        let error = ErrorBody { code: self.code.as_str(), message, hint: &self.hint };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("error", &error)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_has_code_message_and_hint() {
        let refusal = FileRejection::unwritable("a.txt", io::Error::from(io::ErrorKind::StorageFull));
        let text = serde_json::to_string(&refusal).unwrap();
        assert_eq!(
            text,
            r#"{"error":{"code":"write_failed","message":"cannot write `a.txt`: no storage space","hint":"the disk is full; nothing was changed"}}"#
        );
    }

    #[test]
    fn error_codes_are_unique() {
        let words: std::collections::BTreeSet<_> = RejectionCode::ALL.map(RejectionCode::as_str).into();
        assert_eq!(words.len(), RejectionCode::ALL.len());
    }
}
