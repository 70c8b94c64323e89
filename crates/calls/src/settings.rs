//! What a desk is told when it opens.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agents::doctor::Lookup;
use agents::{HostConfig, ModelTables};
use model::{AgentKind, CallPolicy, NewJob};
use store::{Opening, Retention, Setting};
use supervisor::Supervisor;

/// Where a desk keeps its things, what it may run, and how much of it at once.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of the jobs' files and of the database. One desk at a time uses it: whoever opens one holds a lock.
    pub state: PathBuf,
    /// Which store.
    pub store: Opening,
    /// The supervisor's program.
    pub supervisor: Supervisor,
    /// Where and with what agents are looked for; its environment is what they inherit from.
    pub lookup: Lookup,
    /// The names of models.
    pub models: ModelTables,
    /// Further variables that agents may have.
    pub pass_on: BTreeSet<String>,
    /// The name under which this desk takes its jobs, where several share a store; none for the identity of the state directory.
    pub host: Option<String>,
    /// The labels that this machine answers to.
    pub labels: Vec<String>,
    /// How many jobs run at once, in all.
    pub at_once: u32,
    /// How many jobs of an agent run at once; of one that is not named, as many as in all.
    pub per_agent: BTreeMap<AgentKind, u32>,
    /// How often a job may be begun when its runs are lost.
    pub max_attempts: u32,
    /// How often a run that used up its turns is gone on with.
    pub max_resume_attempts: u32,
    /// Whether two calls that may change files wait for each other when they have the same folder.
    pub one_writer_per_folder: bool,
    /// For how long this desk counts as alive without a heartbeat.
    pub lease: Duration,
    /// How long an agent that has answered may stay silent before it is stopped. An agent that waits for its own background tasks is
    /// not stopped.
    pub lingers: Duration,
    /// How long a call of an MCP tool may take, where a job sets no limit and its agent can be held to one.
    pub tool_timeout: Option<Duration>,
    /// Which ended jobs are kept.
    pub retention: Retention,
    /// How much the caches of confined runs may take up before the least recently used are removed; none for no bound.
    pub cache_bytes: Option<u64>,
    /// What no call can go beyond, whatever it asks for.
    pub policy_ceiling: PolicyCeiling,
    /// The program `file-tools`, for agents without a shell.
    pub file_tools: Option<PathBuf>,
    /// Paths of the home directory that confined agents may read.
    pub expose: Vec<PathBuf>,
    /// Directories of state and configuration that no confined call works in, or above.
    pub guarded: Vec<PathBuf>,
}

/// The policy that no call goes beyond, read anew for each launch: a ceiling that the operator sets later counts at once.
#[derive(Clone)]
pub struct PolicyCeiling(Arc<dyn Fn() -> CallPolicy + Send + Sync>);

impl PolicyCeiling {
    /// Reads the ceiling with a function. It is called on the runtime, so it must not block for long.
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
    /// Whether an agent's calls may have to wait although there is room for others.
    pub(crate) fn has_agent_limits(&self) -> bool {
        self.per_agent.values().any(|at_once| *at_once < self.at_once)
    }

    /// How many jobs run at once when nobody says otherwise.
    pub const AT_ONCE: u32 = 8;

    /// How much the caches of confined runs take up at most, unless it is configured.
    pub const CACHE_BYTES: u64 = 5 << 30;

    /// A desk in that folder, with the embedded store and everything else as usual.
    pub fn new(state: impl Into<PathBuf>, supervisor: Supervisor) -> Self {
        let state = state.into();
        Self {
            store: Opening::new(Setting::Sqlite { path: None }, state.join("switchboard.db")),
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
            one_writer_per_folder: false,
            lease: Duration::from_secs(30),
            lingers: agents::LINGER,
            tool_timeout: Some(Duration::from_mins(5)),
            retention: Retention::default(),
            cache_bytes: Some(Self::CACHE_BYTES),
            policy_ceiling: CallPolicy::off().into(),
            file_tools: None,
            expose: Vec::new(),
            guarded: Vec::new(),
        }
    }

    /// What is this desk's own, and kept from agents that are confined.
    pub(crate) fn host_config(&self) -> HostConfig {
        HostConfig {
            state: std::iter::once(self.state.clone()).chain(self.guarded.iter().cloned()).collect(),
            proofs: Some(self.state.join("proofs")),
            private_state: Some(self.state.join("agents")),
            caches: Some(self.caches()),
            file_tools: self.file_tools.clone(),
            ceiling: self.policy_ceiling.read(),
            expose: self.expose.clone(),
            guarded: std::iter::once(self.state.clone()).chain(self.guarded.iter().cloned()).collect(),
        }
    }

    /// Where the caches of package managers are that confined runs share.
    pub(crate) fn caches(&self) -> PathBuf {
        self.state.join("caches")
    }

    /// Whether nobody but the desks of this state directory can have the store.
    pub(crate) fn owns_store(&self) -> bool {
        matches!(self.store.setting, Setting::Sqlite { path: None } | Setting::SqliteMemory)
    }
}
