//! The jobs of the daemon: a desk of `calls` as the configuration wants it, and what front-ends reach of it.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use calls::{
    BadPattern, CallError, CredentialSource, Credentials, CredentialsError, JobFilter, PolicyCeiling,
    Redactor, SettingError, Settings, ShutdownMode, StoreOptions,
};
use model::StateName;
use supervisor::{StartError, Supervisor};
use switchboard::mcp::{self, http};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::asking;
use super::caller::is_confined_client;
use super::connection::{Client, Connection};
use super::work::{Load, Turn, Work};
use crate::config::Config;
use crate::doctor::{self, Looking};
use crate::environment::Environment;
use crate::home::Home;
use crate::web::Web;
use crate::wire::{About, Complaint, Line, Reply, Request};

/// The desk, and how its tools are offered.
pub struct Jobs {
    desk: calls::JobService,
    options: Arc<mcp::Options>,
    web: Web,
}

impl Jobs {
    /// Opens the desk and takes up what an earlier daemon has left. Only for the holder of the lock.
    pub async fn open(home: &Home, config: &Config, environment: &Environment) -> Result<Self, JobsError> {
        let desk = calls::JobService::open(settings(home, config, environment)?).await?;
        let looking = Looking::new(Some(home.clone()), environment.clone(), config);
        let web = Web::new(desk.clone(), home.clone(), config.web_port, looking);
        Ok(Self { desk, options: Arc::new(options(config, environment)), web })
    }

    /// What a person sees of the jobs in a browser.
    pub fn web(&self) -> &Web {
        &self.web
    }

    /// The name under which the jobs are held.
    pub fn owner(&self) -> &model::Owner {
        self.desk.owner()
    }

    /// Serves HTTP until `shutdown`. `asked` is told of every request that is let in.
    pub async fn serve_http(
        &self,
        listener: TcpListener,
        gate: http::Gate,
        shutdown: CancellationToken,
        asked: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        let options = Arc::clone(&self.options);
        http::serve(listener, self.desk.clone(), options, gate, shutdown, asked).await;
    }
}

/// Listens for HTTP, and says who may come in.
pub async fn listen(
    home: &Home,
    config: &Config,
    address: SocketAddr,
) -> Result<(TcpListener, http::Gate), JobsError> {
    let token = http::Token::in_file(&home.http_token())?;
    let mut gate = http::Gate::loopback(token);
    gate.is_confined = is_confined_client;
    gate.limits = http::ClientLimits {
        max_connections: config.limits.max_connections,
        max_sessions: config.http.max_sessions,
    };
    gate.allowed_hosts.extend(config.http.allowed_hosts.iter().cloned());
    gate.allowed_origins.extend(config.http.allowed_origins.iter().cloned());
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "others can reach this address: whoever has the token runs agents as this user");
        gate.allowed_hosts.push(address.ip().to_string());
    }
    let listener =
        TcpListener::bind(address).await.map_err(|source| JobsError::Address { address, source })?;
    Ok((listener, gate))
}

impl Work for Jobs {
    fn load(&self) -> Turn<'_, Load> {
        Box::pin(async {
            let waiting =
                JobFilter { states: vec![StateName::Queued, StateName::Paused], ..JobFilter::default() };
            // A store that cannot be asked is no reason to end: something may well be waiting in it.
            let queued = self.desk.count(&waiting).await.unwrap_or(1);
            Load { running: self.desk.running() as u64, queued }
        })
    }

    fn problem(&self) -> Option<Complaint> {
        let error = CallError::Store(self.desk.store_loss()?.into());
        Some(Complaint { message: error.to_string(), hint: error.hint() })
    }

    fn drain(&self) -> Turn<'_> {
        Box::pin(self.desk.close(ShutdownMode::Drain))
    }

    fn cancel(&self) -> Turn<'_> {
        Box::pin(self.desk.cancel_all())
    }

    fn let_go(&self) -> Turn<'_> {
        Box::pin(self.desk.close(ShutdownMode::Detach))
    }

    fn ask<'a>(&'a self, request: Request, connection: &'a mut Connection) -> Turn<'a, io::Result<()>> {
        Box::pin(async move {
            match request {
                Request::Open => {
                    let reply = match self.web.link().await {
                        Ok(url) => Reply::Link { url },
                        Err(error) => asking::refused(About::Other, &error, error.hint()),
                    };
                    connection.say(&Line { reply, more: false }).await
                }
                request => asking::answer(&self.desk, request, connection).await,
            }
        })
    }

    fn converse(
        &self,
        connection: Connection,
        client: Client,
        shutdown: CancellationToken,
    ) -> Turn<'_, io::Result<()>> {
        let client = mcp::Client {
            cwd: client.cwd,
            environment: connection.caller_environment(),
            parent: connection.parent(&self.desk),
        };
        let stream = tokio::io::join(connection.reader, connection.writer);
        let served = mcp::serve(stream, client, self.desk.clone(), Arc::clone(&self.options), shutdown);
        Box::pin(async move { served.await.map_err(io::Error::other) })
    }
}

fn settings(home: &Home, config: &Config, environment: &Environment) -> Result<Settings, JobsError> {
    let variables = environment.texts();
    let source = match &config.store_credentials_file {
        Some(file) => CredentialSource::File(file.clone()),
        None => CredentialSource::Variables(variables.clone()),
    };
    let base = Settings::new(home.state(), Supervisor::beside_this_program()?);
    let store = StoreOptions {
        credentials: Credentials::read(&source)?,
        ca_file: config.store_ca_file.clone(),
        redactor: Redactor::usual()
            .with_patterns(&config.redact)?
            .with_values(&calls::secret_values(&variables)),
        ..StoreOptions::new(config.store.parse()?, home.database())
    };
    if store.setting.is_unencrypted() {
        tracing::warn!(store = %config.store, "jobs and the store's password go over the network in the clear: use wss://");
    }
    Ok(Settings {
        store,
        lookup: doctor::lookup(environment, Some(home), config),
        models: config.models.clone(),
        pass_on: config.pass_env.clone(),
        tool_timeout: Some(config.limits.tool_timeout),
        host: config.host.clone(),
        labels: config.labels.clone(),
        at_once: config.limits.at_once,
        per_agent: config.limits.per_agent.clone(),
        max_attempts: config.limits.attempts,
        max_resume_attempts: config.limits.max_resume_attempts,
        file_tools: doctor::file_tools(),
        expose: config.sandbox.expose.clone(),
        guarded: doctor::own_directories(home),
        policy_ceiling: ceiling(home, config, environment),
        one_writer_per_folder: config.one_writer_per_folder,
        retention: calls::RetentionLimits {
            max_age: config.retention.max_age,
            max_count: config.retention.max_count,
        },
        cache_bytes: config.sandbox.cache_bytes,
        ..base
    })
}

/// Returns the ceiling that the daemon started with, narrowed by the one that the configuration names now. While that cannot be read,
/// the last one counts.
fn ceiling(home: &Home, config: &Config, environment: &Environment) -> PolicyCeiling {
    let (home, environment, started) = (home.clone(), environment.clone(), config.sandbox.ceiling.clone());
    let last = Mutex::new(started.clone());
    PolicyCeiling::new(move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(now) = Config::read(Some(&home), &environment, &[]) {
            *last = started.within(&now.sandbox.ceiling);
        }
        last.clone()
    })
}

fn options(config: &Config, environment: &Environment) -> mcp::Options {
    mcp::Options {
        cwd_aliases: config.cwd_aliases.clone(),
        home: environment.folder("HOME"),
        rehearsal: config.rehearsal,
        cancel_on_disconnect: config.cancel_on_disconnect,
        policy: config.sandbox.policy.clone(),
        trust_workspaces: config.sandbox.trust_workspaces,
        defaults: mcp::Defaults {
            timeout: config.limits.timeout,
            idle: config.limits.idle,
            start: config.limits.start,
            wait: config.limits.wait,
            max_response_chars: config.limits.max_response_chars,
        },
        capacity: Arc::new(mcp::RequestCapacity::new(config.limits.max_waits)),
        ..mcp::Options::default()
    }
}

/// Why the daemon cannot run jobs.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    #[error(transparent)]
    Service(#[from] CallError),
    #[error("`store` in the configuration is invalid")]
    Store(#[from] SettingError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("`redact` in the configuration is invalid")]
    Redact(#[from] BadPattern),
    #[error(transparent)]
    Supervisor(#[from] StartError),
    #[error(transparent)]
    Token(#[from] http::TokenError),
    #[error("cannot listen for HTTP on {address}")]
    Address { address: SocketAddr, source: io::Error },
}

impl JobsError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Service(error) => error.hint(),
            Self::Store(error) => error.hint().to_owned(),
            Self::Credentials(error) => error.hint(),
            Self::Redact(error) => error.hint().to_owned(),
            Self::Supervisor(error) => error.hint().to_owned(),
            Self::Token(error) => error.hint().to_owned(),
            Self::Address { .. } => {
                "use another port with `--http 127.0.0.1:PORT`; port 0 picks a free one".to_owned()
            }
        }
    }
}
