//! The bearer token of the HTTP server and of `/metrics`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use regular_file::{WrongFileType, open_linked};
use subtle::ConstantTimeEq;

/// Length of a generated token, in hexadecimal digits.
const TOKEN_DIGITS: usize = 64;

/// A secret that every HTTP request must carry. Its `Debug` form hides the value.
#[derive(Clone)]
pub struct BearerToken(String);

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

/// A token that cannot be loaded or created.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Its file cannot be read or written.
    #[error("cannot use the token file `{}`", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// Other users can read it, or own it.
    #[error("the token file `{}` is not private", file.display())]
    Shared {
        /// The file.
        file: PathBuf,
    },
    /// It does not contain a token.
    #[error("the token file `{}` contains no token", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
}

impl TokenError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::File { source, .. } if WrongFileType::find(source).is_some() => {
                "remove it, and a new one is created"
            }
            Self::File { .. } => "check that its directory exists, belongs to you and is writable",
            Self::Shared { .. } => {
                "remove it, and a new one is created; anyone who could read the file knows the old token"
            }
            Self::Empty { .. } => {
                "remove it, and a new one is created; a token has at least 16 letters and digits"
            }
        }
    }
}

impl BearerToken {
    /// Reads the token from a file. A missing file is created with a new token and mode 0600.
    pub fn load_or_create(file: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File { file: file.to_owned(), source };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
            Ok(new) => Self::write_new(new).map_err(failed),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::load(file),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads the token from a file, if there is one.
    pub fn load_existing(file: &Path) -> Option<Self> {
        Self::load(file).ok()
    }

    fn write_new(mut file: File) -> io::Result<Self> {
        // Two random UUIDs: 244 bits from the operating system.
        let mut token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        token.truncate(TOKEN_DIGITS);
        file.write_all(token.as_bytes())?;
        file.sync_all()?;
        Ok(Self(token))
    }

    fn load(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File { file: path.to_owned(), source };
        let file = open_linked(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(TokenError::Shared { file: path.to_owned() });
        }
        let mut token = String::new();
        file.take(4096).read_to_string(&mut token).map_err(failed)?;
        let token = token.trim().to_owned();
        if token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Empty { file: path.to_owned() });
        }
        Ok(Self(token))
    }

    /// Returns the value, for instructions on how to connect.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns whether the `Authorization` header carries this token, in constant time.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let (scheme, given) = given.split_at(given.len().min("Bearer ".len()));
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.trim_ascii().ct_eq(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn token_is_created_once_with_mode_0600() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let created = BearerToken::load_or_create(&file).unwrap();
        assert_eq!(created.reveal().len(), TOKEN_DIGITS);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(BearerToken::load_or_create(&file).unwrap().reveal(), created.reveal());
        assert!(!format!("{created:?}").contains(created.reveal()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(BearerToken::load_or_create(&file), Err(TokenError::Shared { .. })));
    }

    #[test]
    fn blank_token_file_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600).open(&file).unwrap().write_all(b" \n").unwrap();
        assert!(matches!(BearerToken::load_or_create(&file), Err(TokenError::Empty { .. })));
    }

    #[test]
    fn only_the_exact_token_authenticates() {
        let token = BearerToken("0123456789abcdef".to_owned());
        let authenticates =
            |value: &str| token.is_in(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]));
        assert!(authenticates("Bearer 0123456789abcdef") && authenticates("bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
        ] {
            assert!(!authenticates(wrong), "{wrong}");
        }
    }
}
