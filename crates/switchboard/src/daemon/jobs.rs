//! The job backend of the daemon: the job service of `calls`, the MCP server and the web page, built from the configuration.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use calls::{
    BadPattern, CallError, CredentialSource, Credentials, CredentialsError, JobFilter, PolicyCeiling,
    Redactor, RepositoryOptions, SettingError, Settings, ShutdownMode, StoreOptions,
};
use dashboard::{Dashboard, DashboardOptions};
use http_listener::{BearerToken, TokenError};
use mcp_server::http::{self, ClientLimits, HttpAccess};
use mcp_server::{CallDefaults, McpClient, McpOptions, RequestCapacity};
use model::{CallPolicy, StateName};
use supervisor::{StartError, Supervisor};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use protocol::{DaemonRequest, ErrorCategory, ErrorReply, ProcessEnvironment, ReplyLine, SwitchboardHome};

use super::backend::{BoxFuture, JobBackend, Load};
use super::connection::{ClientConnection, ConnectedClient};
use super::{group_handlers, handler_error, job_handlers};
use crate::caller::{CallerProcess, identify_http_client};
use crate::client::JobReply;
use crate::config::{Config, FileStamp};
use crate::machine::{self, MachineCheck};

/// The job service and its front ends.
pub struct DaemonJobs {
    service: calls::JobService,
    options: Arc<McpOptions>,
    dashboard: Dashboard,
}

impl DaemonJobs {
    /// Opens the job service and recovers the jobs of earlier daemons. Only the holder of the lock may call this.
    pub async fn open(
        home: &SwitchboardHome,
        config: &Config,
        environment: &ProcessEnvironment,
    ) -> Result<Self, JobsError> {
        let service = calls::JobService::open(settings(home, config, environment)?).await?;
        // Agents see it in logs and configurations of HTTP clients. It may be unused now and used by a client later.
        if let Some(token) = BearerToken::load_existing(&home.http_token()) {
            service.redact_secret(token.reveal());
        }
        let check = MachineCheck::new(Some(home.clone()), environment.clone(), config);
        let dashboard = Dashboard::new(
            service.clone(),
            DashboardOptions {
                port: config.web_port,
                token_file: home.http_token(),
                run_check: Arc::new(move |is_wanted| check.run_while(is_wanted)),
                identify_client: identify_http_client,
            },
        );
        Ok(Self { service, options: Arc::new(options(config, environment)), dashboard })
    }

    /// Returns the web page.
    pub fn dashboard(&self) -> &Dashboard {
        &self.dashboard
    }

    /// Returns the name under which this daemon owns jobs.
    pub fn owner(&self) -> &model::Owner {
        self.service.owner()
    }

    /// Binds the HTTP listener and builds its access rules.
    pub async fn bind_http(
        &self,
        home: &SwitchboardHome,
        config: &Config,
        address: SocketAddr,
    ) -> Result<(TcpListener, HttpAccess), JobsError> {
        let token = BearerToken::load_or_create(&home.http_token())?;
        self.service.redact_secret(token.reveal());
        let mut access = HttpAccess::loopback(token);
        access.identify_client = identify_http_client;
        access.limits = ClientLimits {
            max_connections: config.limits.max_connections,
            max_sessions: config.http.max_sessions,
        };
        access.allowed_hosts.extend(config.http.allowed_hosts.iter().cloned());
        access.allowed_origins.extend(config.http.allowed_origins.iter().cloned());
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the address is reachable from other machines: clients with the token run agents as this user");
            access.allowed_hosts.push(address.ip().to_string());
        }
        let listener =
            TcpListener::bind(address).await.map_err(|source| JobsError::Address { address, source })?;
        Ok((listener, access))
    }

    /// Serves HTTP until `shutdown`. Calls `on_request` for every admitted request.
    pub async fn serve_http(
        &self,
        listener: TcpListener,
        access: HttpAccess,
        shutdown: CancellationToken,
        on_request: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        let options = Arc::clone(&self.options);
        http::serve(listener, self.service.clone(), options, access, shutdown, on_request).await;
    }
}

impl JobBackend for DaemonJobs {
    fn load(&self) -> BoxFuture<'_, Load> {
        Box::pin(async {
            let waiting =
                JobFilter { states: vec![StateName::Queued, StateName::Paused], ..JobFilter::default() };
            // If the store is unreachable, assume that a job is queued, so that the daemon does not stop as idle.
            let queued = self.service.count(&waiting).await.unwrap_or(1);
            Load { running: self.service.running() as u64, queued }
        })
    }

    fn problem(&self) -> Option<ErrorReply> {
        let error = CallError::Store(self.service.store_loss()?.into());
        Some(ErrorReply { message: error.to_string(), hint: error.hint() })
    }

    fn drain(&self) -> BoxFuture<'_> {
        Box::pin(self.service.close(ShutdownMode::Drain))
    }

    fn cancel(&self) -> BoxFuture<'_> {
        Box::pin(self.service.cancel_all())
    }

    fn detach(&self) -> BoxFuture<'_> {
        Box::pin(self.service.close(ShutdownMode::Detach))
    }

    fn handle_control<'a>(
        &'a self,
        request: DaemonRequest,
        connection: &'a mut ClientConnection,
    ) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            match request {
                DaemonRequest::Open => {
                    let reply = match self.dashboard.create_link().await {
                        Ok(url) => JobReply::Link { url },
                        Err(error) => handler_error::rejection(ErrorCategory::Other, &error, error.hint()),
                    };
                    connection.send(&ReplyLine { reply, more: false }).await
                }
                request if group_handlers::is_about_group(&request) => {
                    group_handlers::handle(&self.service, request, connection).await
                }
                request => job_handlers::handle(&self.service, request, connection).await,
            }
        })
    }

    fn serve_mcp(
        &self,
        connection: ClientConnection,
        client: ConnectedClient,
        shutdown: CancellationToken,
    ) -> BoxFuture<'_, io::Result<()>> {
        let client = McpClient {
            cwd: client.cwd,
            environment: connection.caller_environment(),
            parent: connection.parent(&self.service),
            is_inside_run: *connection.caller() != CallerProcess::Outside,
        };
        let stream = tokio::io::join(connection.reader, connection.writer);
        let served =
            mcp_server::serve(stream, client, self.service.clone(), Arc::clone(&self.options), shutdown);
        Box::pin(async move { served.await.map_err(io::Error::other) })
    }
}

fn settings(
    home: &SwitchboardHome,
    config: &Config,
    environment: &ProcessEnvironment,
) -> Result<Settings, JobsError> {
    let variables = environment.utf8_variables();
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
        tracing::warn!(store = %config.store, "the store's password and all jobs are sent unencrypted: use wss://");
    }
    Ok(Settings {
        store,
        lookup: machine::agent_lookup(environment, Some(home), config),
        models: config.models.clone(),
        pass_on: config.pass_env.clone(),
        tool_timeout: Some(config.limits.tool_timeout),
        host: config.host.clone(),
        labels: config.labels.clone(),
        at_once: config.limits.at_once,
        per_agent: config.limits.per_agent.clone(),
        max_attempts: config.limits.attempts,
        max_resume_attempts: config.limits.max_resume_attempts,
        file_tools: machine::own_program("file-tools"),
        terminal_host: machine::own_program("terminal-host"),
        expose: config.sandbox.expose.clone(),
        guarded: machine::own_directories(home),
        policy_ceiling: PolicyCeiling::new(ceiling_reader(home, config, environment)),
        one_writer_per_directory: config.one_writer_per_directory,
        record_changes: config.record_changes,
        command_limit: config.limits.command,
        repositories: config.repositories.iter().map(resolve_repository).collect(),
        retention: calls::RetentionLimits {
            max_age: config.retention.max_age,
            max_count: config.retention.max_count,
        },
        cache_bytes: config.sandbox.cache_bytes,
        ..base
    })
}

/// Resolves the links in the path of a repository: the directories of calls have none.
fn resolve_repository(options: &RepositoryOptions) -> RepositoryOptions {
    let path = options.path.canonicalize().unwrap_or_else(|_| options.path.clone());
    RepositoryOptions { path, ..options.clone() }
}

/// Returns a function that reads the ceiling: the one at startup, narrowed by the one in the current configuration. While that is unreadable, the last one applies.
fn ceiling_reader(
    home: &SwitchboardHome,
    config: &Config,
    environment: &ProcessEnvironment,
) -> impl Fn() -> CallPolicy + Send + Sync + use<> {
    let (home, environment, started) = (home.clone(), environment.clone(), config.sandbox.ceiling.clone());
    let last = Mutex::new((started.clone(), None));
    move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let (ceiling, read_from) = &mut *last;
        // Before the file is read: a change between the two is noticed by the next call.
        let stamp = FileStamp::of_settled(home.config_file());
        if stamp.is_none() || stamp != *read_from {
            if let Ok(now) = Config::read(Some(&home), &environment, &[]) {
                *ceiling = started.within(&now.sandbox.ceiling);
            }
            *read_from = stamp;
        }
        ceiling.clone()
    }
}

fn options(config: &Config, environment: &ProcessEnvironment) -> McpOptions {
    McpOptions {
        cwd_aliases: config.cwd_aliases.clone(),
        home: environment.directory("HOME"),
        rehearsal: config.rehearsal,
        apply_changes: config.mcp_apply_changes,
        cancel_on_disconnect: config.cancel_on_disconnect,
        policy: config.sandbox.policy.clone(),
        trust_workspaces: config.sandbox.trust_workspaces,
        defaults: CallDefaults {
            timeout: config.limits.timeout,
            idle: config.limits.idle,
            start: config.limits.start,
            wait: config.limits.wait,
            max_response_chars: config.limits.max_response_chars,
        },
        capacity: Arc::new(RequestCapacity::new(config.limits.max_waits)),
        ..McpOptions::default()
    }
}

/// The job service or the HTTP listener cannot be opened.
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
    Token(#[from] TokenError),
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::Preset;
    use std::fs;

    /// Both files are so old that they may be taken from memory.
    #[test]
    fn lowered_ceiling_applies_after_the_file_was_cached() {
        let root = tempfile::tempdir().unwrap();
        let home =
            SwitchboardHome::from_environment(&[("SWITCHBOARD_HOME", root.path().to_str().unwrap())].into())
                .unwrap();
        let set_ceiling = |ceiling: &str| {
            fs::write(home.config_file(), format!("[sandbox]\nceiling = \"{ceiling}\"\n")).unwrap();
            let has_stamp = || FileStamp::of_settled(home.config_file()).is_some();
            testkit::eventually("the file has no stamp", has_stamp);
        };
        set_ceiling("off");
        let environment = ProcessEnvironment::default();
        let config = Config::read(Some(&home), &environment, &[]).unwrap();
        let read = ceiling_reader(&home, &config, &environment);
        assert_eq!((read().preset, read().preset), (Preset::Off, Preset::Off));
        set_ceiling("restricted");
        assert_eq!(read().preset, Preset::Restricted);
    }
}
