//! The options that a store is opened with.

use std::path::PathBuf;

use crate::clock::Clock;
use crate::credentials::Credentials;
use crate::redact::Redactor;
use crate::setting::StoreSetting;

/// Names the store to open and configures it.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The store to open.
    pub setting: StoreSetting,
    /// The file to open for `sqlite:`.
    pub default_file: PathBuf,
    /// The login of a server that requires one.
    pub credentials: Option<Credentials>,
    /// PEM file with the only CA certificates that may sign the certificate of a `wss://` server. Defaults to the root
    /// certificates of Mozilla.
    pub ca_file: Option<PathBuf>,
    /// Removes secrets from all stored texts.
    pub redactor: Redactor,
    /// The source of the current time.
    pub clock: Clock,
}

impl StoreOptions {
    /// Returns options with the default redactor and the system clock. `default_file` is opened for `sqlite:`.
    pub fn new(setting: StoreSetting, default_file: impl Into<PathBuf>) -> Self {
        Self {
            setting,
            default_file: default_file.into(),
            credentials: None,
            ca_file: None,
            redactor: Redactor::usual(),
            clock: Clock::system(),
        }
    }
}
