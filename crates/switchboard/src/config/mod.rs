//! The configuration, as one plain value.
//!
//! Owns what can be set ([`keys`]) and by whom. Says nothing about what is done with it, and opens no store: `store` is handed on
//! as it was written.

mod error;
mod file;
mod keys;
mod settings;
mod show;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agents::ModelTables;
use model::{AgentKind, Bounds, CallPolicy, Network, Preset, Requirement};

pub use error::ConfigError;
pub use settings::{Given, Settings};
pub use show::{as_json, as_toml, misspelled_variables, reference};

use protocol::{ProcessEnvironment, SwitchboardHome};
use value::Value;

/// How everything is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where jobs are kept, in the words of the crate `store`.
    pub store: String,
    /// A file with user and password for the store's server.
    pub store_credentials_file: Option<PathBuf>,
    /// Who may vouch for a `wss://` server.
    pub store_ca_file: Option<PathBuf>,
    /// The name under which this machine takes its jobs.
    pub host: Option<String>,
    /// Further such names.
    pub labels: Vec<String>,
    /// How long the daemon may be idle before it ends.
    pub idle_stop: Option<Duration>,
    /// Whether of two calls that may change a folder the second waits.
    pub one_writer_per_folder: bool,
    /// Whether a call is cancelled when its client goes away.
    pub cancel_on_disconnect: bool,
    /// Whether MCP hosts can call the scripted agent.
    pub rehearsal: bool,
    /// Names of variables that agents get beside the usual ones.
    pub pass_env: BTreeSet<String>,
    /// Further regular expressions for what is not to be kept.
    pub redact: Vec<String>,
    /// What calls may spend when they do not say.
    pub limits: CallLimits,
    /// How long ended jobs are kept.
    pub retention: Retention,
    /// Programs that the user named himself.
    pub programs: BTreeMap<AgentKind, PathBuf>,
    /// What the names of models stand for.
    pub models: ModelTables,
    /// Short names for folders.
    pub cwd_aliases: BTreeMap<String, PathBuf>,
    /// MCP over HTTP.
    pub http: Http,
    /// The port of the web page, 0 for any; none when there is to be no page.
    pub web_port: Option<u16>,
    /// What agents may touch.
    pub sandbox: Sandbox,
    /// The daemon's log.
    pub log: Log,
}

/// What calls may spend when they do not say, and how many there may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallLimits {
    /// How many run at once, in all.
    pub at_once: u32,
    /// How many of each agent; every agent is in it.
    pub per_agent: BTreeMap<AgentKind, u32>,
    /// How long an agent may take.
    pub timeout: Duration,
    /// How long it may stay silent.
    pub idle: Option<Duration>,
    /// How long it may take until its first word; none for as long as it may stay silent.
    pub start: Option<Duration>,
    /// How long one tool of an agent may take.
    pub tool_timeout: Duration,
    /// How long an MCP call waits for the answer.
    pub wait: Duration,
    /// How long an answer may be.
    pub max_response_chars: usize,
    /// How often a job is begun.
    pub attempts: u32,
    /// How often a run that came to its turn limit is gone on with.
    pub max_resume_attempts: u32,
    /// How many front-ends may be connected, and how many clients over HTTP.
    pub max_connections: usize,
    /// How many requests may wait for jobs, beyond those that each client may always have.
    pub max_waits: usize,
}

/// How long ended jobs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// How long after their end.
    pub max_age: Option<Duration>,
    /// How many.
    pub max_count: Option<u64>,
}

/// MCP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Where; none for not at all.
    pub address: Option<SocketAddr>,
    /// The names under which it may be reached, beside those of this machine.
    pub allowed_hosts: Vec<String>,
    /// The web pages that may use it.
    pub allowed_origins: Vec<String>,
    /// How many sessions there may be.
    pub max_sessions: usize,
}

/// What agents may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// The policy of a call that names none.
    pub policy: CallPolicy,
    /// What no call can go beyond.
    pub ceiling: CallPolicy,
    /// Paths of the home directory that confined agents may read.
    pub expose: Vec<PathBuf>,
    /// Whether confined agents obey the settings of their workspace.
    pub trust_workspaces: bool,
    /// How much the private caches of package managers may take up.
    pub cache_bytes: Option<u64>,
}

/// The daemon's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How much is written: error, warn, info, debug, trace.
    pub level: String,
    /// How long a file may become.
    pub max_bytes: u64,
    /// How many files are kept.
    pub files: u32,
}

impl Config {
    /// Reads all layers. Without a home there is no file.
    pub fn read(
        home: Option<&SwitchboardHome>,
        environment: &ProcessEnvironment,
        given: &[Given],
    ) -> Result<Self, ConfigError> {
        Settings::read(home, environment, given).map(|settings| Self::from_settings(&settings))
    }

    /// What the settings amount to. The table gives every key that is asked for here without a fallback its default.
    pub fn from_settings(settings: &Settings) -> Self {
        let says = Says(settings);
        let at_once = says.small("limits.at_once").unwrap_or(1);
        let per_agent = |agent: AgentKind| {
            (agent, says.small(&format!("limits.per_agent.{agent}")).unwrap_or(at_once).min(at_once))
        };
        let program = |agent: AgentKind| Some((agent, says.path(&format!("programs.{agent}"))?));
        Self {
            store: says.text("store").unwrap_or_default(),
            store_credentials_file: says.path("store_credentials_file"),
            store_ca_file: says.path("store_ca_file"),
            host: says.text("host"),
            labels: says.texts("labels"),
            idle_stop: says.time("idle_stop"),
            one_writer_per_folder: says.flag("one_writer_per_folder"),
            cancel_on_disconnect: says.flag("cancel_on_disconnect"),
            rehearsal: says.flag("rehearsal"),
            pass_env: says.texts("pass_env").into_iter().collect(),
            redact: says.texts("redact"),
            limits: CallLimits {
                at_once,
                per_agent: AgentKind::ALL.into_iter().map(per_agent).collect(),
                timeout: says.time("limits.timeout").unwrap_or_default(),
                idle: says.time("limits.idle"),
                start: says.time("limits.start"),
                tool_timeout: says.time("limits.tool_timeout").unwrap_or_default(),
                wait: says.time("limits.wait").unwrap_or_default(),
                max_response_chars: says.size("limits.max_response_chars"),
                attempts: says.small("limits.attempts").unwrap_or(1),
                max_resume_attempts: says.small("limits.max_resume_attempts").unwrap_or_default(),
                max_connections: says.size("limits.max_connections"),
                max_waits: says.size("limits.max_waits"),
            },
            retention: Retention {
                max_age: says.time("retention.max_age"),
                max_count: says.count("retention.max_count"),
            },
            programs: AgentKind::ALL.into_iter().filter_map(program).collect(),
            models: ModelTables {
                claude: settings.models("models.claude"),
                codex: settings.models("models.codex"),
                gemini: settings.models("models.gemini"),
            },
            cwd_aliases: says.folders("cwd_aliases"),
            http: Http {
                address: says.text("http.address").and_then(|text| text.parse().ok()),
                allowed_hosts: says.texts("http.allowed_hosts"),
                allowed_origins: says.texts("http.allowed_origins"),
                max_sessions: says.size("http.max_sessions"),
            },
            web_port: says.count("web.port").and_then(|port| u16::try_from(port).ok()),
            sandbox: Sandbox {
                policy: says.policy("sandbox.policy"),
                ceiling: says.policy("sandbox.ceiling"),
                expose: says.texts("sandbox.expose").into_iter().map(PathBuf::from).collect(),
                trust_workspaces: says.flag("sandbox.trust_workspaces"),
                cache_bytes: says.count("sandbox.cache_bytes"),
            },
            log: Log {
                level: says.text("log.level").unwrap_or_default(),
                max_bytes: says.count("log.max_bytes").unwrap_or(u64::MAX),
                files: says.small("log.files").unwrap_or(1),
            },
        }
    }
}

/// The settings, asked for by type. The table makes sure that the type fits.
struct Says<'a>(&'a Settings);

impl Says<'_> {
    fn text(&self, name: &str) -> Option<String> {
        if let Some(Value::Text(text)) = self.0.get(name) { Some(text.clone()) } else { None }
    }

    /// A policy by its name, enforced as the operator wants it.
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

    fn small(&self, name: &str) -> Option<u32> {
        self.count(name).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// How much there may be of something; without a word, any amount.
    fn size(&self, name: &str) -> usize {
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

    fn folders(&self, section: &str) -> BTreeMap<String, PathBuf> {
        let folder = |(word, value): (&str, &Value)| match value {
            Value::Path(path) => Some((word.to_owned(), path.clone())),
            _ => None,
        };
        self.0.words(section).filter_map(folder).collect()
    }
}

#[cfg(test)]
mod tests;
