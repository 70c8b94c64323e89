//! The credentials for a server, read from variables or from a private file.
//!
//! Rejects every source that other users can read: the command line, the address ([`crate::StoreSetting`]), a file with
//! lax permissions. Never prints a password, not even in a parse error. Does not read the environment: the caller
//! passes the variables.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;
use serde::Deserialize;

/// A user and a password for a server.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub user: String,
    /// The password. Omitted from `Debug`.
    pub password: String,
    /// The level at which the user is defined.
    pub level: CredentialLevel,
}

/// The level at which a `SurrealDB` user is defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CredentialLevel {
    /// In the database itself: the least privilege that works.
    #[default]
    Database,
    /// In its namespace.
    Namespace,
    /// On the server.
    Root,
}

impl FromStr for CredentialLevel {
    type Err = CredentialsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "database" => Ok(Self::Database),
            "namespace" => Ok(Self::Namespace),
            "root" => Ok(Self::Root),
            _ => Err(CredentialsError::UnknownLevel),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

/// The variable with the user name.
pub const USER_VARIABLE: &str = "SWITCHBOARD_STORE_USER";
/// The variable with the password.
pub const PASSWORD_VARIABLE: &str = "SWITCHBOARD_STORE_PASSWORD";
/// The variable with the user's level: `database` (default), `namespace` or `root`.
pub const LEVEL_VARIABLE: &str = "SWITCHBOARD_STORE_LEVEL";
/// The variable with the path of a credentials file, instead of the others.
pub const FILE_VARIABLE: &str = "SWITCHBOARD_STORE_CREDENTIALS";

/// The maximum size of a credentials file.
const MAX_FILE_SIZE: u64 = 64 << 10;

/// The source of credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// Environment variables: [`USER_VARIABLE`], [`PASSWORD_VARIABLE`] and [`LEVEL_VARIABLE`], or [`FILE_VARIABLE`].
    /// Others are ignored.
    Variables(BTreeMap<String, String>),
    /// A TOML file with `user`, `password` and optionally `level` (default: `database`). Only the user may have
    /// access to it.
    File(PathBuf),
}

/// Names the source and omits its values.
impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variables(_) => f.debug_tuple("Variables").finish_non_exhaustive(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The user or the password is missing.
    #[error("{missing} is missing from the store's credentials")]
    Incomplete {
        /// The variable, or the field of the file.
        missing: &'static str,
    },
    /// Credentials are set in two ways.
    #[error("both {FILE_VARIABLE} and {variable} are set")]
    Ambiguous {
        /// The other variable.
        variable: &'static str,
    },
    /// The level is unknown. Its value is not repeated: it may be a misplaced password.
    #[error("unknown level in the store's credentials")]
    UnknownLevel,
    /// The file cannot be read.
    #[error("cannot read the credentials file `{}`", path.display())]
    CannotRead {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path names a directory, a pipe or a device.
    #[error("the credentials file `{}` is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file belongs to another user, who can change it.
    #[error("the credentials file `{}` belongs to user {owner}", path.display())]
    NotYours {
        /// The path.
        path: PathBuf,
        /// The uid of its owner.
        owner: u32,
    },
    /// Other users can read or change the file.
    #[error("the credentials file `{}` is accessible to other users (mode {mode:03o})", path.display())]
    AccessibleToOthers {
        /// The path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is too long or invalid.
    #[error("cannot parse line {line} of the credentials file `{}`", path.display())]
    BadFile {
        /// The path.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
    },
}

impl CredentialsError {
    /// Returns a remedy for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::Incomplete { .. } => {
                format!("set {USER_VARIABLE} and {PASSWORD_VARIABLE}, or write both into the file")
            }
            Self::Ambiguous { .. } => "set only one of them".to_owned(),
            Self::UnknownLevel => {
                "set it to database, namespace or root: the level where the user is defined".to_owned()
            }
            Self::CannotRead { .. } => "check the path, and that the file belongs to you".to_owned(),
            Self::NotAFile { .. } => "name a file with user and password in it".to_owned(),
            Self::NotYours { .. } => "name a file that belongs to your user".to_owned(),
            Self::AccessibleToOthers { path, .. } => format!("chmod 600 {}", path.display()),
            Self::BadFile { .. } => "write user = \"…\" and password = \"…\", one per line".to_owned(),
        }
    }
}

impl Credentials {
    /// Reads the credentials; returns `None` if no variable is set.
    pub fn read(source: &CredentialSource) -> Result<Option<Self>, CredentialsError> {
        match source {
            CredentialSource::Variables(variables) => read_variables(variables),
            CredentialSource::File(path) => read_file(path).map(Some),
        }
    }
}

fn read_variables(variables: &BTreeMap<String, String>) -> Result<Option<Credentials>, CredentialsError> {
    // An empty variable counts as unset: some shells cannot unset one.
    let value = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let names = [USER_VARIABLE, PASSWORD_VARIABLE, LEVEL_VARIABLE];
    let set = names.into_iter().find(|name| value(name).is_some());
    match (value(FILE_VARIABLE), set) {
        (Some(_), Some(variable)) => return Err(CredentialsError::Ambiguous { variable }),
        (Some(path), None) => return read_file(Path::new(path)).map(Some),
        (None, None) => return Ok(None),
        (None, Some(_)) => {}
    }
    let needed = |name| value(name).cloned().ok_or(CredentialsError::Incomplete { missing: name });
    Ok(Some(Credentials {
        user: needed(USER_VARIABLE)?,
        password: needed(PASSWORD_VARIABLE)?,
        level: value(LEVEL_VARIABLE).map_or(Ok(CredentialLevel::default()), |level| level.parse())?,
    }))
}

/// The contents of a credentials file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CredentialsFile {
    user: Option<String>,
    password: Option<String>,
    level: Option<String>,
}

fn read_file(path: &Path) -> Result<Credentials, CredentialsError> {
    let text = read_private_file(path)?;
    // The message of the TOML library quotes the line, and with it the password.
    let bad = |error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        CredentialsError::BadFile { path: path.to_owned(), line: before.matches('\n').count() + 1 }
    };
    let CredentialsFile { user, password, level } = toml::from_str(&text).map_err(bad)?;
    let needed = |value: Option<String>, missing| {
        value.filter(|value| !value.is_empty()).ok_or(CredentialsError::Incomplete { missing })
    };
    Ok(Credentials {
        user: needed(user, "`user`")?,
        password: needed(password, "`password`")?,
        level: level.map_or(Ok(CredentialLevel::default()), |level| level.parse())?,
    })
}

/// Reads a file that only its user can access. Checks the open descriptor, because the path could be redirected
/// between a check and the open.
fn read_private_file(path: &Path) -> Result<String, CredentialsError> {
    let cannot = |source: io::Error| CredentialsError::CannotRead { path: path.to_owned(), source };
    // `O_NONBLOCK`: opening a FIFO without a writer would block.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(cannot)?;
    let found = file.metadata().map_err(cannot)?;
    let path = path.to_owned();
    if !found.is_file() {
        return Err(CredentialsError::NotAFile { path });
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(CredentialsError::NotYours { path, owner: found.uid() });
    }
    if found.mode() & 0o077 != 0 {
        return Err(CredentialsError::AccessibleToOthers { path, mode: found.mode() & 0o777 });
    }
    read_text(file).map_err(|source| CredentialsError::CannotRead { path, source })
}

fn read_text(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(MAX_FILE_SIZE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_SIZE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 64 KiB"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> CredentialSource {
        let owned = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        CredentialSource::Variables(owned.collect())
    }

    /// Creates a file with this text and mode. The directory is removed when the returned guard is dropped.
    fn written(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        (directory, path)
    }

    fn parse(text: &str) -> Result<Credentials, CredentialsError> {
        let (_directory, path) = written(text, 0o600);
        Credentials::read(&CredentialSource::File(path)).map(|read| read.expect("a file has some"))
    }

    fn ana(level: CredentialLevel) -> Credentials {
        Credentials { user: "ana".into(), password: "hunter2".into(), level }
    }

    #[test]
    fn credentials_are_read_from_variables() {
        let read = |pairs: &[_]| Credentials::read(&variables(pairs)).unwrap();
        let both = [(USER_VARIABLE, "ana"), (PASSWORD_VARIABLE, "hunter2")];
        assert_eq!(read(&both), Some(ana(CredentialLevel::Database)));
        let root = [both[0], both[1], (LEVEL_VARIABLE, "root")];
        assert_eq!(read(&root), Some(ana(CredentialLevel::Root)));
        assert_eq!(read(&[("PATH", "/bin"), (USER_VARIABLE, "")]), None, "nothing is set");
    }

    #[test]
    fn incomplete_credentials_are_rejected() {
        for (pairs, expected) in [
            ([(USER_VARIABLE, "ana")], PASSWORD_VARIABLE),
            ([(PASSWORD_VARIABLE, "hunter2")], USER_VARIABLE),
            ([(LEVEL_VARIABLE, "root")], USER_VARIABLE),
        ] {
            let error = Credentials::read(&variables(&pairs)).unwrap_err();
            assert_eq!(error.to_string(), format!("{expected} is missing from the store's credentials"));
        }
    }

    #[test]
    fn invalid_credential_level_is_rejected_without_echo() {
        let swapped = [(USER_VARIABLE, "ana"), (PASSWORD_VARIABLE, "database"), (LEVEL_VARIABLE, "hunter2")];
        let error = Credentials::read(&variables(&swapped)).unwrap_err();
        assert!(matches!(error, CredentialsError::UnknownLevel));
        assert!(!format!("{error} {error:?} {}", error.hint()).contains("hunter2"));
        assert!(!format!("{:?}", variables(&swapped)).contains("hunter2"));
    }

    #[test]
    fn credentials_are_read_from_private_file() {
        let text = "# for the store\nuser = \"ana\"\npassword = \"hunter2\"\n";
        assert_eq!(parse(text).unwrap(), ana(CredentialLevel::Database));
        assert_eq!(parse(&format!("{text}level = 'namespace'")).unwrap(), ana(CredentialLevel::Namespace));
        let (_directory, path) = written(text, 0o400);
        let named = [(FILE_VARIABLE, path.to_str().unwrap())];
        assert_eq!(Credentials::read(&variables(&named)).unwrap(), Some(ana(CredentialLevel::Database)));
        let both = [named[0], (PASSWORD_VARIABLE, "x")];
        let error = Credentials::read(&variables(&both)).unwrap_err();
        assert!(matches!(error, CredentialsError::Ambiguous { variable: PASSWORD_VARIABLE }), "{error}");
    }

    #[test]
    fn file_with_lax_mode_is_rejected() {
        for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
            let (_directory, path) = written("user = 'ana'\npassword = 'hunter2'", mode);
            let error = Credentials::read(&CredentialSource::File(path.clone())).unwrap_err();
            assert!(
                matches!(error, CredentialsError::AccessibleToOthers { mode: found, .. } if found == mode)
            );
            assert_eq!(error.hint(), format!("chmod 600 {}", path.display()));
        }
    }

    #[test]
    fn file_of_other_user_is_rejected() {
        let (_directory, path) = written("user = 'ana'\npassword = 'hunter2'", 0o600);
        if chown(&path, Some(12_345), None).is_err() {
            eprintln!("SKIPPED file_of_other_user_is_rejected: only root can give a file away");
            return;
        }
        let error = Credentials::read(&CredentialSource::File(path)).unwrap_err();
        assert!(matches!(error, CredentialsError::NotYours { owner: 12_345, .. }), "{error}");
    }

    #[test]
    fn non_regular_file_is_rejected_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let read = |path: &Path| Credentials::read(&CredentialSource::File(path.to_owned())).unwrap_err();
        assert!(matches!(read(directory.path()), CredentialsError::NotAFile { .. }));
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        assert!(matches!(read(&pipe), CredentialsError::NotAFile { .. }));
        assert!(matches!(read(&directory.path().join("none")), CredentialsError::CannotRead { .. }));
        let (_directory, long) = written(&"#\n".repeat(40_000), 0o600);
        assert!(matches!(read(&long), CredentialsError::CannotRead { .. }));
    }

    #[test]
    fn parse_error_names_line_without_password() {
        for (text, line) in [
            ("user = \"ana\"\npassword = hunter2", 2),
            ("user = \"ana\"\npassword = 4711", 2),
            ("user = 'ana'\n\npasswort = \"hunter2\"", 3),
            ("hunter2", 1),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                matches!(error, CredentialsError::BadFile { line: found, .. } if found == line),
                "{error:?}"
            );
            let printed = format!("{error} {error:?} {}", error.hint());
            assert!(!printed.contains("hunter2") && !printed.contains("4711"), "{printed}");
        }
        let error = parse("user = 'ana'").unwrap_err();
        assert_eq!(error.to_string(), "`password` is missing from the store's credentials");
    }
}
