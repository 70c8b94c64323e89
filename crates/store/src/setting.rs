//! The setting that names a store.
//!
//! Rejects credentials in it, because it appears in process lists and logs. They are passed separately
//! ([`crate::Credentials`]).

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Names a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreSetting {
    /// `sqlite:` for the default file, `sqlite:/path` for another one.
    Sqlite {
        /// The file; `None` for the default one.
        path: Option<PathBuf>,
    },
    /// `sqlite::memory:`, which is lost when it is closed. For experiments and tests.
    SqliteMemory,
    /// `ws://host:port/namespace/database`, or `wss://…`.
    Surreal {
        /// `ws://host:port`.
        endpoint: String,
        /// The namespace of the database.
        namespace: String,
        /// The database.
        database: String,
    },
    /// `surrealkv:/path`, `SurrealDB` inside this process.
    SurrealEmbedded {
        /// The directory.
        path: PathBuf,
    },
}

impl Default for StoreSetting {
    fn default() -> Self {
        Self::Sqlite { path: None }
    }
}

/// A setting that names no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The scheme is unknown.
    #[error("`{}` is not a store{}", given.escape_debug(), nearest.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default())]
    UnknownForm {
        /// The setting.
        given: String,
        /// The most similar known form.
        nearest: Option<&'static str>,
    },
    /// The path is relative.
    #[error("the store's path `{}` is not absolute", path.display())]
    RelativePath {
        /// The path.
        path: PathBuf,
    },
    /// The engine would parse the part after the `?` as options.
    #[error("the store's path `{}` has a `?` in it", path.display())]
    QuestionMark {
        /// The path.
        path: PathBuf,
    },
    /// The namespace or the database is missing or invalid.
    #[error("the store at `{endpoint}` has no valid namespace and database")]
    NoDatabase {
        /// The part before them.
        endpoint: String,
    },
    /// The address contains a user or a password.
    #[error("the store's address contains credentials")]
    CredentialsInside,
    /// This program was built without the engine.
    #[error("this program was built without {engine}")]
    NotBuiltIn {
        /// The engine.
        engine: &'static str,
    },
}

impl SettingError {
    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::UnknownForm { .. } => {
                "write sqlite:, sqlite:/path/to/file, or ws://host:port/namespace/database (wss:// with TLS)"
            }
            Self::RelativePath { .. } => "use an absolute path, such as sqlite:/var/lib/switchboard/jobs.db",
            Self::QuestionMark { .. } => "choose a directory without it; options are not supported",
            Self::NoDatabase { .. } => {
                "write ws://host:port/namespace/database, with letters, digits, _ and - only"
            }
            Self::CredentialsInside => {
                "set SWITCHBOARD_STORE_USER and SWITCHBOARD_STORE_PASSWORD, or name a credentials file"
            }
            Self::NotBuiltIn { .. } => {
                "build it with the feature `surreal` (or `surreal-embedded`), or use sqlite:"
            }
        }
    }
}

/// The known forms by scheme.
const FORMS: [(&str, &str); 4] = [
    ("sqlite", "sqlite:"),
    ("ws", "ws://host:8000/namespace/database"),
    ("wss", "wss://host:8000/namespace/database"),
    ("surrealkv", "surrealkv:/path"),
];

impl StoreSetting {
    /// Returns whether records and the password are sent over the network unencrypted.
    pub fn is_unencrypted(&self) -> bool {
        match self {
            Self::Surreal { endpoint, .. } => {
                endpoint.strip_prefix("ws://").is_some_and(|address| !is_this_machine(address))
            }
            Self::Sqlite { .. } | Self::SqliteMemory | Self::SurrealEmbedded { .. } => false,
        }
    }
}

fn is_this_machine(address: &str) -> bool {
    let host = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host,
        None => address.split_once(':').map_or(address, |(host, _)| host),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

impl FromStr for StoreSetting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        match text.split_once(':') {
            Some(("sqlite", "")) => Ok(Self::Sqlite { path: None }),
            Some(("sqlite", ":memory:")) => Ok(Self::SqliteMemory),
            Some(("sqlite", path)) => Ok(Self::Sqlite { path: Some(parse_absolute_path(path)?) }),
            Some(("surrealkv", path)) => Ok(Self::SurrealEmbedded { path: parse_directory(path)? }),
            Some((scheme @ ("ws" | "wss"), rest)) => parse_server(scheme, rest, text),
            _ => Err(unknown_form(text)),
        }
    }
}

fn parse_absolute_path(path: &str) -> Result<PathBuf, SettingError> {
    // Other programs write `sqlite:///path`.
    let path = PathBuf::from(path.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(path));
    if path.is_absolute() { Ok(path) } else { Err(SettingError::RelativePath { path }) }
}

/// Rejects a `?`: the engine would parse the rest as options, one of which disables fsync.
fn parse_directory(path: &str) -> Result<PathBuf, SettingError> {
    let path = parse_absolute_path(path)?;
    if path.to_string_lossy().contains('?') { Err(SettingError::QuestionMark { path }) } else { Ok(path) }
}

fn parse_server(scheme: &str, rest: &str, text: &str) -> Result<StoreSetting, SettingError> {
    if text.contains('@') {
        return Err(SettingError::CredentialsInside);
    }
    let mut parts =
        rest.strip_prefix("//").ok_or_else(|| unknown_form(text))?.trim_end_matches('/').split('/');
    let host = parts.next().filter(|host| !host.is_empty()).ok_or_else(|| unknown_form(text))?;
    let endpoint = format!("{scheme}://{host}");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(namespace), Some(database), None) if is_identifier(namespace) && is_identifier(database) => {
            Ok(StoreSetting::Surreal {
                endpoint,
                namespace: namespace.to_owned(),
                database: database.to_owned(),
            })
        }
        _ => Err(SettingError::NoDatabase { endpoint }),
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn unknown_form(text: &str) -> SettingError {
    if text.contains('@') {
        // It may be a password: do not repeat it.
        return SettingError::CredentialsInside;
    }
    let scheme = text.split([':', '/']).next().unwrap_or_default().to_lowercase();
    let nearest = FORMS
        .into_iter()
        .map(|(known, form)| (strsim::damerau_levenshtein(&scheme, known), form))
        .filter(|(distance, _)| *distance <= 2)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, form)| form);
    SettingError::UnknownForm { given: text.chars().take(100).collect(), nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<StoreSetting, SettingError> {
        text.parse()
    }

    #[test]
    fn every_form_is_parsed() {
        assert_eq!(parsed("sqlite:"), Ok(StoreSetting::default()));
        let file = StoreSetting::Sqlite { path: Some("/var/jobs.db".into()) };
        assert_eq!(parsed("sqlite:/var/jobs.db"), Ok(file.clone()));
        assert_eq!(parsed("sqlite:///var/jobs.db"), Ok(file));
        assert_eq!(parsed("sqlite::memory:"), Ok(StoreSetting::SqliteMemory));
        let server = |endpoint: &str| StoreSetting::Surreal {
            endpoint: endpoint.into(),
            namespace: "a".into(),
            database: "b-1".into(),
        };
        assert_eq!(parsed("ws://host:8000/a/b-1"), Ok(server("ws://host:8000")));
        assert_eq!(parsed("wss://[::1]:8000/a/b-1/"), Ok(server("wss://[::1]:8000")));
        let directory = StoreSetting::SurrealEmbedded { path: "/var/jobs".into() };
        assert_eq!(parsed("surrealkv:/var/jobs"), Ok(directory.clone()));
        assert_eq!(parsed("surrealkv:///var/jobs"), Ok(directory));
    }

    #[test]
    fn plain_ws_is_unencrypted_unless_loopback() {
        let clear = |text: &str| parsed(text).unwrap().is_unencrypted();
        for text in ["ws://db.example:8000/a/b", "ws://10.0.0.1/a/b", "ws://[fe80::1]:8000/a/b"] {
            assert!(clear(text), "{text}");
        }
        for text in [
            "wss://db.example:8000/a/b",
            "ws://127.0.0.1:8000/a/b",
            "ws://[::1]:8000/a/b",
            "ws://localhost/a/b",
            "sqlite:",
            "surrealkv:/a",
        ] {
            assert!(!clear(text), "{text}");
        }
    }

    #[test]
    fn unknown_form_suggests_nearest() {
        let nearest = |text: &str| match parsed(text) {
            Err(SettingError::UnknownForm { nearest, .. }) => nearest,
            other => panic!("{other:?}"),
        };
        assert_eq!(nearest("sqllite:/x"), Some("sqlite:"));
        assert_eq!(nearest("SQLite"), Some("sqlite:"));
        assert_eq!(nearest("was://h/a/b"), Some("ws://host:8000/namespace/database"));
        assert_eq!(nearest("postgres://h/a"), None);
        assert!(parsed("sqllite:/x").unwrap_err().to_string().contains("did you mean `sqlite:`?"));
    }

    #[test]
    fn password_in_address_is_rejected_without_echo() {
        for text in ["ws://root:hunter2@host:8000/a/b", "htp://root:hunter2@host"] {
            let error = parsed(text).unwrap_err();
            assert_eq!(error, SettingError::CredentialsInside);
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn engine_options_in_path_are_rejected() {
        let error = parsed("surrealkv:/var/jobs?sync=never").unwrap_err();
        assert_eq!(error, SettingError::QuestionMark { path: "/var/jobs?sync=never".into() });
        assert!(matches!(parsed("surrealkv:jobs"), Err(SettingError::RelativePath { .. })));
    }

    #[test]
    fn address_requires_valid_database_name() {
        for text in ["ws://h:1", "ws://h:1/a", "ws://h:1/a/b/c", "ws://h:1/a/b`; REMOVE", "sqlite:jobs.db"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
