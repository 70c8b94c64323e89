//! The settings of a service.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agents::doctor::Lookup;
use agents::{HostConfig, ModelTables, Patience};
use model::{AgentKind, CallPolicy, NewJob};
use store::{RetentionLimits, StoreOptions, StoreSetting};
use supervisor::Supervisor;

/// Directories, programs and limits of a service.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory of the job files and the database. One service at a time uses it, and its opener holds a lock.
    pub state: PathBuf,
    /// The store.
    pub store: StoreOptions,
    /// The supervisor's program.
    pub supervisor: Supervisor,
    /// The search paths of agents and the environment that they inherit.
    pub lookup: Lookup,
    /// Aliases of model names.
    pub models: ModelTables,
    /// Additional variables that agents inherit.
    pub pass_on: BTreeSet<String>,
    /// The host name of this service in a shared store; by default the identity of the state directory.
    pub host: Option<String>,
    /// The labels that this machine serves.
    pub labels: Vec<String>,
    /// The maximum number of running jobs.
    pub at_once: u32,
    /// The maximum number of running jobs per agent; by default `at_once`.
    pub per_agent: BTreeMap<AgentKind, u32>,
    /// The maximum number of attempts of a job whose runs are lost.
    pub max_attempts: u32,
    /// The maximum number of resumes after a run has used up its turns.
    pub max_resume_attempts: u32,
    /// Is true if a directory has at most one call at a time that may change files.
    pub one_writer_per_directory: bool,
    /// Is true if the changes of jobs in git worktrees are recorded.
    pub record_changes: bool,
    /// The time limit of a command that prepares a checkout or verifies an agent's work.
    pub command_limit: Duration,
    /// The settings for private checkouts of single repositories.
    pub repositories: Vec<RepositoryOptions>,
    /// The time for which this service counts as alive without a heartbeat.
    pub lease: Duration,
    /// The silence after which an agent without work is stopped.
    pub patience: Patience,
    /// The default timeout of an MCP tool call, for agents that support one.
    pub tool_timeout: Option<Duration>,
    /// The retention of ended jobs.
    pub retention: RetentionLimits,
    /// The maximum size of the caches of confined runs; the least recently used are removed first.
    pub cache_bytes: Option<u64>,
    /// The strictest policy that the operator enforces for every call.
    pub policy_ceiling: PolicyCeiling,
    /// The program `file-tools`, for agents without a shell.
    pub file_tools: Option<PathBuf>,
    /// The program `terminal-host`, for agents that run their commands through the client.
    pub terminal_host: Option<PathBuf>,
    /// Paths of the home directory that confined agents may read.
    pub expose: Vec<PathBuf>,
    /// Directories of state and configuration: no confined call works in or above them.
    pub guarded: Vec<PathBuf>,
}

/// The operator's settings for a git repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryOptions {
    /// The root of its worktree.
    pub path: PathBuf,
    /// Is true if calls that may write work in a private checkout, unless the caller requests otherwise.
    pub worktree: bool,
    /// The command that prepares a private checkout.
    pub worktree_setup: Option<String>,
}

/// The operator's policy ceiling. Read for each launch, so that a change takes effect at once.
#[derive(Clone)]
pub struct PolicyCeiling(Arc<dyn Fn() -> CallPolicy + Send + Sync>);

impl PolicyCeiling {
    /// Reads the ceiling with a function, which runs on the async runtime and must not block for long.
    pub fn new(read: impl Fn() -> CallPolicy + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    fn read(&self) -> CallPolicy {
        (self.0)()
    }
}

impl From<CallPolicy> for PolicyCeiling {
    fn from(ceiling: CallPolicy) -> Self {
        Self::new(move || ceiling.clone())
    }
}

impl fmt::Debug for PolicyCeiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PolicyCeiling").field(&self.read()).finish()
    }
}

impl Settings {
    /// Returns whether an agent's limit may delay its jobs while slots are free.
    pub(crate) fn has_agent_limits(&self) -> bool {
        self.per_agent.values().any(|at_once| *at_once < self.at_once)
    }

    /// The default of `at_once`.
    pub const AT_ONCE: u32 = 8;

    /// The default of `cache_bytes`.
    pub const CACHE_BYTES: u64 = 5 << 30;

    /// Returns the defaults for a state directory with an embedded store.
    pub fn new(state: impl Into<PathBuf>, supervisor: Supervisor) -> Self {
        let state = state.into();
        Self {
            store: StoreOptions::new(StoreSetting::Sqlite { path: None }, state.join("switchboard.db")),
            state,
            supervisor,
            lookup: Lookup::default(),
            models: ModelTables::default(),
            pass_on: BTreeSet::new(),
            host: None,
            labels: Vec::new(),
            at_once: Self::AT_ONCE,
            per_agent: BTreeMap::new(),
            max_attempts: NewJob::MAX_ATTEMPTS,
            max_resume_attempts: 5,
            one_writer_per_directory: false,
            record_changes: true,
            command_limit: Duration::from_mins(10),
            repositories: Vec::new(),
            lease: Duration::from_secs(30),
            patience: Patience::default(),
            tool_timeout: Some(Duration::from_mins(5)),
            retention: RetentionLimits::default(),
            cache_bytes: Some(Self::CACHE_BYTES),
            policy_ceiling: CallPolicy::off().into(),
            file_tools: None,
            terminal_host: None,
            expose: Vec::new(),
            guarded: Vec::new(),
        }
    }

    /// Returns the paths of this host that a launch refers to or must protect.
    pub(crate) fn host_config(&self) -> HostConfig {
        HostConfig {
            state: std::iter::once(self.state.clone()).chain(self.guarded.iter().cloned()).collect(),
            proofs: Some(self.state.join("proofs")),
            private_state: Some(self.state.join("agents")),
            caches: Some(self.caches()),
            file_tools: self.file_tools.clone(),
            terminal_host: self.terminal_host.clone(),
            ceiling: self.policy_ceiling.read(),
            expose: self.expose.clone(),
            guarded: std::iter::once(self.state.clone()).chain(self.guarded.iter().cloned()).collect(),
            checkouts: Some(self.checkouts()),
        }
    }

    /// Returns the directory of the package manager caches that confined runs share.
    pub(crate) fn caches(&self) -> PathBuf {
        self.state.join("caches")
    }

    /// Returns the options of the repository around a directory.
    pub(crate) fn repository_options(&self, directory: &Path) -> Option<&RepositoryOptions> {
        let around = self.repositories.iter().filter(|options| directory.starts_with(&options.path));
        around.max_by_key(|options| options.path.components().count())
    }

    /// Returns the directory of the private checkouts.
    pub(crate) fn checkouts(&self) -> PathBuf {
        self.state.join("checkouts")
    }

    /// Returns whether only services of this state directory can open the store.
    pub(crate) fn owns_store(&self) -> bool {
        matches!(self.store.setting, StoreSetting::Sqlite { path: None } | StoreSetting::SqliteMemory)
    }
}
