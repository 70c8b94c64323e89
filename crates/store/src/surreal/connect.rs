//! Opens the connection: to a server, with login and TLS, or to an embedded database.

use std::path::{Path, PathBuf};

use surrealdb::Surreal;
use surrealdb::engine::any::{self, Any};
use surrealdb::opt::{Config, auth};
use tokio::time::timeout;

use crate::credentials::{CredentialLevel, Credentials};
use crate::error::{Cause, StoreError};
use crate::setting::StoreSetting;
use crate::surreal::client::{QUERY_TIMEOUT, SurrealClient, SurrealConnection};
use crate::surreal::tls;

/// The credentials for a server and the CAs to verify it with.
#[derive(Debug, Default)]
pub struct Trust {
    pub credentials: Option<Credentials>,
    /// The CA certificates to trust; `None` for the root certificates of Mozilla.
    pub ca_file: Option<PathBuf>,
}

pub async fn connect(setting: &StoreSetting, trust: &Trust) -> Result<SurrealClient, StoreError> {
    match setting {
        StoreSetting::Surreal { endpoint, namespace, database } => {
            let server = Server { endpoint, namespace, database };
            server.connect(trust).await
        }
        StoreSetting::SurrealEmbedded { path } => open_embedded(path).await,
        StoreSetting::Sqlite { .. } | StoreSetting::SqliteMemory => Err(StoreError::Closed),
    }
}

struct Server<'a> {
    endpoint: &'a str,
    namespace: &'a str,
    database: &'a str,
}

impl Server<'_> {
    fn location(&self) -> String {
        format!("{}/{}/{}", self.endpoint, self.namespace, self.database)
    }

    async fn connect(&self, trust: &Trust) -> Result<SurrealClient, StoreError> {
        let mut config = Config::new();
        if self.endpoint.starts_with("wss:") {
            config = config.rustls(tls::tls_config(trust.ca_file.as_deref())?);
        }
        let connected = timeout(QUERY_TIMEOUT, any::connect((self.endpoint, config))).await;
        let unreachable = |source: Cause| StoreError::Unreachable { location: self.location(), source };
        let db = connected
            .map_err(|elapsed| unreachable(elapsed.into()))?
            .map_err(|error| self.connection_error(error))?;
        if let Some(credentials) = &trust.credentials {
            self.sign_in(&db, credentials).await.map_err(|error| self.login_error(error))?;
        }
        let chosen = db.use_ns(self.namespace).use_db(self.database).await;
        chosen.map_err(|error| self.login_error(error))?;
        Ok(SurrealClient::new(SurrealConnection::Server(db), self.location()))
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
    fn connection_error(&self, error: surrealdb::Error) -> StoreError {
        let location = self.location();
        if tls::is_untrusted(&error) {
            return StoreError::Untrusted { location, source: error.into() };
        }
        StoreError::Unreachable { location, source: error.into() }
    }

    fn login_error(&self, error: surrealdb::Error) -> StoreError {
        if error.is_connection() {
            return self.connection_error(error);
        }
        StoreError::Unauthorized { location: self.location(), source: error.into() }
    }
}

#[cfg(feature = "surreal-embedded")]
async fn open_embedded(path: &Path) -> Result<SurrealClient, StoreError> {
    crate::surreal::embedded::open(path).await
}

#[cfg(not(feature = "surreal-embedded"))]
#[expect(clippy::unused_async, reason = "the same signature as with the engine")]
async fn open_embedded(_: &Path) -> Result<SurrealClient, StoreError> {
    Err(crate::SettingError::NotBuiltIn { engine: "embedded SurrealDB" }.into())
}
