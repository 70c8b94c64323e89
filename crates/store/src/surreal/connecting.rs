//! Opens the connection: to a server, with login and TLS, or to an embedded database.

use std::path::{Path, PathBuf};

use surrealdb::Surreal;
use surrealdb::engine::any::{Any, connect};
use surrealdb::opt::{Config, auth};
use tokio::time::timeout;

use crate::credentials::{CredentialLevel, Credentials};
use crate::error::{Cause, StoreError};
use crate::setting::Setting;
use crate::surreal::tls;
use crate::surreal::wire::{FarEnd, PATIENCE, Wire};

/// The credentials for a server and the CAs to verify it with.
#[derive(Debug, Default)]
pub struct Trust {
    pub credentials: Option<Credentials>,
    /// The CA certificates to trust; `None` for the root certificates of Mozilla.
    pub ca_file: Option<PathBuf>,
}

pub async fn wire(setting: &Setting, trust: &Trust) -> Result<Wire, StoreError> {
    match setting {
        Setting::Surreal { endpoint, namespace, database } => {
            let server = Server { endpoint, namespace, database };
            server.wire(trust).await
        }
        Setting::SurrealEmbedded { path } => embedded(path).await,
        Setting::Sqlite { .. } | Setting::SqliteMemory => Err(StoreError::Closed),
    }
}

struct Server<'a> {
    endpoint: &'a str,
    namespace: &'a str,
    database: &'a str,
}

impl Server<'_> {
    fn place(&self) -> String {
        format!("{}/{}/{}", self.endpoint, self.namespace, self.database)
    }

    async fn wire(&self, trust: &Trust) -> Result<Wire, StoreError> {
        let mut config = Config::new();
        if self.endpoint.starts_with("wss:") {
            config = config.rustls(tls::believing(trust.ca_file.as_deref())?);
        }
        let connected = timeout(PATIENCE, connect((self.endpoint, config))).await;
        let unreachable = |source: Cause| StoreError::Unreachable { place: self.place(), source };
        let db = connected.map_err(|late| unreachable(late.into()))?.map_err(|error| self.refused(error))?;
        if let Some(credentials) = &trust.credentials {
            self.sign_in(&db, credentials).await.map_err(|error| self.not_allowed(error))?;
        }
        let chosen = db.use_ns(self.namespace).use_db(self.database).await;
        chosen.map_err(|error| self.not_allowed(error))?;
        Ok(Wire::to(FarEnd::Server(db), self.place()))
    }

    async fn sign_in(&self, db: &Surreal<Any>, credentials: &Credentials) -> surrealdb::Result<()> {
        let (username, password) = (credentials.user.clone(), credentials.password.clone());
        let (namespace, database) = (self.namespace.to_owned(), self.database.to_owned());
        match credentials.level {
            CredentialLevel::Root => db.signin(auth::Root { username, password }).await?,
            CredentialLevel::Namespace => {
                db.signin(auth::Namespace { namespace, username, password }).await?
            }
            CredentialLevel::Database => {
                db.signin(auth::Database { namespace, database, username, password }).await?
            }
        };
        Ok(())
    }

    /// Converts a connection error: the server is unreachable or not trusted.
    fn refused(&self, error: surrealdb::Error) -> StoreError {
        let place = self.place();
        if tls::is_untrusted(&error) {
            return StoreError::Untrusted { place, source: error.into() };
        }
        StoreError::Unreachable { place, source: error.into() }
    }

    fn not_allowed(&self, error: surrealdb::Error) -> StoreError {
        if error.is_connection() {
            return self.refused(error);
        }
        StoreError::NotAllowed { place: self.place(), source: error.into() }
    }
}

#[cfg(feature = "surreal-embedded")]
async fn embedded(path: &Path) -> Result<Wire, StoreError> {
    crate::surreal::embedded::wire(path).await
}

#[cfg(not(feature = "surreal-embedded"))]
#[expect(clippy::unused_async, reason = "the same signature as with the engine")]
async fn embedded(_: &Path) -> Result<Wire, StoreError> {
    Err(crate::SettingError::NotBuiltIn { engine: "embedded SurrealDB" }.into())
}
