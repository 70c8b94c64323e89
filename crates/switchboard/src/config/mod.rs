//! The configuration as one plain value.
//!
//! Owns the keys ([`keys`]) and the precedence of their sources. Opens no store: `store` is passed on unparsed.

mod agents;
mod error;
mod file;
mod keys;
mod settings;
mod show;
mod stamp;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::agents::{AgentProfiles, ModelTable, ModelTables};
use calls::RepositoryOptions;
use model::{AgentKind, Bounds, CallPolicy, Network, Preset, Requirement};

pub use error::ConfigError;
pub use settings::{EffectiveSettings, OptionOverride};
pub use show::{as_json, as_toml, misspelled_variables, reference};
pub use stamp::FileStamp;

use protocol::{ProcessEnvironment, SwitchboardHome};
use value::Value;

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct Config {
    /// The store, in the syntax of the crate `store`.
    pub store: String,
    /// A file with the user and password of the store's server.
    pub store_credentials_file: Option<PathBuf>,
    /// A file with CA certificates for a `wss://` server.
    pub store_ca_file: Option<PathBuf>,
    /// The host name under which this daemon claims jobs.
    pub host: Option<String>,
    /// Further names under which it claims jobs.
    pub labels: Vec<String>,
    /// The idle timeout of the daemon.
    pub idle_stop: Option<Duration>,
    /// Serializes calls that may write to the same directory.
    pub one_writer_per_directory: bool,
    /// Whether the changes of calls in git repositories are recorded.
    pub record_changes: bool,
    /// Cancels a call when its client disconnects.
    pub cancel_on_disconnect: bool,
    /// Offers the scripted agent to MCP hosts.
    pub rehearsal: bool,
    /// Further variables that agents receive.
    pub pass_env: BTreeSet<String>,
    /// Further regular expressions of secrets to redact.
    pub redact: Vec<String>,
    /// The limits of calls.
    pub limits: CallLimits,
    /// The retention of ended jobs.
    pub retention: RetentionConfig,
    /// The known agents.
    pub profiles: AgentProfiles,
    /// Configured paths of agent programs.
    pub programs: BTreeMap<AgentKind, PathBuf>,
    /// The default models and model aliases.
    pub models: ModelTables,
    /// Aliases of working directories.
    pub cwd_aliases: BTreeMap<String, PathBuf>,
    /// Offers MCP hosts the tools that apply and discard changes.
    pub mcp_apply_changes: bool,
    /// The settings for private checkouts of single repositories.
    pub repositories: Vec<RepositoryOptions>,
    /// MCP over HTTP.
    pub http: HttpConfig,
    /// The port of the web page, 0 for any; `None` disables the page.
    pub web_port: Option<u16>,
    /// The sandbox.
    pub sandbox: SandboxConfig,
    /// The daemon's log.
    pub log: LogConfig,
}

/// The default limits of calls and the limits of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallLimits {
    /// The maximum number of running jobs.
    pub at_once: u32,
    /// The maximum per agent; contains every agent.
    pub per_agent: BTreeMap<AgentKind, u32>,
    /// The wall-clock timeout of a run.
    pub timeout: Duration,
    /// The idle timeout of a run.
    pub idle: Option<Duration>,
    /// The startup timeout of a run; `None` for the idle timeout.
    pub start: Option<Duration>,
    /// The timeout of one tool call of an agent.
    pub tool_timeout: Duration,
    /// The timeout of a command that verifies an agent's work or prepares a private checkout.
    pub command: Duration,
    /// The maximum wait of an MCP call for its answer.
    pub wait: Duration,
    /// The maximum length of an answer.
    pub max_response_chars: usize,
    /// The maximum number of attempts of a job.
    pub attempts: u32,
    /// The maximum number of resumptions after a turn limit.
    pub max_resume_attempts: u32,
    /// The maximum number of connections, over the socket and over HTTP each.
    pub max_connections: usize,
    /// The maximum number of waiting requests beyond the guaranteed ones of each client.
    pub max_waits: usize,
}

/// The retention of ended jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionConfig {
    /// The maximum age.
    pub max_age: Option<Duration>,
    /// The maximum number.
    pub max_count: Option<u64>,
}

/// MCP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// The address; `None` disables HTTP.
    pub address: Option<SocketAddr>,
    /// Further host names that requests may use.
    pub allowed_hosts: Vec<String>,
    /// The origins of web pages that may use it.
    pub allowed_origins: Vec<String>,
    /// The maximum number of sessions.
    pub max_sessions: usize,
}

/// The sandbox settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxConfig {
    /// The default policy.
    pub policy: CallPolicy,
    /// The upper bound of every policy.
    pub ceiling: CallPolicy,
    /// Paths of the home directory that sandboxed agents may read.
    pub expose: Vec<PathBuf>,
    /// Lets sandboxed agents load workspace settings.
    pub trust_workspaces: bool,
    /// The size limit of the private package caches.
    pub cache_bytes: Option<u64>,
}

/// The daemon's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The level: error, warn, info, debug, trace.
    pub level: String,
    /// The maximum size of a file.
    pub max_bytes: u64,
    /// The number of files, rotated ones included.
    pub files: u32,
}

impl Config {
    /// Returns the settings of the nearest repository around a directory without links.
    pub fn repository_around(&self, directory: &Path) -> Option<&RepositoryOptions> {
        let around = self
            .repositories
            .iter()
            .filter(|options| options.path.canonicalize().is_ok_and(|path| directory.starts_with(path)));
        around.max_by_key(|options| options.path.components().count())
    }

    /// Reads the configuration from all sources. Without a home there is no file.
    pub fn read(
        home: Option<&SwitchboardHome>,
        environment: &ProcessEnvironment,
        overrides: &[OptionOverride],
    ) -> Result<Self, ConfigError> {
        EffectiveSettings::read(home, environment, overrides).map(|settings| Self::from_settings(&settings))
    }

    /// Converts settings. The key table has a default for every key that is read without a fallback here.
    pub fn from_settings(settings: &EffectiveSettings) -> Self {
        let values = TypedSettings(settings);
        let at_once = values.count_u32("limits.at_once").unwrap_or(1);
        let per_agent = |agent: AgentKind| {
            (agent, values.count_u32(&format!("limits.per_agent.{agent}")).unwrap_or(at_once).min(at_once))
        };
        let program = |agent: AgentKind| Some((agent, values.path(&format!("programs.{agent}"))?));
        // Checked when the settings were read.
        let profiles = agents::read_profiles(settings).unwrap_or_default();
        let all: Vec<AgentKind> = profiles.iter().map(|profile| profile.agent).collect();
        Self {
            store: values.text("store").unwrap_or_default(),
            store_credentials_file: values.path("store_credentials_file"),
            store_ca_file: values.path("store_ca_file"),
            host: values.text("host"),
            labels: values.texts("labels"),
            idle_stop: values.time("idle_stop"),
            one_writer_per_directory: values.flag("one_writer_per_directory"),
            record_changes: values.flag("record_changes"),
            cancel_on_disconnect: values.flag("cancel_on_disconnect"),
            rehearsal: values.flag("rehearsal"),
            pass_env: values.texts("pass_env").into_iter().collect(),
            redact: values.texts("redact"),
            limits: CallLimits {
                at_once,
                per_agent: all.iter().copied().map(per_agent).collect(),
                timeout: values.time("limits.timeout").unwrap_or_default(),
                idle: values.time("limits.idle"),
                start: values.time("limits.start"),
                tool_timeout: values.time("limits.tool_timeout").unwrap_or_default(),
                wait: values.time("limits.wait").unwrap_or_default(),
                max_response_chars: values.limit("limits.max_response_chars"),
                command: values.time("limits.command").unwrap_or_default(),
                attempts: values.count_u32("limits.attempts").unwrap_or(1),
                max_resume_attempts: values.count_u32("limits.max_resume_attempts").unwrap_or_default(),
                max_connections: values.limit("limits.max_connections"),
                max_waits: values.limit("limits.max_waits"),
            },
            retention: RetentionConfig {
                max_age: values.time("retention.max_age"),
                max_count: values.count("retention.max_count"),
            },
            programs: all.into_iter().filter_map(program).collect(),
            models: values.models(&profiles),
            profiles,
            cwd_aliases: values.directories("cwd_aliases"),
            mcp_apply_changes: values.flag("mcp.apply_changes"),
            repositories: values.repositories(),
            http: HttpConfig {
                address: values.text("http.address").and_then(|text| text.parse().ok()),
                allowed_hosts: values.texts("http.allowed_hosts"),
                allowed_origins: values.texts("http.allowed_origins"),
                max_sessions: values.limit("http.max_sessions"),
            },
            web_port: values.count("web.port").and_then(|port| u16::try_from(port).ok()),
            sandbox: SandboxConfig {
                policy: values.policy("sandbox.policy"),
                ceiling: values.policy("sandbox.ceiling"),
                expose: values.texts("sandbox.expose").into_iter().map(PathBuf::from).collect(),
                trust_workspaces: values.flag("sandbox.trust_workspaces"),
                cache_bytes: values.count("sandbox.cache_bytes"),
            },
            log: LogConfig {
                level: values.text("log.level").unwrap_or_default(),
                max_bytes: values.count("log.max_bytes").unwrap_or(u64::MAX),
                files: values.count_u32("log.files").unwrap_or(1),
            },
        }
    }
}

/// Typed access to settings. The key table guarantees the types.
struct TypedSettings<'a>(&'a EffectiveSettings);

impl TypedSettings<'_> {
    fn text(&self, name: &str) -> Option<String> {
        if let Some(Value::Text(text)) = self.0.get(name) { Some(text.clone()) } else { None }
    }

    /// Returns a policy by name, with the configured requirement, network and bounds.
    fn policy(&self, name: &str) -> CallPolicy {
        let preset: Option<Preset> = self.text(name).and_then(|name| name.parse().ok());
        let best_effort = self.text("sandbox.requirement").as_deref() == Some("best-effort");
        let requirement = if best_effort { Requirement::BestEffort } else { Requirement::Require };
        CallPolicy {
            requirement,
            network: match self.text("sandbox.network").as_deref() {
                Some("none") => Network::None,
                Some("hosts") => Network::Hosts(self.texts("sandbox.hosts")),
                _ => Network::Full,
            },
            bounds: Bounds {
                processes: self.count("sandbox.processes"),
                memory_bytes: self.count("sandbox.memory_bytes"),
                ..Bounds::default()
            },
            private_state: self.flag("sandbox.private_state"),
            ..preset.unwrap_or(Preset::Workspace).into()
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        if let Some(Value::Path(path)) = self.0.get(name) { Some(path.clone()) } else { None }
    }

    fn count(&self, name: &str) -> Option<u64> {
        if let Some(Value::Count(number)) = self.0.get(name) { Some(*number) } else { None }
    }

    fn count_u32(&self, name: &str) -> Option<u32> {
        self.count(name).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// Returns a limit; unlimited if it is not set.
    fn limit(&self, name: &str) -> usize {
        self.count(name).and_then(|number| number.try_into().ok()).unwrap_or(usize::MAX)
    }

    fn time(&self, name: &str) -> Option<Duration> {
        if let Some(Value::Time(time)) = self.0.get(name) { Some(*time) } else { None }
    }

    fn flag(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(Value::Flag(true)))
    }

    fn texts(&self, name: &str) -> Vec<String> {
        if let Some(Value::Texts(items)) = self.0.get(name) { items.clone() } else { Vec::new() }
    }

    /// Returns the default models and the aliases of all agents.
    fn models(&self, profiles: &AgentProfiles) -> ModelTables {
        profiles.iter().fold(ModelTables::default(), |tables, profile| {
            let agent = profile.agent;
            let table = if AgentKind::NATIVE.contains(&agent) {
                self.0.models(&format!("models.{agent}"))
            } else {
                let default = self.text(&format!("agents.{agent}.default_model"));
                ModelTable { default, ..ModelTable::default() }
            };
            if table == ModelTable::default() { tables } else { tables.with(agent, table) }
        })
    }

    fn directories(&self, section: &str) -> BTreeMap<String, PathBuf> {
        let directory = |(word, value): (&str, &Value)| match value {
            Value::Path(path) => Some((word.to_owned(), path.clone())),
            _ => None,
        };
        self.0.open_keys(section).filter_map(directory).collect()
    }

    fn repositories(&self) -> Vec<RepositoryOptions> {
        let options = |(path, keys): (&str, BTreeMap<&str, &Value>)| RepositoryOptions {
            path: PathBuf::from(path),
            worktree: keys.get("worktree") == Some(&&Value::Flag(true)),
            worktree_setup: match keys.get("worktree_setup") {
                Some(Value::Text(command)) => Some(command.clone()),
                _ => None,
            },
        };
        self.0.open_tables("repositories.").into_iter().map(options).collect()
    }
}

#[cfg(test)]
mod tests;
